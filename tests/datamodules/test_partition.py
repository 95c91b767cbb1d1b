"""Partitions: exact cover, the statistics of each definition, reproducibility, refusals."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_lightning.datamodules import IID, ClassesPerClient, Dirichlet, Partition
from fl_lightning.errors import ConfigurationError

ALL = [
    IID(),
    Dirichlet(0.01),
    Dirichlet(0.5),
    Dirichlet(1e-300),
    Dirichlet(1e305),
    Dirichlet(math.inf),
    Dirichlet(0.01, form="client"),
    Dirichlet(0.5, form="client"),
    Dirichlet(1e-300, form="client"),
    Dirichlet(1e305, form="client"),
    Dirichlet(0.5, form="rebalanced"),
    Dirichlet(math.inf, form="rebalanced"),
    ClassesPerClient(1),
    ClassesPerClient(3),
    ClassesPerClient(10),
]


def describe(partition: Partition) -> str:
    return " ".join([type(partition).__name__, *map(str, vars(partition).values())])


def split(partition: Partition, labels: Tensor, num_clients: int, seed: int = 0) -> list[Tensor]:
    return partition.split(labels, num_clients, np.random.default_rng(seed))


def class_counts(partition: Partition, labels: Tensor, num_clients: int, seed: int = 0) -> Tensor:
    """(N, C) examples of each class that each client holds."""
    num_classes = int(labels.max()) + 1
    parts = split(partition, labels, num_clients, seed)
    return torch.stack([torch.bincount(labels[part], minlength=num_classes) for part in parts])


@pytest.mark.parametrize("partition", ALL, ids=describe)
@pytest.mark.parametrize(("num_samples", "num_clients"), [(1000, 20), (997, 13), (333, 10)])
def test_every_example_is_in_exactly_one_client(partition: Partition, num_samples: int, num_clients: int) -> None:
    labels = torch.randint(10, (num_samples,), generator=torch.Generator().manual_seed(1))
    parts = split(partition, labels, num_clients)
    assert len(parts) == num_clients
    assert all(part.dtype == torch.int64 and bool((part.diff() > 0).all()) for part in parts)
    assert torch.cat(parts).sort().values.tolist() == list(range(num_samples))


@pytest.mark.parametrize("partition", ALL, ids=describe)
def test_depends_on_the_generator_alone(partition: Partition) -> None:
    labels = torch.arange(1000) % 10
    first, again, other = (split(partition, labels, 20, seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("partition", [IID(), Dirichlet(0.1), Dirichlet(0.1, form="client"), ClassesPerClient(2)])
def test_as_many_clients_as_examples(partition: Partition) -> None:
    parts = split(partition, torch.arange(2000) % 10, 2000)
    assert sum(map(len, parts)) == 2000


@pytest.mark.parametrize("partition", [IID(), Dirichlet(0.1), Dirichlet(0.1, form="client"), ClassesPerClient(10)])
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
    counts = torch.stack([class_counts(IID(), labels, 2, seed)[0, 0] for seed in range(1000)]).double()
    assert counts.mean().item() == pytest.approx(25, abs=0.4)  # standard error 0.08
    assert counts.var().item() == pytest.approx(6.31, rel=0.2)  # standard error 4.5 %


def test_class_form_has_dirichlet_shares() -> None:
    """Shares P_c ~ Dir_4(0.5): mean 1/4, variance 1/4 * 3/4 / (4 * 0.5 + 1) = 1/16, whichever the client."""
    labels = torch.arange(4000) % 10
    shares = torch.stack([class_counts(Dirichlet(0.5), labels, 4, seed) for seed in range(200)]) / 400  # (200, 4, 10)
    assert shares.mean((0, 2)).tolist() == pytest.approx([0.25] * 4, abs=0.025)  # standard error 0.0056
    assert shares.var((0, 2)).tolist() == pytest.approx([1 / 16] * 4, rel=0.15)


def test_class_form_leaves_clients_without_data() -> None:
    """MNIST's size, 20 clients, alpha = 0.01: 15.2 clients have data, each as likely as any other.

    One client's share of a class is Beta(0.01, 0.19). It rounds to no example if below x = 0.5 / 6000, and
    P(share < x) = x^0.01 / (0.01 B(0.01, 0.19)) = 0.910 / 1.050 = 0.867. No example of ten classes: 0.867^10 = 0.241.
    So 20 * (1 - 0.241) = 15.2 clients have data. (Rounding down instead gives the last client data almost surely.)
    """
    labels = torch.arange(60000) % 10
    with_data = torch.stack([class_counts(Dirichlet(0.01), labels, 20, seed).sum(1) > 0 for seed in range(150)])
    assert with_data.sum(1).double().mean().item() == pytest.approx(15.2, abs=0.6)  # standard error 0.14
    assert with_data[:, [0, 10, 19]].double().mean(0).tolist() == pytest.approx([0.76] * 3, abs=0.14)  # 4 of them


@pytest.mark.parametrize("seed", range(5))
def test_vanishing_alpha_gives_a_class_to_one_client(seed: int) -> None:
    """Dir_N(alpha -> 0) is a corner of the simplex: every class has one owner."""
    counts = class_counts(Dirichlet(1e-300), torch.arange(600) % 6, 5, seed)
    assert (counts > 0).sum(0).tolist() == [1] * 6


def test_growing_alpha_gives_equal_shares() -> None:
    """Dir_5(alpha -> infinity) is (1/5, ...): 20 of a class's 100 examples each."""
    assert class_counts(Dirichlet(1e305), torch.arange(600) % 6, 5).tolist() == [[20] * 6] * 5


