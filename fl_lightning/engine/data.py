"""FederatedDataModule: the clients' data and their batches."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from fl_lightning.engine.batches import Examples, SeededBatches, TrainingBatch, check_examples, gather, unchanged
from fl_lightning.engine.drawing import PADDING, ClientIds, CohortDraws
from fl_lightning.engine.sampling import ClientSampler, UniformSampler
from fl_lightning.errors import ConfigurationError

LOADERS = ("val_dataloader", "test_dataloader", "predict_dataloader")

__all__ = ["LOADERS", "PADDING", "ClientIds", "FederatedDataModule", "TrainingBatch"]


class FederatedDataModule(CohortDraws):
    """The data of ``num_clients`` clients. Subclasses define ``num_clients`` and :meth:`client_dataset`.

    Lightning's training data are the client ids of each round's cohort; a client's own batches come from
    :meth:`client_batches`. A client without data is never drawn.

    Args:
        batch_size: number of examples in a client's batch.
        participation: clients per round, as a share in (0, 1] (float) or a number of clients (int).
        sampler: the sampler that draws each round's cohort; :class:`UniformSampler` by default.
        clients_per_batch: number of clients that the Trainer sees as one batch. Each batch costs the Trainer about
            0.6 ms, so group tiny clients.
        num_workers: number of DataLoader processes for a client's data; unused for tensors in memory.
        seed: the seed of the cohorts and, in subclasses, of the partition.
        drop_last: whether to leave out a client's last batch if that batch is smaller than ``batch_size``; a client's
            only batch always stays. The client's number of examples, n_k, counts all examples.
        collate_fn: function that makes a client's batch from a list of its examples, for examples that cannot be
            stacked (texts of different length, graphs); PyTorch's ``default_collate`` by default. Random numbers that
            the function draws are seeded for each batch.

    Raises:
        ConfigurationError: ``participation`` is outside its range, or ``batch_size`` or ``clients_per_batch`` is less
            than 1.
    """

    def __init__(
        self,
        batch_size: int = 32,
        participation: int | float = 1.0,
        sampler: ClientSampler | None = None,
        clients_per_batch: int = 1,
        num_workers: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1 or clients_per_batch < 1:
            raise ConfigurationError(
                f"batch_size and clients_per_batch must be at least 1, got {batch_size} and {clients_per_batch}"
            )
        if participation <= 0 or (isinstance(participation, float) and participation > 1):
            raise ConfigurationError(
                "participation must be a share in (0, 1] or a whole number of clients per round, "
                f"got {participation}: 0.2 draws a fifth of the clients, 5 draws five"
            )
        self.batch_size = batch_size
        self.participation = participation
        self.sampler = sampler or UniformSampler()
        self.clients_per_batch = clients_per_batch
        self.num_workers = num_workers
        self.seed = seed
        self.drop_last = drop_last
        self.collate_fn = collate_fn
        self._borrowed: list[str] = []

    def client_dataset(self, client: int) -> Dataset[Any]:
        """Return the training examples of one client, 0 <= client < num_clients: a dataset with length and indices."""
        raise ConfigurationError(f"{type(self).__name__} must define client_dataset(client)")

    def client_num_samples(self, client: int) -> int:
        """Return n_k, the client's number of training examples."""
        return len(self._examples(client))

    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of training examples per client and class, or None for data without classes."""
        return None

    def held_out_batches(self, client: int) -> Iterable[Any]:
        """Return batches of examples that the client keeps back from training for its evaluation; none by default."""
        return ()

    def proxy_dataloader(self) -> DataLoader[Any] | None:
        """Return a loader of the server's proxy set, for rules that learn on a proxy set; None without a proxy set."""
        return None

    def borrow_loaders(self, module: LightningModule | None) -> None:
        """Serve a module's evaluation loaders where this data module defines none, in place of those borrowed before.

        Args:
            module: the client module; None to only give the borrowed loaders back.
        """
        for name in self._borrowed:
            del self.__dict__[name]
        self._borrowed = [n for n in LOADERS if is_overridden(n, module) and not is_overridden(n, self)]
        for name in self._borrowed:
            setattr(self, name, getattr(module, name))

    def num_batches(self, num_samples: int) -> int:
        """Return the number of batches in one epoch of a client with ``num_samples`` examples."""
        whole, rest = divmod(num_samples, self.batch_size)
        return whole + (rest > 0 and not (self.drop_last and whole > 0))

    def client_batches(self, client: int, order: torch.Generator) -> Iterable[Any]:
        """Return one epoch of a client's batches, shuffled by ``order``; the batches have a length, too.

        Without ``collate_fn``, tensors in memory are gathered once and split into a list. All other datasets are read
        by a DataLoader, with a seed for each example and each batch, so that the batches do not depend on the number
        of workers.
        """
        examples = self._examples(client)
        count = min(len(examples), self.num_batches(len(examples)) * self.batch_size)
        indices = torch.randperm(len(examples), generator=order)[:count]
        if not count:
            return []
        if self.collate_fn is None and (tensors := gather(examples, indices)) is not None:
            return list(map(TrainingBatch, zip(*(torch.split(t, self.batch_size) for t in tensors), strict=True)))
        seed = int(torch.randint(2**31, (), generator=order))
        batches = SeededBatches(examples, indices, self.batch_size, seed, self.collate_fn or default_collate)
        return DataLoader(batches, batch_size=None, collate_fn=unchanged, num_workers=self.num_workers, generator=order)

    def _examples(self, client: int) -> Examples:
        source = f"{type(self).__name__}.client_dataset({client})"
        try:
            dataset = self.client_dataset(client)
        except Exception as error:
            error.add_note(f"raised by {source}")
            raise
        return check_examples(dataset, source)
