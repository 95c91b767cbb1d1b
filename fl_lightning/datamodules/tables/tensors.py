"""Tensors: your own arrays."""

import zipfile
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.datamodules.base.settings import Arrays, Unpack
from fl_lightning.datamodules.changes.augmentation import Augmentation
from fl_lightning.datamodules.changes.constants import check_constants
from fl_lightning.datamodules.images.image_data import ImageData
from fl_lightning.engine.module.params import is_finite
from fl_lightning.errors import ConfigurationError, check_at_least

NAMES = ("train_x", "train_y", "test_x", "test_y")
GROUPS = "train_groups"


class Tensors(ImageData):
    """Labelled arrays, given from Python or in an npz file.

    Inputs are floats (n, ...), converted to the default type and otherwise unchanged, or uint8 images (n, C, H, W),
    which become floats in [0, 1] on the device and are normalised only if ``mean`` and ``std`` are given. Labels are
    integers (n,) from 0.

    Args:
        path: npz file with the arrays ``train_x``, ``train_y``, ``test_x``, ``test_y`` and optionally
            ``train_groups``; not together with ``train``, ``test`` and ``groups``.
        train: inputs and labels of the training set, tensors or arrays.
        test: inputs and labels of the test set, tensors or arrays.
        groups: (n,) group (writer, speaker, device) that made each training example, integers or strings; for
            ``partition: Natural``.
        num_classes: C, the number of classes; by default 1 + the largest label.
        mean: mean of each channel of images in [0, 1]; for uint8 images only.
        std: standard deviation of each channel, above 0; for uint8 images only.
        augment: augmentations as for :class:`ImageData`; for uint8 images only.
        labelled: ``num_clients``, ``partition``, ``proxy_per_class`` and the other arguments of :class:`LabelledData`.

    Raises:
        ConfigurationError: both or neither of ``path`` and arrays are given, or an argument is outside its range; on
            loading, arrays are missing, of the wrong type or shape, or not finite.
    """

    places = ("path",)
    from_statistics = ("mean", "std", "num_classes")

    def __init__(
        self,
        path: str | None = None,
        train: Sequence[Any] | None = None,
        test: Sequence[Any] | None = None,
        groups: Any = None,
        num_classes: int | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        augment: Sequence[Augmentation] | Augmentation | None = None,
        **labelled: Unpack[Arrays],
    ) -> None:
        super().__init__(normalize=mean is not None, augment=augment, **labelled)
        pairs = [pair for pair in (train, test) if pair is not None]
        if len(pairs) != (0 if path else 2) or any(len(pair) != 2 for pair in pairs) or (path and groups is not None):
            raise ConfigurationError(
                "expected path (--data.path FILE.npz) or else train=(inputs, labels) and test=(inputs, labels), got "
                f"path={path!r} and {len(pairs)} of the two: give one or the other"
            )
        if num_classes is not None:
            check_at_least(1, num_classes=num_classes)
        if mean is not None or std is not None:
            self.mean, self.std = check_constants(mean, std, len(mean or std or ()))
        self.path = path
        self._given = dict(zip((*NAMES, GROUPS), (*train, *test, groups), strict=True)) if train and test else None
        self._num_classes = num_classes
        self._look: tuple[torch.dtype, torch.Size] | None = None  # type and shape of one training input, once loaded

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]  # known on loading only
        """C, the number of classes: as given, else 1 + the largest label."""
        occurring = np.unique(torch.cat([self._labels("train_y"), self._labels("test_y")]))
        count = self._num_classes or 1 + int(occurring[-1])
        empty = count - len(occurring)
        if empty > 0 and not self._num_classes:
            came = f"labels from {occurring[0]} to {occurring[-1]} make {count} classes, {empty} of them empty"
            rank_zero_warn(f"{came}: number the labels from 0, or set num_classes")
        return count

    @override
    def missing(self) -> str | None:
        if self.path is None or self._file().exists():
            return None
        return _unreadable(self._file(), "No such file or directory")

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Load the training or the test set: uint8 images or floats (n, ...), and int64 labels (n,)."""
        split = "train" if train else "test"
        inputs = self._inputs(f"{split}_x")
        labels = self._labels(f"{split}_y")
        look = (inputs.dtype, inputs.shape[1:])
        if train:
            self._look = look
            _warn_of_channels(inputs)
        elif self._look is not None and self._look != look:
            dtype, shape = self._look
            raise ConfigurationError(
                f"expected test inputs like the training inputs, {dtype} {tuple(shape)} each, got {inputs.dtype} "
                f"{tuple(inputs.shape[1:])}: give both the same type and shape"
            )
        return inputs, labels

    def groups(self) -> Tensor | None:
        """Return the (n,) number of each training example's group; None if no groups were given."""
        names = self._array(GROUPS)
        if names is None:
            return None
        examples = len(self._labels("train_y"))
        array = np.asarray(names)
        if array.shape != (examples,) or array.dtype.kind not in "iuSU":
            raise ConfigurationError(
                f"expected groups to be integers or strings ({examples},), one per training example, got {array.dtype} "
                f"{array.shape}: convert the groups"
            )
        return torch.from_numpy(np.unique(array, return_inverse=True)[1])

    def _inputs(self, name: str) -> Tensor:
        inputs = self._tensor(name)
        if inputs.dtype == torch.uint8 and inputs.ndim == 4:
            return inputs
        if not inputs.is_floating_point() or inputs.ndim < 2:
            raise ConfigurationError(
                f"expected {name} to be floats (n, ...) or uint8 images (n, C, H, W), got {inputs.dtype} "
                f"{tuple(inputs.shape)}: convert the inputs"
            )
        if self.augment or self.normalize:
            raise ConfigurationError(
                f"expected uint8 images (n, C, H, W) for mean, std and augment, got {inputs.dtype} in {name}: leave "
                "these arguments out, or give images as uint8"
            )
        inputs = inputs.to(torch.get_default_dtype())  # float32 ends at 3.4e38
        if inputs.numel() and not is_finite(inputs):
            rows = int((~inputs.flatten(1).isfinite().all(1)).sum())
            kind = f"finite as {inputs.dtype}"
            raise ConfigurationError(f"expected {name} to be {kind}, got nan or inf in {rows} rows: leave these out")
        return inputs

    def _labels(self, name: str) -> Tensor:
        labels = self._tensor(name)
        if labels.is_floating_point() or labels.dtype == torch.bool or labels.ndim != 1 or not len(labels):
            raise ConfigurationError(
                f"expected {name} to be integer labels (n,), n > 0, got {labels.dtype} {tuple(labels.shape)}: convert "
                "the labels"
            )
        return labels.long()

    def _tensor(self, name: str) -> Tensor:
        array = self._array(name)
        try:
            return torch.as_tensor(array)
        except (TypeError, ValueError, RuntimeError):
            kind = getattr(array, "dtype", type(array).__name__)
            raise ConfigurationError(f"expected {name} to be an array of numbers, got {kind}: convert it") from None

    def _array(self, name: str) -> Any:
        """Return one of the arrays by name; None for groups that were not given."""
        if self._given is not None:
            return self._given[name]
        path = self._file()
        try:
            with np.load(path, allow_pickle=False) as arrays:
                names = sorted(arrays.files)
                if name in names:
                    return arrays[name]
        except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            said = getattr(error, "strerror", None) or " ".join(str(error).split())
            reason = "a single array" if isinstance(error, TypeError) else said
            raise ConfigurationError(_unreadable(path, reason)) from None
        if name == GROUPS:
            return None
        raise ConfigurationError(
            f"expected {', '.join(NAMES)} and optionally {GROUPS} in {path}, got {', '.join(names) or 'nothing'}: "
            "rename the arrays"
        )

    def _file(self) -> Path:
        return Path(str(self.path)).expanduser().absolute()

    def _checked(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if inputs.dtype != torch.uint8:
            return LabelledData._checked(self, inputs, targets)
        if not self.normalize:  # no mean was given, but ImageData counts the channels by the mean
            self.mean = (0.0,) * inputs.shape[1]
        return super()._checked(inputs, targets)


def _warn_of_channels(images: Tensor) -> None:
    """Warn of bytes (n, H, W, C), which are read as images (n, C, H, W) of H channels."""
    _, channels, height, width = images.shape if images.ndim == 4 else (0, 0, 0, 0)
    if images.dtype == torch.uint8 and width in (1, 3) and channels not in (1, 3):
        rank_zero_warn(
            f"bytes {tuple(images.shape)} are images of {channels} channels and {height}x{width} pixels: "
            "transpose(0, 3, 1, 2) moves channels that come last"
        )


def _unreadable(path: Path, reason: str) -> str:
    return f"expected an npz file of plain arrays in {path}, got {reason!r}: write the file with numpy.savez"
