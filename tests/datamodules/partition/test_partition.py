"""Partitions: exact cover, each definition's statistics, reproducibility, refusals. Tolerances: 5 standard errors."""

import math
from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from lib.partitions import class_counts, many, split
from scipy import stats
from torch import Tensor

from fl_lightning.datamodules import (
    IID,
    ClassesPerClient,
    Dirichlet,
    HybridDirichlet,
    Natural,
    Partition,
    QuantitySkew,
)
from fl_lightning.datamodules.partition.steps.parts import rows_of, stable_order
from fl_lightning.errors import ConfigurationError

ALL = [
    IID(),
    Dirichlet(0.01),
    Dirichlet(1e-300),
    Dirichlet(1e305),
    Dirichlet(0.5, form="client"),
    Dirichlet(1e-300, form="client"),
    Dirichlet(0.5, form="rebalanced", min_samples=0),
    HybridDirichlet(),
    HybridDirichlet((math.inf, 1e-300), share=0.3, form="client"),
    ClassesPerClient(1),
    ClassesPerClient(10),
    QuantitySkew(0.1),
    QuantitySkew(1e-300),
]


def test_order_of_large_numbers_is_stable() -> None:
    """Numbers of one, two and three times 16 bits, each one several times: Python's sort is stable, too."""
    draws = np.random.default_rng(0)
    for largest in (1, 9, 2**16 - 1, 2**16, 10**6, 2**40):
        numbers = draws.choice(draws.integers(0, largest + 1, 300), 1000)
        numbers[[3, 500, 7]] = largest, largest, 0
        assert stable_order(numbers).tolist() == sorted(range(1000), key=lambda i: int(numbers[i]))
    assert stable_order(numbers[:0]).tolist() == []


def test_a_hundred_thousand_clients() -> None:
    """More clients than 16 bits count: client k owns two examples, in ascending order; one more client owns none."""
    owners = np.random.default_rng(0).permutation(200_000) % 100_000
    parts = rows_of(owners, 100_001)
    assert len(parts[100_000]) == 0
    rows = torch.stack(list(parts[:100_000]))
    assert torch.equal(torch.from_numpy(owners)[rows], torch.arange(100_000)[:, None].expand(-1, 2))
    assert (rows[:, 0] < rows[:, 1]).all()


def describe(partition: Partition) -> str:
    return " ".join([type(partition).__name__, *map(str, vars(partition).values())])


@pytest.mark.parametrize("partition", ALL, ids=describe)
@pytest.mark.parametrize(("num_samples", "num_clients"), [(997, 13), (10, 1000)])
def test_every_example_is_in_exactly_one_client(partition: Partition, num_samples: int, num_clients: int) -> None:
    """With more clients than examples, some get nothing. The generator alone decides who gets what."""
    labels = torch.arange(num_samples) % 10
    first, again, other = (split(partition, labels, num_clients, seed) for seed in (3, 3, 4))
    assert len(first) == num_clients
    assert all(part.dtype == torch.int64 and bool((part.diff() > 0).all()) for part in first)
    assert torch.cat(first).sort().values.tolist() == list(range(num_samples))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    if num_samples > num_clients:  # equal shares of few examples are rounded to the same clients
        assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("partition", [each for each in ALL if describe(each) != "ClassesPerClient 10"], ids=describe)
def test_many_clients(partition: Partition) -> None:
    parts = split(partition, torch.arange(50_000) % 10, 100_000)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(50_000))


@pytest.mark.parametrize("partition", [IID(), Dirichlet(0.1, form="client"), QuantitySkew(math.inf)], ids=describe)
def test_equal_parts_of_fewer_examples_than_clients(partition: Partition) -> None:
    """10 examples for 1000 clients: ten clients with one each."""
    assert Counter(map(len, split(partition, torch.arange(10) % 2, 1000))) == {0: 990, 1: 10}


@pytest.mark.parametrize("partition", [*ALL[:-4], *ALL[-3:], Natural()], ids=describe)
def test_one_client_has_everything(partition: Partition) -> None:
    assert split(partition, torch.arange(100) % 10, 1)[0].tolist() == list(range(100))


def test_classes_that_do_not_occur_do_not_count() -> None:
    """Labels 3 and 7 are two classes: one each for two clients."""
    labels = torch.tensor([3, 7, 3, 7, 7])
    held = {tuple(labels[part].tolist()) for part in split(ClassesPerClient(1), labels, 2)}
    assert held == {(3, 3), (7, 7, 7)}


def test_iid_parts_are_equal_up_to_one() -> None:
    """11 examples over 4 clients: 3 + 3 + 3 + 2."""
    assert sorted(map(len, split(IID(), torch.zeros(11, dtype=torch.int64), 4))) == [2, 3, 3, 3]


