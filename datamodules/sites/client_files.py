"""ClientFiles: examples that come by client, each with training and test examples of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.datamodules.base.settings import Images, Unpack
from fl_lightning.datamodules.files.npz_clients import Clients
from fl_lightning.datamodules.images.image_data import ImageData
from fl_lightning.datamodules.images.image_folder import CONSTANTS, measure
from fl_lightning.errors import ConfigurationError, check_at_least

EXACT = 1e-3  # how far from a whole number a grey level may be: floats are rounded


@dataclass(frozen=True)
class Examples:
    """The examples of all clients, in the order of the clients."""

    names: list[str]  # (n,) the client of each example
    inputs: NDArray[Any]  # (n, ...)
    targets: NDArray[np.int64]  # (n,)


class ClientFiles(ImageData):
    """Examples that other software has dealt to clients. A subclass defines :meth:`read`.

    Unless a partition is given, the clients are those of the files, with their names, and each evaluates on its own
    test examples. Images (n, C, H, W) of floats that are exact multiples of 1/255 in [0, 1], or such multiples spread
    over [-1, 1], become bytes again, and are normalised by the mean and the standard deviation of each channel of the
    training images, as the shipped data sets are. Vectors of 784 floats are images of 28x28. Other floats stay as they
    are; whole numbers become int64 tokens.

    Args:
        root: folder of the data set.
        num_classes: C, the number of classes; by default 1 + the largest target.
        images: ``partition``, ``augment``, ``normalize`` and the other arguments of :class:`ImageData`; ``augment``
            for images alone.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, files are missing or damaged, a client has
            test examples alone, or inputs differ in shape.
    """

    def __init__(self, root: str, num_classes: int | None = None, **images: Unpack[Images]) -> None:
        super().__init__(**images)
        if num_classes is not None:
            check_at_least(1, num_classes=num_classes)
        self.root = root
        self._num_classes = num_classes

    def read(self, train: bool) -> Clients:
        """Read the training or the test examples: of each client by name, inputs (n, ...) and targets (n,)."""
        raise ConfigurationError(f"{type(self).__name__} must define read(train)")

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]  # known on loading only
        """C, the number of classes: as given, else 1 + the largest target."""
        return self._num_classes or 1 + max(int(targets.max()) for _, targets in self._tensors.values())

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Load the training or the test set: uint8 images, floats or int64 tokens (n, ...), and int64 labels (n,)."""
        return self._tensors[train]

    def clients(self, train: bool) -> Sequence[str]:
        """Return the name (n,) of each example's client, in the training or in the test set."""
        return self._sets[train].names

    @property
    def measured(self) -> Mapping[str, str]:  # type: ignore[override]  # known on loading only
        """Mean and standard deviation of images that are normalised by those of their channels."""
        are_images = self._tensors[True][0].dtype == torch.uint8
        return {CONSTANTS: "set normalize to false or to two numbers"} if self.normalize is True and are_images else {}

    @property
    def folder(self) -> Path:
        """The folder of the data set, absolute."""
        return Path(self.root).expanduser().absolute()

    @cached_property
    def _sets(self) -> dict[bool, Examples]:
        """The training (True) and the test set (False) as they were read."""
        clients = {train: self.read(train) for train in (True, False)}
        strangers = sorted(clients[False].keys() - clients[True].keys())
        if strangers:
            raise ConfigurationError(
                f"expected each client of {self.folder} to have training examples, got test examples alone for "
                f"{strangers[0]!r}: split the examples of each client, not the clients"
            )
        shapes: dict[tuple[int, ...], str] = {}
        sets = {train: join(clients[train], shapes) for train in (True, False)}
        if len(shapes) > 1:
            (shape, name), (other, stranger), *_ = shapes.items()
            raise ConfigurationError(
                f"expected inputs of one shape in {self.folder}, got {shape} for client {name!r} and {other} for "
                f"client {stranger!r}: make them equal"
            )
        return sets

    @cached_property
    def _tensors(self) -> dict[bool, tuple[Tensor, Tensor]]:
        """The inputs and targets of the training (True) and of the test set (False)."""
        sets = self._sets
        train, test = as_inputs(sets[True].inputs, sets[False].inputs)
        if train.dtype == torch.uint8:
            self.mean, self.std = (0.0,) * train.shape[1], (1.0,) * train.shape[1]  # until they are measured
        elif self.augment:
            raise ConfigurationError(
                f"expected images for augment, got {train.dtype} {tuple(train.shape)} in {self.folder}: leave "
                "augment out"
            )
        pairs = {True: train, False: test}
        return {train: (inputs, torch.from_numpy(sets[train].targets)) for train, inputs in pairs.items()}

    @override
    def measure_inputs(self, inputs: Tensor, trained: Tensor) -> None:
        if inputs.dtype == torch.uint8:
            self.mean, self.std = measure(inputs, trained)

    def _checked(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if inputs.dtype != torch.uint8:
            return LabelledData._checked(self, inputs, targets)
        return super()._checked(inputs, targets)


def join(clients: Clients, shapes: dict[tuple[int, ...], str]) -> Examples:
    """Join the examples of the clients in the order of their names.

    Args:
        clients: inputs and targets of each client.
        shapes: the shapes of single inputs seen so far, each with the first client that has it; new ones are added.
    """
    names: list[str] = []
    inputs: list[NDArray[Any]] = []
    targets: list[NDArray[np.int64]] = []
    for name, (own_inputs, own_targets) in sorted(clients.items()):
        array, labels = np.asarray(own_inputs), np.asarray(own_targets)
        if array.dtype.kind not in "iuf" or labels.dtype.kind not in "iuf" or labels.shape != array.shape[:1]:
            raise ConfigurationError(
                f"expected numbers x (n, ...) and y (n,) of client {name!r}, got {array.dtype} {array.shape} and "
                f"{labels.dtype} {labels.shape}: convert them"
            )
        whole = labels.astype(np.int64)
        if (whole != labels).any() or (labels < 0).any():
            raise ConfigurationError(f"expected classes 0, 1, … as y of client {name!r}, got others: number them so")
        if len(labels):
            shapes.setdefault(array.shape[1:], name)
            names += [name] * len(labels)
            inputs.append(array)
            targets.append(whole)
    if not names:
        raise ConfigurationError("expected examples in the training and the test set, got none in one: add some")
    if len(shapes) > 1:  # refused by the caller, which knows the folder
        return Examples(names, inputs[0], targets[0])
    return Examples(names, np.concatenate(inputs), np.concatenate(targets))


def as_inputs(train: NDArray[Any], test: NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Turn the inputs of both sets into tensors of one kind: uint8 images (n, C, H, W), floats or int64 tokens.

    Raises:
        ConfigurationError: a float is not finite.
    """
    arrays = [_in_channels(array) for array in (train, test)]
    if all(array.dtype.kind in "iu" for array in arrays):
        are_images = all(array.dtype == np.uint8 and array.ndim == 4 for array in arrays)
        kind = np.uint8 if are_images else np.int64
        whole = [torch.from_numpy(np.ascontiguousarray(array, dtype=kind)) for array in arrays]
        return whole[0], whole[1]
    for low in (0, -1):  # what black is
        grey = [_bytes(array, low) for array in arrays]
        if grey[0] is not None and grey[1] is not None:
            return torch.from_numpy(grey[0]), torch.from_numpy(grey[1])
    for array in arrays:
        if not np.isfinite(array).all():
            raise ConfigurationError("expected inputs to be finite, got nan or inf: leave these examples out")
    floats = [torch.from_numpy(np.ascontiguousarray(array)).to(torch.get_default_dtype()) for array in arrays]
    return floats[0], floats[1]


def _in_channels(array: NDArray[Any]) -> NDArray[Any]:
    """Turn images (n, H, W, C) of 1 or 3 channels into (n, C, H, W), and vectors of 784 floats into (n, 1, 28, 28)."""
    if array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        return array.transpose(0, 3, 1, 2)
    if array.shape[1:] == (784,) and array.dtype.kind == "f":
        return array.reshape(-1, 1, 28, 28)
    return array


def _bytes(images: NDArray[Any], low: int) -> NDArray[np.uint8] | None:
    """Return images (n, C, H, W) of floats in [low, 1] as bytes; None if they are none of 256 levels of the range."""
    if images.ndim != 4 or images.dtype.kind != "f" or not (images.min() >= low and images.max() <= 1):
        return None
    levels = (images - low) * (255 / (1 - low))
    grey = np.rint(levels)
    return grey.astype(np.uint8) if np.abs(levels - grey).max() < EXACT else None
