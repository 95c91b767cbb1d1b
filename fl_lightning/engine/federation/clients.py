"""ClientData: the part of the data module that holds the clients: their names, examples and batches."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import ceil
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from fl_lightning.engine.federation.batches import CPU, Examples, SeededBatches, check_examples, gather, in_memory
from fl_lightning.engine.federation.raw import RawInputs
from fl_lightning.errors import ConfigurationError, check_at_least
from fl_lightning.seeding import isolated, seed_globals

TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
LOADERS = ("val_dataloader", "test_dataloader", "predict_dataloader")
SAMPLED_CLIENTS = 16  # largest number of clients whose examples (two of each client) are in a fingerprint


class ClientData(LightningDataModule):
    """Holds the clients: their names, their training examples, and the batches on which they train.

    Attributes:
        num_clients: N, the number of clients that train.
        num_new: number of clients that never train, whose numbers are N, N + 1, …
        client_names: different names of the clients, the new ones last, for messages, tables and plots; None for
            numbers alone.
        leave_out: names of the domains that do not train.
        batch_size: number of examples in a client's batch.
        num_workers: number of DataLoader processes for a client's data; unused for tensors in memory.
        drop_last: whether to leave out a client's last batch if it is smaller than the others.
        collate_fn: function that makes a client's batch from a list of its examples; None for PyTorch's own.
        measured: names of what is measured on the training examples of all clients, such as "mean and std", each with
            what to set in its place; private rules refuse it, since it has no noise.
    """

    num_clients: int
    num_new: int = 0
    client_names: Sequence[str] | None = None
    leave_out: Sequence[str] = ()
    batch_size: int
    num_workers: int
    drop_last: bool
    collate_fn: Callable[[list[Any]], Any] | None
    measured: Mapping[str, str] = MappingProxyType({})

    #: Which of the arguments ``mean``, ``std``, ``classes`` and ``num_classes`` the class takes from the statistics of
    #: all sites' data.
    from_statistics: ClassVar[Sequence[str]] = ()

    _borrowed: Sequence[str] = ()  # loaders of the client module that stand in for the data module's own
    _replaced: Mapping[str, Any] = {}  # attributes of this instance that these replace

    #: Whether the transfer hooks treat each example of a batch alone, so that the batches of several clients may go
    #: through them together; a subclass that overrides a transfer hook must set this attribute again.
    by_example: ClassVar[bool] = False

    #: Whether ``client_batches`` returns the batches of ``epoch_rows``; a subclass that overrides
    #: ``client_batches`` must set this attribute again.
    in_rows: ClassVar[bool] = True

    @property
    def named(self) -> "ClientData":
        """The data module that a config names, or a user has written: this one, unless this one stands for another."""
        return self

    def client_label(self, client: int) -> str:
        """Write a client for a message: "3", or "3 (oslo)" for a client with a name."""
        name = str(client if self.client_names is None else self.client_names[client])
        return name if name == str(client) else f"{client} ({name})"

    def client_dataset(self, client: int) -> Dataset[Any]:
        """Return the training examples of a client, 0 <= client < num_clients, as a map-style dataset with a length."""
        raise ConfigurationError(f"{type(self).__name__} must define client_dataset(client)")

    def has_examples(self, client: int) -> bool:
        """Tell whether a client's examples lie on this machine."""
        return True

    def client_num_samples(self, client: int) -> int:
        """Return n_k, the client's number of training examples."""
        return len(self._examples(client))

    @cached_property
    def sizes(self) -> Tensor:
        """(N,) numbers of training examples, one per client."""
        if not hasattr(self, "num_clients"):
            raise ConfigurationError(f"{type(self).__name__} has no num_clients: define it, or choose another")
        check_at_least(1, num_clients=self.num_clients)
        return torch.tensor([self.client_num_samples(k) for k in range(self.num_clients)])

    def size_of(self, client: int) -> int:
        """Return a client's number of training examples; of a new client, that of those that it may learn from."""
        return int(self.sizes[client]) if client < self.num_clients else self.client_num_samples(client)

    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of training examples per client and class, or None for data without classes."""
        return None

    def new_class_counts(self) -> Tensor | None:
        """Return the numbers (num_new, C) of new clients' examples, as :meth:`class_counts`."""
        return None

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that two runs share if they see the same data; see :func:`data_fingerprint`."""
        return data_fingerprint(self)

    def held_out_batches(self, client: int) -> Iterable[Any]:
        """Return batches of examples that the client keeps back from training for its evaluation; none by default."""
        return ()

    def raw_inputs(self, client: int) -> RawInputs | None:
        """Return the inputs on which a client trains, before they are scaled; None where they have no columns."""
        return None

    def domain_batches(self) -> Mapping[str, Iterable[Any]]:
        """Return batches of the test examples of each domain (photo, sketch), by its name; none by default."""
        return {}

    def proxy_dataloader(self) -> DataLoader[Any] | None:
        """Return a loader of the server's proxy set, for rules that learn on a proxy set; None without a proxy set."""
        return None

    def borrow_loaders(self, module: LightningModule | None) -> None:
        """Use a module's evaluation loaders where this data module defines none; drop those borrowed before.

        Args:
            module: the client module; None to only drop the loaders borrowed before.
        """
        for name in self._borrowed:
            del self.__dict__[name]
        self.__dict__.update(self._replaced)
        self._borrowed = [name for name in LOADERS if is_overridden(name, module) and not is_overridden(name, self)]
        self._replaced = {name: vars(self)[name] for name in self._borrowed if name in vars(self)}
        for name in self._borrowed:
            setattr(self, name, getattr(module, name))

    def num_batches(self, num_samples: int) -> int:
        """Return the number of batches in one epoch of a client with ``num_samples`` examples."""
        whole, rest = divmod(num_samples, self.batch_size)
        return whole + (rest > 0 and not (self.drop_last and whole > 0))

    def client_batches(self, client: int, order: torch.Generator) -> Iterable[Any]:
        """Return one epoch of a client's batches, shuffled by ``order``: an iterable with a length.

        Without ``collate_fn``, tensors in memory are gathered once and split into a list. All other datasets are read
        by a DataLoader, with a seed for each example and each batch, so that the batches do not depend on the number
        of workers.
        """
        examples, indices = self._shuffle(client, order)
        if not len(indices):
            return []
        if self.collate_fn is None and (resident := in_memory(examples, indices)):
            return gather(*resident, self.batch_size)
        seed = int(torch.randint(2**31, (), generator=order))
        batches = SeededBatches(examples, indices, self.batch_size, seed, self.collate_fn or default_collate)
        return DataLoader(batches, batch_size=None, collate_fn=unchanged, num_workers=self.num_workers, generator=order)

    def epoch_rows(self, client: int, order: torch.Generator) -> tuple[TensorDataset, Tensor] | None:
        """Return the examples of :meth:`client_batches`, as defined here, by rows of a dataset in memory.

        Returns:
            The dataset, which may hold the examples of all clients, and the row numbers (n,) in the order of the
            batches, which have ``batch_size`` examples and the last one the rest; None for data that are not in memory.
        """
        if self.collate_fn is not None:
            return None
        return in_memory(*self._shuffle(client, order))

    def _shuffle(self, client: int, order: torch.Generator) -> tuple[Examples, Tensor]:
        """Return a client's examples, and the order in which an epoch takes them."""
        examples = self._examples(client)
        total = len(examples)
        count = self.num_batches(total) * self.batch_size
        return examples, torch.randperm(total, generator=order)[:count]

    def _examples(self, client: int) -> Examples:
        try:
            dataset: Any = self.client_dataset(client)
        except Exception as error:
            error.add_note(f"raised by {type(self).__name__}.client_dataset({client})")
            raise
        if type(dataset) not in (TensorDataset, Subset):
            check_examples(dataset, f"{type(self).__name__}.client_dataset({client})")
        return dataset  # type: ignore[no-any-return]  # has been checked