@pytest.mark.parametrize("form", ["class", "client", "rebalanced"])
def test_infinite_alpha_is_iid(form: str) -> None:
    labels = torch.arange(1000) % 10
    parts = split(Dirichlet(math.inf, form=form), labels, 20)  # type: ignore[arg-type]  # one of the three names
    assert all(torch.equal(a, b) for a, b in zip(parts, split(IID(), labels, 20), strict=True))


def test_client_form_has_equal_sizes_and_dirichlet_mixes() -> None:
    """Classes of 75 % and 25 %, alpha = 2: mixes ~ Dir(3, 1).

    So class 0 has mean 3/4 and variance 3/4 * 1/4 / (3 + 1 + 1) = 0.0375. Drawing 100 examples from a mix q adds
    E[q (1 - q)] / 100 = (0.1875 - 0.0375) / 100 = 0.0015. A class that runs out before the last clients changes this
    a little.
    """
    labels = (torch.arange(20000) % 4 == 3).long()
    counts = torch.stack([class_counts(Dirichlet(2.0, form="client"), labels, 200, seed) for seed in range(30)])
    assert bool((counts.sum(2) == 100).all())
    assert (counts[..., 0] / 100).var().item() == pytest.approx(0.039, rel=0.1)


def test_client_form_when_a_class_runs_out() -> None:
    """Two classes of 30, three clients of 20, each wanting one class alone (alpha -> 0).

    Two clients of three want the same class: the second gets the 10 that are left and fills up from the other class,
    whose last 20 the third gets; or that third client comes in between. Some client is pure in any case, nothing is
    lost, sizes stay equal.
    """
    labels = torch.arange(60) % 2
    for seed in range(20):
        counts = class_counts(Dirichlet(1e-300, form="client"), labels, 3, seed)
        assert counts.sum(1).tolist() == [20, 20, 20]
        assert counts.sum(0).tolist() == [30, 30]
        assert sorted(counts[:, 0].tolist()) == [0, 10, 20]


def test_client_form_spreads_leftovers() -> None:
    """61 examples over 4 clients: 16 + 15 + 15 + 15, the larger part at a client chosen at random."""
    sizes = [tuple(map(len, split(Dirichlet(1.0, form="client"), torch.arange(61) % 3, 4, s))) for s in range(20)]
    assert all(sorted(size) == [15, 15, 15, 16] for size in sizes)
    assert len(set(sizes)) > 1


