"""ClientFiles: examples that come by client, each with training and test examples of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.datamodules.base.settings import Images, Unpack
from fl_lightning.datamodules.changes.constants import CONSTANTS, measure
from fl_lightning.datamodules.files.npz_clients import Clients
from fl_lightning.datamodules.images.image_data import ImageData
from fl_lightning.datamodules.sites.arrays import MEANINGS, Meaning, Tokens, array_of, as_tensors
from fl_lightning.errors import ConfigurationError, check_at_least, check_choice
from fl_lightning.later import later


@dataclass(frozen=True)
class Examples:
    """The examples of all clients, in the order of the clients."""

    names: list[str]  # (n,) the client of each example
    inputs: NDArray[Any]  # (n, ...)
    targets: NDArray[np.int64]  # (n,)
    are_tokens: bool  # whether the reader of the files knows so


class ClientFiles(ImageData):
    """Examples that other software has dealt to clients. A subclass defines :meth:`read`.

    Unless a partition is given, the clients are those of the files, with their names, and each evaluates on its own
    test examples; a warning counts those without any example. What the software's own data sets hold is known. Images
    (n, C, H, W) of bytes, or of floats that are exact multiples of 1/255 in [0, 1], or such multiples spread over
    [-1, 1], are kept as bytes, and are normalised by the mean and the standard deviation of each channel of the
    training images, as the shipped data sets are. Other floats stay as they are. Arrays that can mean several things
    are refused until ``inputs`` names one: whole numbers that may be pixels or tokens, channels that may be first or
    last, vectors of 784 that may be images of 28x28.

    Args:
        root: folder of the data set.
        num_classes: C, the number of classes; by default 1 + the largest target.
        inputs: the meaning of the arrays: "images" (n, C, H, W), or flat ones of 28x28, of floats or of whole numbers
            from 0 to 255; "channels_last" for images (n, H, W, C); "tokens", whole numbers from 0, which become int64;
            or "numbers", which become floats and stay as they are. None for what the software itself writes.
        images: ``partition``, ``augment``, ``normalize`` and the other arguments of :class:`ImageData`; ``augment``
            for images alone.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, files are missing or damaged, a client has
            test examples alone, inputs differ in type or shape, or can mean several things.
    """

    places = ("root",)
    from_statistics = ("num_classes",)

    @later(inputs=None)
    def __init__(
        self,
        root: str,
        num_classes: int | None = None,
        inputs: Meaning | None = None,
        **images: Unpack[Images],
    ) -> None:
        super().__init__(**images)
        if num_classes is not None:
            check_at_least(1, num_classes=num_classes)
        check_choice("inputs", inputs, None, *MEANINGS)
        self.root = root
        self.inputs = inputs
        self._num_classes = num_classes

    def read(self, train: bool) -> Clients:
        """Read the training or the test examples: of each client by name, inputs (n, ...) and targets (n,).

        Where the software's own data sets are known, and ``self.inputs`` names nothing else, images have the shape
        (n, C, H, W), and tokens are :class:`Tokens`.
        """
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
        check_clients(clients[True], clients[False], self.folder)
        looks: dict[str, str] = {}
        sets = {train: join(clients[train], looks) for train in (True, False)}
        if len(looks) > 1:
            (look, name), (other, stranger), *_ = looks.items()
            raise ConfigurationError(
                f"expected inputs of one type and shape in {self.folder}, got {look} for client {name!r} and {other} "
                f"for client {stranger!r}: make them equal"
            )
        if sets[True].are_tokens and self.inputs not in (None, "tokens"):
            raise ConfigurationError(f"expected inputs: tokens for the texts in {self.folder}, got {self.inputs}")
        return sets

    @cached_property
    def _tensors(self) -> dict[bool, tuple[Tensor, Tensor]]:
        """The inputs and targets of the training (True) and of the test set (False)."""
        sets = self._sets
        meaning = "tokens" if sets[True].are_tokens else self.inputs
        train, test = as_tensors(sets[True].inputs, sets[False].inputs, meaning)
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


def check_clients(train: Clients, test: Clients, folder: Path) -> None:
    """Refuse clients that have test examples alone; count those that have no examples at all in a warning."""
    names = train.keys() | test.keys()
    training = {name for name, (_, targets) in train.items() if array_of(targets, name).size}
    testing = {name for name, (_, targets) in test.items() if array_of(targets, name).size}
    strangers = sorted(testing - training)
    if strangers:
        raise ConfigurationError(
            f"expected each client of {folder} to have training examples, got test examples alone for "
            f"{strangers[0]!r}: split the examples of each client, not the clients"
        )
    empty = sorted(names - training)
    if empty:
        rank_zero_warn(
            f"{len(empty)} of {len(names)} clients of {folder} have neither training nor test examples, such as "
            f"{empty[0]}: they are left out"
        )


def join(clients: Clients, looks: dict[str, str]) -> Examples:
    """Join the examples of the clients in the order of their names.

    Args:
        clients: inputs and targets of each client.
        looks: the types and shapes of single inputs seen so far, each with the first client that has it; new ones are
            added. Where there are several, the inputs of one client are returned.
    """
    names: list[str] = []
    inputs: list[NDArray[Any]] = []
    targets: list[NDArray[np.int64]] = []
    are_tokens = False
    for name, (own_inputs, own_targets) in sorted(clients.items()):
        labels = array_of(own_targets, name)
        if not labels.size:
            continue
        are_tokens = isinstance(own_inputs, Tokens)
        array = own_inputs.numbers if isinstance(own_inputs, Tokens) else array_of(own_inputs, name)
        if array.dtype.kind not in "iuf" or labels.dtype.kind not in "iuf" or labels.shape != array.shape[:1]:
            raise ConfigurationError(
                f"expected numbers x (n, ...) and y (n,) of client {name!r}, got {array.dtype} {array.shape} and "
                f"{labels.dtype} {labels.shape}: convert them"
            )
        with np.errstate(invalid="ignore"):  # of floats beyond int64
            whole = labels.astype(np.int64)
        if (whole != labels).any() or (labels < 0).any():
            raise ConfigurationError(f"expected classes 0, 1, … as y of client {name!r}, got others: number them so")
        kind = "floats" if array.dtype.kind == "f" else "whole numbers"
        looks.setdefault(f"{'tokens' if are_tokens else kind} {array.shape[1:]}", name)
        names += [name] * len(labels)
        inputs.append(array)
        targets.append(whole)
    if not names:
        raise ConfigurationError("expected examples in the training and the test set, got none in one: add some")
    if len(looks) > 1:  # refused by the caller, which knows the folder
        return Examples(names, inputs[0], targets[0], are_tokens)
    return Examples(names, np.concatenate(inputs), np.concatenate(targets), are_tokens)