def unchanged(batch: Any) -> Any:
    """Return the batch."""
    return batch


def remedy(data: ClientData, method: str, *options: str) -> str:
    """Say how a data module gets examples that it lacks: by those of some options that it has, or by a method."""
    data = data.named
    unused = [name for name in options if hasattr(data, name) and not getattr(data, name)]
    ways = [f"set data.{name} (now {getattr(data, name)})" for name in unused]
    return ", or ".join([*ways, f"define {method} in {type(data).__name__} or a subclass"])


def names_of(data: ClientData) -> list[str] | None:
    """Return the names of a data module's clients, as texts; None if the clients have none.

    Raises:
        ConfigurationError: there is not one name for each client, or two clients have the same name.
    """
    given = data.client_names
    if given is None:
        return None
    count = data.num_clients + data.num_new
    if isinstance(given, str) or len(given) != count:
        got = repr(given) if isinstance(given, str) else f"{len(given):,}"
        raise ConfigurationError(
            f"expected client_names to be {count:,} names, one for each client, got {got}: correct them"
        )
    names = [str(name) for name in given]
    (name, times), *_ = Counter(names).most_common(1)
    if times > 1:
        first = names.index(name)
        second = names.index(name, first + 1)
        raise ConfigurationError(
            f"expected client_names to differ, got {name!r} for clients {first} and {second}: rename one"
        )
    return names


def data_fingerprint(data: ClientData) -> str:
    """Hash every client's size and class counts, and some examples, to 16 hexadecimal digits.

    Two runs with the same fingerprint saw the same data. The examples are the first and the last one of up to 16
    clients. They are read with fixed seeds, as in local training, so augmentation makes no difference. A client whose
    examples cannot be read is left out; so are those whose examples differ when they are read twice, with a line.

    Args:
        data: a data module that is set up.
    """
    digest = hashlib.sha256()
    digest.update(content_of(data.sizes))
    class_counts = data.class_counts()
    if class_counts is not None:
        digest.update(content_of(class_counts))
    differing: list[str] = []
    holders = data.sizes.nonzero().flatten().tolist()
    stride = max(1, ceil(len(holders) / SAMPLED_CLIENTS))
    for client in holders[::stride]:
        try:
            ends = _ends(data, client)
            ends_again = _ends(data, client)
        except Exception:  # training reports the error more clearly
            continue
        if ends == ends_again:
            digest.update(ends)
        else:
            differing.append(data.client_label(client))
    if differing:
        rank_zero_warn(
            f"examples of client {differing[0]} differ when they are read twice with the same seeds: the data set or a "
            "transform draws from a generator of its own, so a second run, a stop, or another order of clients ends in "
            "other numbers: draw from the global generators of torch, NumPy or Python, which every client seeds anew"
        )
    return digest.hexdigest()[:16]


def _ends(data: ClientData, client: int) -> bytes:
    """Read a client's first and last example."""
    with isolated(CPU):
        seed_globals(0, CPU)
        dataset: Any = data.client_dataset(client)
        return b"".join(content_of(dataset[index]) for index in (0, len(dataset) - 1))


def content_of(value: Any) -> bytes:
    """Convert an example to bytes: tensors, arrays, images, numbers and texts, also in lists, tuples and dicts."""
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, list | tuple):
        return b"".join(map(content_of, value))
    array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"{type(value).__name__} has no bytes of its own")  # only addresses, which differ each time
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()