@pytest.mark.parametrize("seed", range(10))
def test_rebalanced_form_stops_at_the_fair_share(seed: int) -> None:
    """A client with n / N = 50 examples gets no further class: before its last class it held fewer than 50."""
    counts = class_counts(Dirichlet(0.1, form="rebalanced", min_samples=5), torch.arange(1000) % 10, 20, seed)
    held_before = counts.cumsum(1) - counts
    assert bool((held_before[counts > 0] < 50).all())
    assert int(counts.sum(1).min()) >= 5


def test_plain_form_does_not_stop_at_the_fair_share() -> None:
    """The same without rebalancing: the previous test can fail."""
    counts = class_counts(Dirichlet(0.1), torch.arange(1000) % 10, 20)
    held_before = counts.cumsum(1) - counts
    assert not bool((held_before[counts > 0] < 50).all())


@pytest.mark.parametrize(("num_clients", "classes"), [(20, 2), (7, 3), (10, 1), (3, 10), (5, 2), (4, 3)])
def test_classes_per_client(num_clients: int, classes: int) -> None:
    """Every client holds so many classes; a class has N * classes / C holders, up or down, with equal parts."""
    for seed in range(5):
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


def test_classes_per_client_is_disjoint_when_they_just_suffice() -> None:
    """5 clients x 2 classes = 10: one holder each."""
    counts = class_counts(ClassesPerClient(2), torch.arange(1000) % 10, 5)
    assert (counts > 0).sum(0).tolist() == [1] * 10


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan])
def test_refuses_alpha(alpha: float) -> None:
    with pytest.raises(ConfigurationError, match=r"expected alpha > 0, got .*: use"):
        Dirichlet(alpha)


def test_refuses_other_arguments() -> None:
    with pytest.raises(ConfigurationError, match=r"expected form to be one of .* got 'classes'"):
        Dirichlet(1.0, form="classes")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigurationError, match="expected min_samples >= 0, got -1"):
        Dirichlet(1.0, min_samples=-1)
    with pytest.raises(ConfigurationError, match="expected classes >= 1 per client, got 0"):
        ClassesPerClient(0)


@pytest.mark.parametrize("partition", ALL, ids=describe)
@pytest.mark.parametrize("num_clients", [0, 6])
def test_refuses_more_clients_than_examples(partition: Partition, num_clients: int) -> None:
    with pytest.raises(ConfigurationError, match=f"expected 1 to 5 clients.*num_clients={num_clients}"):
        split(partition, torch.arange(5), num_clients)


def test_refuses_what_cannot_be_split() -> None:
    labels = torch.arange(100) % 10
    with pytest.raises(ConfigurationError, match=r"expected classes <= 10.*got 11"):
        split(ClassesPerClient(11), labels, 5)
    with pytest.raises(ConfigurationError, match=r"num_clients x classes >= 10.*got 3 x 3"):
        split(ClassesPerClient(3), labels, 3)
    with pytest.raises(ConfigurationError, match="at least 20 x min_samples = 200 examples, got 100"):
        split(Dirichlet(1.0, form="rebalanced"), labels, 20)


def test_refuses_when_redrawing_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes, each to one client (alpha -> 0): three clients never all have data."""
    monkeypatch.setattr("fl_lightning.datamodules.partition.MAX_REDRAWS", 50)
    with pytest.raises(ConfigurationError, match=r"min_samples=1 examples.*in 50 draws.*raise alpha"):
        split(Dirichlet(1e-300, form="rebalanced", min_samples=1), torch.arange(10) % 2, 3)


def test_refuses_a_partition_that_names_clients_that_are_not_there() -> None:
    class Broken(Partition):
        def owners(self, labels, num_clients, generator):  # type: ignore[no-untyped-def]  # as a user writes it
            return labels + num_clients

    with pytest.raises(ConfigurationError, match=r"Broken\.owners to return 4 clients from 0 to 1, got 4 from 2 to 3"):
        split(Broken(), torch.arange(4) % 2, 2)
    with pytest.raises(ConfigurationError, match="must define owners"):
        split(Partition(), torch.arange(4), 2)
