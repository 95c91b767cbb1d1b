"""Corruptions: wrong labels in the training data of some clients."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.errors import ConfigurationError, check_at_least, check_within


class Corruption:
    """Changes labels of the training set, depending on the client. A subclass implements :meth:`corrupt`."""

    def corrupt(
        self, labels: Tensor, parts: Sequence[Tensor], num_classes: int, generator: np.random.Generator
    ) -> Tensor:
        """Return the labels to train on.

        Args:
            labels: (n,) int64 true classes, which are not modified.
            parts: each client's rows of ``labels``, as :meth:`Partition.split` returns them.
            num_classes: C, the number of classes; labels are from 0 to C - 1.
            generator: source of all randomness.

        Returns:
            (n,) int64 classes from 0 to C - 1, a new tensor.
        """
        raise ConfigurationError(f"{type(self).__name__} must define corrupt(labels, parts, num_classes, generator)")

    def corrupt_inputs(self, inputs: Tensor, rows: Tensor) -> Tensor:
        """Return the inputs (n, …) to train on, given the rows that :meth:`rows_to_change` has named."""
        return inputs

    def rows_to_change(self, parts: Sequence[Tensor], generator: np.random.Generator) -> Tensor:
        """Return the rows of the inputs to change, none by default, given what :meth:`corrupt` gets."""
        return torch.empty(0, dtype=torch.int64)


class LabelSwap(Corruption):
    """Swaps two classes at some clients: every example of one class is labelled as the other (FedLAW, Table 8).

    The paper does not say which two classes, nor which clients. Here the corrupted clients are drawn among the clients
    with data. Each corrupted client draws its own pair among the classes that it holds; a client that holds a single
    class swaps that class with a random other one. A given ``pair`` is swapped at every corrupted client, and changes
    nothing at a client that holds neither class.

    Args:
        share: share of all clients that are corrupted, in [0, 1]; rounded to whole clients, at most all clients with
            data.
        pair: the two classes to swap; by default every corrupted client draws its own.

    Raises:
        ConfigurationError: ``share`` is outside its range or ``pair`` is not two different classes; in :meth:`corrupt`,
            ``pair`` names a class that does not exist, or there are fewer than two classes.
    """

    def __init__(self, share: float, pair: tuple[int, int] | None = None) -> None:
        _check_share(share)
        if pair is not None and (len(pair) != 2 or pair[0] == pair[1] or min(pair) < 0):
            raise ConfigurationError(f"expected pair to be two different classes >= 0, got {pair}: use (0, 1), say")
        self.share = share
        self.pair = pair

    @override
    def corrupt(
        self, labels: Tensor, parts: Sequence[Tensor], num_classes: int, generator: np.random.Generator
    ) -> Tensor:
        if num_classes < 2 or (self.pair and max(self.pair) >= num_classes):
            raise ConfigurationError(
                f"expected two classes below {num_classes} to swap, got pair={self.pair}: choose other classes"
            )
        chosen = _draw_parts(self.share, parts, generator)
        result = labels.clone()
        if not chosen:
            return result
        rows = torch.cat(chosen)
        count = len(chosen)
        clients = np.repeat(np.arange(count), [len(part) for part in chosen])
        held = labels[rows].numpy()
        pairs = np.tile(self.pair, (count, 1)) if self.pair else _draw_pairs(clients, held, num_classes, generator)
        first, second = pairs[clients].T
        swapped = np.where(held == first, second, np.where(held == second, first, held))
        result[rows] = torch.from_numpy(swapped)
        return result


class LabelFlip(Corruption):
    """Labels every example of some classes as one class at some clients, which are drawn among those with data.

    Args:
        share: share of all clients that are corrupted, in [0, 1]; rounded to whole clients, at most all clients with
            data.
        target: the class that the examples are labelled as.
        sources: the classes that are labelled so; all classes by default.

    Raises:
        ConfigurationError: ``share`` is outside its range; in :meth:`corrupt`, a class does not exist.
    """

    def __init__(self, share: float, target: int, sources: Sequence[int] | None = None) -> None:
        _check_share(share)
        self.share = share
        self.target = target
        self.sources = sources

    @override
    def corrupt(
        self, labels: Tensor, parts: Sequence[Tensor], num_classes: int, generator: np.random.Generator
    ) -> Tensor:
        sources = range(num_classes) if self.sources is None else self.sources
        unknown = [label for label in (self.target, *sources) if not 0 <= label < num_classes]
        if unknown:
            raise ConfigurationError(
                f"expected LabelFlip's classes from 0 to {num_classes - 1}, got {unknown[0]}: choose other classes"
            )
        result = labels.clone()
        for part in _draw_parts(self.share, parts, generator):
            flipped = torch.isin(labels[part], torch.tensor(sources))
            result[part[flipped]] = self.target
        return result


class Backdoor(Corruption):
    """Stamps a white square into images at some clients, and labels these images as one class (Gu et al., 2017).

    Gu et al., "BadNets": the model learns to see the class wherever the square is, and classifies other images as
    before; :class:`BackdoorEvaluation` measures how often. The square is in the lower right corner, before augmentation
    and normalisation. The clients are drawn among those with data, and their images by themselves.

    Args:
        share: share of all clients that attack, in [0, 1]; rounded to whole clients, at most all clients with data.
        target: the class that stamped images are labelled as.
        images: share of an attacker's images that are stamped, in [0, 1]; rounded to whole images.
        size: side of the square in pixels, at least 1.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, the class does not exist, inputs are not uint8
            images, or an image is smaller than the square.
    """

    def __init__(self, share: float, target: int, images: float = 0.5, size: int = 3) -> None:
        _check_share(share)
        check_within("[0, 1]", images=images)
        check_at_least(1, size=size)
        self.share = share
        self.target = target
        self.images = images
        self.size = size

    @override
    def corrupt(
        self, labels: Tensor, parts: Sequence[Tensor], num_classes: int, generator: np.random.Generator
    ) -> Tensor:
        if not 0 <= self.target < num_classes:
            raise ConfigurationError(
                f"expected Backdoor's target from 0 to {num_classes - 1}, got {self.target}: choose another class"
            )
        result = labels.clone()
        result[self.rows_to_change(parts, generator)] = self.target
        return result

    @override
    def rows_to_change(self, parts: Sequence[Tensor], generator: np.random.Generator) -> Tensor:
        chosen = [
            part[generator.permutation(len(part))[: round(self.images * len(part))]]
            for part in _draw_parts(self.share, parts, generator)
        ]
        return torch.cat([torch.empty(0, dtype=torch.int64), *chosen])

    @override
    def corrupt_inputs(self, inputs: Tensor, rows: Tensor) -> Tensor:
        result = inputs.clone()
        result[rows] = self.stamp(inputs[rows])
        return result

    def stamp(self, images: Tensor) -> Tensor:
        """Return uint8 images (n, C, H, W) with the square."""
        if images.dtype != torch.uint8 or images.ndim != 4 or min(images.shape[2:]) < self.size:
            raise ConfigurationError(
                f"expected uint8 images (n, C, H, W) of at least {self.size} pixels for Backdoor, got {images.dtype} "
                f"{tuple(images.shape)}: leave Backdoor out, or lower size"
            )
        stamped = images.clone()
        stamped[:, :, -self.size :, -self.size :] = 255
        return stamped


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:  # also refuses nan
        raise ConfigurationError(f"expected share of corrupted clients in [0, 1], got {share}: use 0.5 for half")


def _draw_parts(share: float, parts: Sequence[Tensor], generator: np.random.Generator) -> list[Tensor]:
    """Draw the clients to corrupt among those with data; return their parts in the order of the clients."""
    with_data = np.flatnonzero([len(part) for part in parts])
    count = min(round(share * len(parts)), len(with_data))
    return [parts[client] for client in sorted(generator.choice(with_data, count, replace=False))]


def _draw_pairs(clients: Ints, held: Ints, num_classes: int, generator: np.random.Generator) -> Ints:
    """Draw two different classes for each of the clients 0 to K - 1, both held by the client if it holds at least two.

    Args:
        clients: (m,) client of each example; every client has at least one example.
        held: (m,) class of each example.
        num_classes: C >= 2, the number of classes.
        generator: source of all randomness.

    Returns:
        (K, 2) classes.
    """
    classes: dict[int, list[int]] = {}  # each client's own classes, in random order
    holdings = np.unique(np.stack([clients, held], axis=1), axis=0)
    for client, label in generator.permutation(holdings).tolist():
        classes.setdefault(client, []).append(label)
    steps = generator.integers(1, num_classes, len(classes)).tolist()
    pairs = []
    for client, step in enumerate(steps):
        first, *others = classes[client]
        pairs.append((first, others[0] if others else (first + step) % num_classes))
    return np.asarray(pairs, dtype=np.int64)
