"""Source: a training or a test set as it comes, before it is dealt to clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from fl_lightning.engine.federation.batches import Examples
from fl_lightning.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Source:
    """A training or a test set of n examples: their classes, and how those are read that a run uses.

    Attributes:
        count: n, the number of examples.
        take: function that reads the examples of rows (m,), which ascend; m may be 0. Its second argument holds targets
            (n, ...) that take the place of the examples' own, or is None.
        targets: (n, ...) target of each example; None where examples hold them.
        classes: (n,) int64 class of each example; None for data without classes.
        is_kept_whole: whether a run keeps all examples, whichever it uses, since they are in memory already or are read
            one by one, whenever they are used.
    """

    count: int
    take: Callable[[Tensor, Tensor | None], Examples]
    targets: Tensor | None = None
    classes: Tensor | None = None
    is_kept_whole: bool = True

    def read_whole(self) -> "Source":
        """Read all examples, and return them as a source in memory."""
        if self.is_kept_whole:
            return self
        examples = self.take(torch.arange(self.count), None)
        if not isinstance(examples, TensorDataset):
            return self
        inputs, targets = examples.tensors
        return of_tensors(inputs, targets, self.classes)

    def among(self, mask: Tensor, targets: Tensor | None = None) -> Examples:
        """Read the examples for which a mask (n,) is true, with other targets (n, ...) if given."""
        return self.take(mask.nonzero().flatten(), targets)


def of_tensors(inputs: Tensor, targets: Tensor, classes: Tensor | None) -> Source:
    """Make a source of inputs (n, ...), targets (n, ...) and classes (n,) in memory.

    Where all examples are used, they are not copied.
    """

    def read(rows: Tensor) -> Tensor:
        return inputs if len(rows) == len(inputs) else inputs[rows]

    return to_read(read, targets, classes, is_kept_whole=True)


def to_read(
    read: Callable[[Tensor], Tensor], targets: Tensor, classes: Tensor | None, is_kept_whole: bool = False
) -> Source:
    """Make a source of targets (n, ...), and of inputs that are read once it is known which of them a run uses.

    Args:
        read: function that reads the inputs (m, ...) of the examples in rows (m,), which ascend; m may be 0.
        targets: the targets.
        classes: (n,) class of each example; None for data without classes.
        is_kept_whole: whether reading only selects what is in memory.
    """

    def take(rows: Tensor, others: Tensor | None) -> TensorDataset:
        chosen = targets if others is None else others
        return TensorDataset(read(rows), chosen if len(rows) == len(targets) else chosen[rows])

    return Source(count=len(targets), take=take, targets=targets, classes=classes, is_kept_whole=is_kept_whole)


def of_examples(examples: Examples, classes: Tensor | None, label: str | int | None = None) -> Source:
    """Make a source of a map-style dataset, whose examples are read whenever they are used.

    Args:
        examples: the dataset.
        classes: (n,) class of each example; None for data without classes.
        label: entry of an example that holds its class, by which labels are changed; None if it is none.
    """
    dataset: Any = examples

    def take(rows: Tensor, others: Tensor | None) -> Examples:
        changed: Any = dataset if others is None else relabelled(dataset, others, label)
        return changed if len(rows) == len(dataset) else Subset(changed, rows.tolist())

    return Source(count=len(examples), take=take, targets=classes, classes=classes)


def relabelled(examples: Any, labels: Tensor, label: str | int | None) -> Examples:
    """Return the examples of a dataset with other labels (n,), in the entry ``label``."""
    if label is None:
        raise ConfigurationError(
            "corruption changes labels from 0 in a known entry of the examples, got others: give examples (input, "
            "label), or name the column of classes by label"
        )
    if isinstance(examples, TensorDataset):
        tensors = list(examples.tensors)
        tensors[int(label)] = labels
        return TensorDataset(*tensors)
    return _Relabelled(examples, labels, label)


class _Relabelled(Dataset[Any]):
    def __init__(self, examples: Examples, labels: Tensor, label: str | int) -> None:
        self.examples, self.labels, self.label = examples, labels, label

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Any:
        example = self.examples[index]
        if isinstance(example, Mapping):
            return {**example, self.label: self.labels[index]}
        entries = list(example)
        entries[int(self.label)] = self.labels[index]
        return tuple(entries)


NOTHING = of_tensors(torch.empty(0), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
"""The test set of data without a test set."""
