"""A client's batches: the last one, batches of another form, how often data are asked for, what is refused."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from lib.toy import Capture, Linear, trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.engine.federation.batches import TrainingBatch
from fl_lightning.engine.federation.clients import LOADERS
from fl_lightning.errors import ConfigurationError


class Given(FederatedDataModule):
    """Clients whose data sets are given, one each."""

    def __init__(self, *datasets: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.num_clients, self.datasets = len(datasets), datasets
        self.asked: list[int] = []

    def client_dataset(self, client: int) -> Dataset[Any]:
        self.asked.append(client)
        dataset: Dataset[Any] = self.datasets[client]
        return dataset


def order() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def tensors(size: int) -> TensorDataset:
    return TensorDataset(torch.arange(size))


def text(size: int) -> list[Tensor]:
    """As many sequences, of lengths 1, 2, …, as a list of examples."""
    return [torch.arange(length + 1) for length in range(size)]


def pad(examples: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(examples, batch_first=True, padding_value=-1)


def pad_at_random(examples: list[Tensor]) -> Tensor:
    """Pad, and shift by draws from all three global generators."""
    return pad(examples) + torch.rand(()) + float(np.random.rand()) + random.random()


@pytest.mark.parametrize("dataset", [tensors, text], ids=["in memory", "by item"])
@pytest.mark.parametrize(
    ("size", "drop_last", "expected"),
    [(7, False, [3, 3, 1]), (7, True, [3, 3]), (6, True, [3, 3]), (2, True, [2]), (3, True, [3]), (0, True, [])],
)
def test_last_batch(dataset: Any, size: int, drop_last: bool, expected: list[int]) -> None:
    """A client's only batch stays, however small. The number of batches is known before they are read."""
    data = Given(dataset(size), batch_size=3, drop_last=drop_last, collate_fn=pad if dataset is text else None)
    batches: Any = data.client_batches(0, order())
    assert len(batches) == len(expected) == data.num_batches(size)
    assert [len(batch[0]) if dataset is tensors else len(batch) for batch in batches] == expected
    whole: Any = Given(dataset(size), batch_size=3, collate_fn=data.collate_fn).client_batches(0, order())
    if dataset is tensors:  # dropping leaves the other batches as they are
        assert all(torch.equal(one[0], other[0]) for one, other in zip(batches, whole, strict=False))
    assert data.sizes.tolist() == [size]


def test_batch_normalisation_with_a_last_batch_of_one() -> None:
    """Three examples in batches of two: BatchNorm refuses the last batch, and the client would be left out."""

    class Normalised(Linear):
        def __init__(self) -> None:
            super().__init__(size=1)
            self.norm = torch.nn.BatchNorm1d(1).double()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return (self.norm(batch[0]) * self.w).sum()

    rows = TensorDataset(torch.arange(3.0, dtype=torch.float64)[:, None])
    run, capture = FederatedOrchestrator(Normalised(), on_bad_update="raise"), Capture()
    trainer(capture).fit(run, datamodule=Given(rows, batch_size=2, drop_last=True))
    assert capture.cohort.num_samples.tolist() == [3]
    assert capture.runs[0].num_steps == 1


def test_collated_batches() -> None:
    """Sequences of lengths 1 to 4 in batches of two, each as wide as its longer one."""
    batches = list(Given(text(4), batch_size=2, collate_fn=pad).client_batches(0, order()))
    lengths = [sorted((batch >= 0).sum(1).tolist()) for batch in batches]
    assert sorted(lengths[0] + lengths[1]) == [1, 2, 3, 4]
    assert [batch.shape[1] for batch in batches] == [max(pair) for pair in lengths]


def test_a_collate_fn_takes_examples_from_memory_one_by_one() -> None:
    """It is given pairs, as Subset returns them, and its batch is used as returned."""
    rows = Subset(TensorDataset(torch.arange(4), torch.arange(4) * 10), [1, 3])
    (batch,) = Given(rows, collate_fn=dict).client_batches(0, order())
    assert {int(key): int(value) for key, value in batch.items()} == {1: 10, 3: 30}
    (batch,) = Given(rows).client_batches(0, order())
    assert isinstance(batch, TrainingBatch)


def test_draws_inside_a_collate_fn_depend_on_the_batch_alone() -> None:
    """Neither on the number of workers nor on other draws; every batch and every epoch draws its own."""

    def epoch(generator: torch.Generator, **settings: Any) -> list[Tensor]:
        data = Given(text(6), batch_size=2, collate_fn=pad_at_random, **settings)
        return [batch % 1 for batch in data.client_batches(0, generator)]

    torch.manual_seed(0)
    first, drawn = epoch(order()), torch.rand(3)
    assert torch.equal(torch.manual_seed(0) and torch.rand(3), drawn)  # the global generators are left as they were
    for other in (epoch(order()), epoch(order(), num_workers=2)):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    shifts = [float(batch[0, 0]) for batch in first + epoch(torch.Generator().manual_seed(1))]
    assert len(set(shifts)) == 6


def test_each_clients_data_are_asked_for_once_and_then_once_an_epoch() -> None:
    """Fifty clients, two of them drawn, two local epochs: 50 + 2 · 2."""
    rows = [TensorDataset(torch.ones(2, 1, dtype=torch.float64), torch.zeros(2)) for _ in range(50)]
    data = Given(*rows, participation=2)
    trainer().fit(FederatedOrchestrator(Linear(1), local_epochs=2, on_hidden_state="off"), datamodule=data)
    assert sorted(data.asked[:50]) == list(range(50))
    assert len(data.asked) == 54


class Stream(IterableDataset[int]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Endless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Unread(Dataset[int]):
    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("dataset", [Stream(), Endless(), Unread(), DataLoader(tensors(3)), None])
def test_refuses_data_without_length_or_indices(dataset: Any) -> None:
    """Lightning would ask for iter(combined_loader) instead."""
    message = (
        rf"^expected Given.client_dataset\(1\) to be a dataset with __len__ and __getitem__.*, "
        rf"got {type(dataset).__name__}: read an iterable into a list; in place of a loader, give its dataset$"
    )
    with pytest.raises(ConfigurationError, match=message):
        trainer().fit(FederatedOrchestrator(Linear(1)), datamodule=Given(tensors(2), dataset))


@pytest.mark.parametrize("kind", [TypeError, NotImplementedError, ValueError])
def test_an_error_in_client_dataset_comes_out_as_raised(kind: type[Exception]) -> None:
    class Failing(Given):
        def client_dataset(self, client: int) -> Dataset[Any]:
            raise kind("mine")

    with pytest.raises(kind, match="mine") as caught:
        trainer().fit(FederatedOrchestrator(Linear(1)), datamodule=Failing(tensors(1)))
    assert str(caught.value) == "mine"
    assert caught.value.__notes__ == ["raised by Failing.client_dataset(0)"]


@pytest.mark.parametrize("kind", [TypeError, NotImplementedError])
def test_an_error_in_len_comes_out_as_raised(kind: type[Exception]) -> None:
    class Broken(Endless):
        def __len__(self) -> int:
            raise kind("mine")

    with pytest.raises(kind, match=r"^mine$"):
        trainer().fit(FederatedOrchestrator(Linear(1)), datamodule=Given(Broken()))


def test_names_of_loaders_are_lightnings() -> None:
    assert all(hasattr(FederatedDataModule, name) for name in LOADERS)