def test_iid_class_shares() -> None:
    """A client draws 50 of 100 examples, half of them of class 0, without replacement.

    Its count of class 0 is hypergeometric: mean 50 * 1/2 = 25, variance 50 * 1/4 * 50/99 = 6.31.
    """
    labels = torch.arange(100) % 2
    counts = many(IID(), labels, 2, seeds=1000)[:, 0, 0].double()
    assert counts.mean().item() == pytest.approx(25, abs=0.4)  # standard error 0.08
    assert counts.var().item() == pytest.approx(6.31, rel=0.22)  # standard error 4.5 %


def test_quantity_skew_has_dirichlet_sizes() -> None:
    """Sizes 1000 Dir_4(0.5): each client's share is Beta(0.5, 1.5), of mean 1/4 and variance 1/16."""
    sizes = many(QuantitySkew(0.5), torch.zeros(1000, dtype=torch.int64), 4, seeds=2000)[..., 0]
    assert bool((sizes.sum(1) == 1000).all())
    law = stats.beta(0.5, 1.5)
    variance_error = 5 * math.sqrt((law.stats("k") + 2) / 2000) / 16
    assert (sizes / 1000).mean(0).tolist() == pytest.approx([0.25] * 4, abs=5 * 0.25 / math.sqrt(2000))
    assert (sizes / 1000).var(0).tolist() == pytest.approx([1 / 16] * 4, abs=variance_error)


def test_quantity_skew_has_no_label_skew() -> None:
    """Given its size m, a client's count of class 0, a quarter of 400 examples, is hypergeometric.

    Mean m / 4 and variance m * 1/4 * 3/4 * (400 - m) / 399: the squared deviation over the variance has mean 1, and a
    standard error of about sqrt(2 / 1000) for 1000 draws.
    """
    labels = (torch.arange(400) >= 100).long()
    first = many(QuantitySkew(1.0), labels, 4, seeds=1000)[:, 0].double()
    size = first.sum(1)
    inside = (size > 0) & (size < 400)
    ratio = (first[:, 0] - size / 4) ** 2 / (size * 3 / 16 * (400 - size) / 399)
    assert ratio[inside].mean().item() == pytest.approx(1, abs=5 * math.sqrt(2 / int(inside.sum())))


def test_quantity_skew_at_its_ends() -> None:
    """Dir_5(alpha -> 0) is a corner of the simplex, Dir_5(infinity) its centre."""
    labels = torch.zeros(103, dtype=torch.int64)
    assert sorted(map(len, split(QuantitySkew(1e-300), labels, 5))) == [0, 0, 0, 0, 103]
    assert sorted(map(len, split(QuantitySkew(math.inf), labels, 5))) == [20, 20, 21, 21, 21]


def test_natural_keeps_groups_whole() -> None:
    """Seven writers of 1, 2, … 7 examples over 3 clients: 3 + 2 + 2 whole writers, in some other order each time."""
    writers = torch.repeat_interleave(torch.arange(10, 80, 10), torch.arange(1, 8))
    writers = writers[torch.randperm(len(writers), generator=torch.Generator().manual_seed(0))]
    held = []
    for seed in range(20):
        parts = split(Natural(), writers, 3, seed)
        groups = [writers[part].unique().tolist() for part in parts]
        assert sorted(map(len, groups)) == [2, 2, 3]
        assert sorted(chain(*groups)) == list(range(10, 80, 10))  # no writer at two clients
        held.append(str(groups))
    assert len(set(held)) > 10
    assert Natural.by == "groups"
    assert IID.by == "nothing"


def test_natural_deals_groups_at_random() -> None:
    """Group 0 of four goes to either of two clients, and joins each of the three others with probability 1/3."""
    partners = []
    for seed in range(900):
        parts = split(Natural(), torch.arange(4), 2, seed)
        partners.append(next((k, int(part[1])) for k, part in enumerate(parts) if part[0] == 0))
    shares = [Counter(partners)[client, group] / 900 for client in (0, 1) for group in (1, 2, 3)]
    assert shares == pytest.approx([1 / 6] * 6, abs=5 * math.sqrt(1 / 6 * 5 / 6 / 900))


