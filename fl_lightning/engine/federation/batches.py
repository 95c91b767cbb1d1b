"""A client's batches: gathered from tensors, in memory or on the device, or read example by example with seeds."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fl_lightning.errors import ConfigurationError
from fl_lightning.seeding import derive, isolated, seed_globals

CPU = torch.device("cpu")
COPIED_BYTES = 1 << 30  # bytes for copies of datasets on devices whose free memory is unknown

Collate = Callable[[list[Any]], Any]
"""A function that makes a batch from a list of examples."""


class TrainingBatch(list[Any]):
    """A batch of training examples from memory, which transfer hooks may augment. Other batches are plain lists."""


class Rows(NamedTuple):
    """The examples that a client takes of a dataset in memory, one local epoch after another.

    Attributes:
        dataset: the dataset, which may hold the examples of all clients.
        rows: the row numbers, in the order in which they are taken.
        each: number of examples in an epoch.
        size: number of examples in a batch; the last one of an epoch has the rest.
    """

    dataset: TensorDataset
    rows: Tensor
    each: int
    size: int


class Examples(Protocol):
    """A map-style dataset: examples by index, and a length."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def check_examples(dataset: Any, source: str) -> Examples:
    """Refuse a dataset without a length or without examples by index; return the dataset.

    Args:
        dataset: anything.
        source: the expression that gave the dataset, for the message.

    Raises:
        ConfigurationError: the dataset is an IterableDataset, or lacks ``__len__`` or ``__getitem__``.
    """
    kind = type(dataset)
    reads = getattr(kind, "__getitem__", None)
    if isinstance(dataset, IterableDataset) or not hasattr(kind, "__len__") or reads in (None, Dataset.__getitem__):
        raise ConfigurationError(
            f"expected {source} to be a dataset with __len__ and __getitem__, such as TensorDataset, Subset or a list "
            f"of examples, got {kind.__name__}: read an iterable into a list; in place of a loader, give its dataset"
        )
    checked: Examples = dataset
    return checked


def in_memory(dataset: Any, indices: Tensor) -> tuple[TensorDataset, Tensor] | None:
    """Find rows ``indices`` of a dataset in memory: the TensorDataset that it is a Subset of, and the rows there."""
    if type(dataset) is Subset:
        return in_memory(dataset.dataset, take(torch.as_tensor(dataset.indices), indices))
    return (dataset, indices) if type(dataset) is TensorDataset else None


def gather(dataset: TensorDataset, rows: Tensor, size: int) -> list[TrainingBatch]:
    """Gather rows of a dataset once, and split them into batches of ``size``, the last one with the rest."""
    parts = (torch.split(take(tensor, rows), size) for tensor in dataset.tensors)
    return list(map(TrainingBatch, zip(*parts, strict=True)))


def take(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a tensor, as ``tensor[rows]``, but for tensors of bytes twenty times as fast."""
    try:
        return tensor.index_select(0, rows)
    except (IndexError, RuntimeError):  # negative numbers, or none of this tensor's, which the next line names
        return tensor[rows]


class SeededBatches(Dataset[Any]):
    """The batches of one epoch, as a dataset that a DataLoader with any number of workers may read.

    Random numbers that an example draws depend on the seed and the example's index alone, those that ``collate`` draws
    on the seed and the number of the batch.

    Args:
        examples: the dataset.
        indices: (n,) indices of the examples in the epoch's order, n >= 1.
        batch_size: number of examples in a batch; the last batch may be smaller.
        seed: the seed of the epoch.
        collate: makes a batch from its examples.
    """

    def __init__(self, examples: Examples, indices: Tensor, batch_size: int, seed: int, collate: Collate) -> None:
        self.examples = examples
        self.seed = seed
        self.collate = collate
        self.batches = torch.split(indices, batch_size)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Any:
        with isolated(CPU):
            examples = [self._example(index) for index in self.batches[number].tolist()]
            seed_globals(derive(self.seed, "batch", number), CPU)
            return self.collate(examples)

    def _example(self, index: int) -> Any:
        seed_globals(derive(self.seed, "item", index), CPU)
        return self.examples[index]


def batch_sizes(batches: Any) -> list[int]:
    """Numbers of examples in a loader's batches as :class:`SeededBatches` deals them; empty for other batches."""
    dataset = getattr(batches, "dataset", None)
    if not isinstance(dataset, SeededBatches):
        return []
    return [len(indices) for indices in dataset.batches]


class ResidentData:
    """Keeps copies of datasets on a device, as long as they fit into a quarter of the device memory that was free.

    A copy is made anew for a dataset whose tensors have changed.

    Args:
        device: the device, not a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._left = torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else COPIED_BYTES
        # By the memory of the original's tensors: the original, and its copy.
        self._copies: dict[Any, tuple[TensorDataset, TensorDataset]] = {}

    def place(self, dataset: TensorDataset, rows: Tensor) -> tuple[TensorDataset, Tensor] | None:
        """Return a dataset's copy on the device, and row numbers (n,) there.

        Returns:
            The copy and the row numbers; None if there is no room, or if a row number does not count from the top.
        """
        low, high = torch.aminmax(rows)
        if low < 0 or high >= len(dataset):
            return None
        copy = self._copy(dataset)
        return None if copy is None else (copy, rows.to(self._device))

    def _copy(self, dataset: TensorDataset) -> TensorDataset | None:
        key = tuple((t.data_ptr(), t.shape, t.stride(), t.dtype, t._version) for t in dataset.tensors)
        if key not in self._copies:
            size = sum(tensor.nbytes for tensor in dataset.tensors)
            if size > self._left:
                return None
            self._left -= size
            copy = TensorDataset(*(tensor.to(self._device) for tensor in dataset.tensors))
            self._copies[key] = dataset, copy
        return self._copies[key][1]