@pytest.mark.parametrize(("num_clients", "classes"), [(20, 2), (7, 3), (10, 1), (3, 10), (5, 2), (4, 3), (9, 9)])
def test_classes_per_client(num_clients: int, classes: int) -> None:
    """Every client holds so many classes; a class has N * classes / C holders, up or down, with equal parts."""
    for seed in range(20):
        counts = class_counts(ClassesPerClient(classes), torch.arange(1000) % 10, num_clients, seed)
        assert (counts > 0).sum(1).tolist() == [classes] * num_clients
        holders = (counts > 0).sum(0)
        assert holders.min() == num_clients * classes // 10
        assert holders.max() == -(-num_clients * classes // 10)
        assert all(column[column > 0].max() - column[column > 0].min() <= 1 for column in counts.T)


def test_classes_per_client_by_hand() -> None:
    """3 classes of 4, 3 clients of 2 classes: 6 / 3 = 2 holders a class, 4 / 2 = 2 examples each, 4 examples a client.

    With equal numbers of holders, each client lacks another class.
    """
    counts = class_counts(ClassesPerClient(2), torch.arange(12) % 3, 3)
    assert sorted(counts.tolist()) == [[0, 2, 2], [2, 0, 2], [2, 2, 0]]


@pytest.mark.parametrize(("num_clients", "classes"), [(5, 2), (20, 5)])
def test_classes_per_client_is_disjoint_when_they_just_suffice(num_clients: int, classes: int) -> None:
    """N clients x c classes = C: one holder each (FedGH, Fig. 5: 20 x 5 = 100)."""
    total = num_clients * classes
    counts = class_counts(ClassesPerClient(classes), torch.arange(1000) % total, num_clients)
    assert (counts > 0).sum(0).tolist() == [1] * total
    assert (counts > 0).sum(1).tolist() == [classes] * num_clients


@pytest.mark.parametrize("num_clients", [3, 8])
def test_classes_per_client_at_random(num_clients: int) -> None:
    """No client and no class is special: each client holds each of the 6 pairs out of 4 classes equally often."""
    held = many(ClassesPerClient(2), torch.arange(64) % 4, num_clients, seeds=900) > 0
    for client in (0, num_clients - 1):
        shares = [n / 900 for n in Counter(map(str, held[:, client].tolist())).values()]
        assert shares == pytest.approx([1 / 6] * 6, abs=5 * math.sqrt(1 / 6 * 5 / 6 / 900))


def test_classes_with_fewer_examples_than_holders() -> None:
    """Two classes of 3 for 8 clients: 4 holders a class, three of whom get an example."""
    counts = class_counts(ClassesPerClient(1), torch.arange(6) % 2, 8)
    assert counts.sum(0).tolist() == [3, 3]
    assert sorted(counts.sum(1).tolist()) == [0, 0, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("partition", "labels", "num_clients", "message"),
    [
        (IID(), torch.arange(5), 0, r"expected num_clients >= 1 .*num_clients=0 and 5 examples"),
        (IID(), torch.arange(0), 3, "examples to deal, got num_clients=3 and 0 examples"),
        (ClassesPerClient(11), torch.arange(100) % 10, 5, r"expected classes <= 10.*got 11"),
        (ClassesPerClient(3), torch.arange(100) % 10, 3, r"num_clients x classes >= 10.*got 3 x 3"),
        (Natural(), torch.arange(100) % 10, 11, "as many groups as clients, got 10 groups for num_clients=11"),
        (Partition(), torch.arange(4), 2, "Partition must define owners"),
    ],
)
def test_refuses_what_cannot_be_split(partition: Partition, labels: Tensor, num_clients: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        split(partition, labels, num_clients)


def test_refuses_numbers_of_classes_below_one() -> None:
    with pytest.raises(ConfigurationError, match="classes must be at least 1, got 0"):
        ClassesPerClient(0)


def test_refuses_a_partition_that_names_clients_that_are_not_there() -> None:
    class Broken(Partition):
        def owners(self, labels, num_clients, generator):  # type: ignore[no-untyped-def]  # as a user writes it
            return labels + num_clients

    with pytest.raises(ConfigurationError, match=r"Broken\.owners to return 4 clients from 0 to 1, got 4 from 2 to 3"):
        split(Broken(), torch.arange(4) % 2, 2)


@pytest.mark.parametrize(("given", "got"), [([0, 1, 0, 1], None), (np.array([0.0, 1.0, 0.0, 1.0]), "float64")])
def test_a_partition_may_name_clients_in_a_list_but_by_whole_numbers(given: Any, got: str | None) -> None:
    own = type("Own", (Partition,), {"owners": lambda self, labels, num_clients, generator: given})()
    if got is None:
        assert [rows.tolist() for rows in split(own, torch.arange(4) % 2, 2)] == [[0, 2], [1, 3]]
    else:
        with pytest.raises(ConfigurationError, match=rf"Own\.owners to return whole numbers, .* got {got}: return"):
            split(own, torch.arange(4) % 2, 2)
