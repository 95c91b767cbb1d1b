"""The Dirichlet partitions against their definitions. Tolerances: 5 standard errors."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from lib.partitions import class_counts, many
from scipy import stats
from torch import Tensor

from fl_lightning.datamodules import IID, Dirichlet, HybridDirichlet, QuantitySkew
from fl_lightning.errors import ConfigurationError


def check_shares(shares: Tensor, a: float, b: float, draws: int) -> None:
    """Mean and variance, over all but the last dimension, of Beta(a, b) shares of which ``draws`` are independent."""
    mean, variance, excess = (float(moment) for moment in stats.beta(a, b).stats("mvk"))
    flat = shares.double().flatten(0, -2)
    clients = flat.shape[-1]
    assert flat.mean(0).tolist() == pytest.approx([mean] * clients, abs=5 * math.sqrt(variance / draws))
    around = ((flat - mean) ** 2).mean(0).tolist()
    assert around == pytest.approx([variance] * clients, rel=5 * math.sqrt((excess + 2) / draws))


def test_class_form_has_dirichlet_shares() -> None:
    """Shares P_c ~ Dir_4(0.5): each is Beta(0.5, 1.5), of mean 1/4 and variance 1/4 * 3/4 / 3 = 1/16."""
    counts = many(Dirichlet(0.5), torch.arange(4000) % 10, 4, seeds=200)
    check_shares((counts / 400).transpose(1, 2), 0.5, 1.5, draws=200 * 10)


def test_class_form_deals_classes_independently() -> None:
    """The correlation of a client's shares of two classes is 0; that of two clients' shares of one class is -1/3."""
    shares = (many(Dirichlet(0.5), torch.arange(800) % 2, 4, seeds=2000) / 400).double()
    between_classes = torch.corrcoef(torch.stack([shares[:, 0, 0], shares[:, 0, 1]]))[0, 1]
    between_clients = torch.corrcoef(torch.stack([shares[:, 0, 0], shares[:, 1, 0]]))[0, 1]
    assert between_classes.item() == pytest.approx(0, abs=5 / math.sqrt(2000))
    assert between_clients.item() == pytest.approx(-1 / 3, abs=5 / math.sqrt(2000))


def test_class_form_leaves_clients_without_data() -> None:
    """Deal 60,000 examples of ten classes to 20 clients: at alpha = 0.01 some get none, the last as often as the first.

    Rounding shares down instead of to the nearest number would give the last client data almost surely.
    """
    law = stats.beta(0.01, 0.19)  # of a client's share x of a class
    missed_at_the_ends = law.cdf(0.5 / 6000)  # the first and the last client get none of a class if 6000 x rounds to 0
    # Were the cuts before a client of uniform fraction, the client would miss a class with E max(0, 1 - 6000 x). As
    # nearly all cuts are next to 0 or 6000, the mean over all clients lies between both.
    missed_inside = float(np.mean(law.cdf((np.arange(10_000) + 0.5) / 10_000 / 6000)))
    assert [missed_at_the_ends, missed_inside] == pytest.approx([0.867, 0.865], abs=0.001)
    exact, uniform = 1 - missed_at_the_ends**10, 1 - missed_inside**10  # chance of data from any of the ten classes
    assert [exact, uniform] == pytest.approx([0.759, 0.766], abs=0.001)
    assert [20 * exact, 20 * uniform] == pytest.approx([15.2, 15.3], abs=0.05)  # mean number of clients with data

    with_data = (many(Dirichlet(0.01), torch.arange(60000) % 10, 20, seeds=200).sum(2) > 0).double()
    ends = with_data[:, [0, -1]].mean(0).tolist()
    assert ends == pytest.approx([exact] * 2, abs=5 * math.sqrt(exact * (1 - exact) / 200))
    error = 5 * with_data.sum(1).std().item() / math.sqrt(200)  # 0.6
    assert 20 * exact - error < with_data.sum(1).mean().item() < 20 * uniform + error


def test_the_ends_of_alpha() -> None:
    """Dir_5(alpha -> 0) is a corner of the simplex: every class has one owner. Dir_5(alpha -> infinity) is (1/5, …)."""
    counts = many(Dirichlet(1e-300), torch.arange(600) % 6, 5, seeds=5)
    assert ((counts > 0).sum(1) == 1).all()
    assert class_counts(Dirichlet(1e305), torch.arange(600) % 6, 5).tolist() == [[20] * 6] * 5


@pytest.mark.parametrize("form", ["class", "client", "rebalanced"])
def test_infinite_alpha_is_iid(form: str) -> None:
    labels = torch.arange(1000) % 10
    partition = Dirichlet(math.inf, form=form)  # type: ignore[arg-type]  # one of the three names
    assert torch.equal(class_counts(partition, labels, 20), class_counts(IID(), labels, 20))


def test_client_form_has_equal_sizes_and_dirichlet_mixes() -> None:
    """Give 2000 clients 100 examples each of classes of 75 % and 25 %, in mixes drawn from Dir(3, 1) at alpha = 2."""
    a, b = 2 * 2 * 0.75, 2 * 2 * 0.25  # alpha times the number of classes times the class's share
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    assert (a, b, mean, variance) == pytest.approx((3, 1, 0.75, 0.0375))  # by hand
    drawn = (mean * (1 - mean) - variance) / 100  # E[q (1 - q)] / 100: what 100 examples drawn from a mix q add
    expected = variance + drawn
    assert expected == pytest.approx(0.039)  # by hand
    asked = 100 * math.sqrt(2000 * expected)  # deviation of the examples of class 0 that independent clients ask for
    redrawn = 0.4 * asked / 200_000  # mean excess of a normal variable: 0.4 deviations
    assert redrawn == pytest.approx(0.0018, abs=0.0001)  # changes the variance by less than 2 %

    labels = (torch.arange(200_000) % 4 == 3).long()
    counts = many(Dirichlet(2.0, form="client"), labels, 2000, seeds=10)
    assert bool((counts.sum(2) == 100).all())
    shares = counts[..., 0].double() / 100
    excess = float(stats.beta(a, b).stats("k"))
    sampling = 5 * math.sqrt((excess + 2) / shares.numel())
    assert shares.var().item() == pytest.approx(expected, rel=sampling + 0.02)
    assert float(stats.kstest(shares.flatten().numpy(), stats.beta(a, b).cdf).statistic) < 0.05  # a uniform law: 0.38


def test_client_form_treats_all_clients_alike() -> None:
    """Everything is dealt and no client is special, so that every one's expected mix is that of the data: 0.9 and 0.1.

    At alpha -> 0 each of five clients of 20 examples wants one class alone, and so the mixes vary as much as they can.
    """
    labels = (torch.arange(100) % 10 == 9).long()
    shares = many(Dirichlet(1e-300, form="client"), labels, 5, seeds=1000)[..., 1].double() / 20
    error = 5 * shares.std().item() / math.sqrt(1000)
    assert shares.mean(0).tolist() == pytest.approx([0.1] * 5, abs=error)


def test_client_form_when_a_class_runs_out() -> None:
    """Deal two classes of 30 to three clients of 20 each, where alpha -> 0 makes each client want one class alone."""
    popular = [20, 30 - 20, 0]  # what the first, the second and the other client get of the class that most want
    other = [20 - 20, 20 - 10, 20 - 0]  # the other class fills each client up to 20
    assert sorted(popular) == sorted(other) == [0, 10, 20]  # of class A, whichever class most want
    deviation = math.sqrt(1 / 3 * 2 / 3 / 900)
    counts = many(Dirichlet(1e-300, form="client"), torch.arange(60) % 2, 3, seeds=900)
    assert bool((counts.sum(2) == 20).all())
    assert bool((counts[..., 0].sort(1).values == torch.tensor([0, 10, 20])).all())
    divided = (counts[..., 0] == 10).double().mean(0).tolist()
    assert divided == pytest.approx([1 / 3] * 3, abs=5 * deviation)


def test_client_form_takes_from_what_is_left_in_proportion() -> None:
    """Classes A, B, C of 60, 40 and 20 for three clients of 40 that want A alone, by chance and alpha -> 0.

    The first served gets 40 of A, the second 20. These it fills up from 40 of B and 20 of C, neither of which can run
    out: Binomial(20, 2/3) of B, of variance 40/9. If the third wants B or C instead, the second gets all C or all B.
    """
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([60, 40, 20]))
    counts = many(Dirichlet(1e-200, form="client"), labels, 3, seeds=800).flatten(0, 1)
    drawn = counts[(counts[:, 0] == 20) & (counts[:, 1] > 0) & (counts[:, 2] > 0)][:, 1].double()
    assert len(drawn) / 800 == pytest.approx(1 / 8, abs=5 * math.sqrt(7 / 64 / 800))
    assert drawn.mean().item() == pytest.approx(40 / 3, abs=5 * math.sqrt(40 / 9 / len(drawn)))


def test_client_form_spreads_leftovers() -> None:
    """61 examples over 4 clients: 16 + 15 + 15 + 15, the larger part at a client chosen at random."""
    sizes = many(Dirichlet(1.0, form="client"), torch.arange(61) % 3, 4, seeds=400).sum(2)
    assert bool((sizes.sort(1).values == torch.tensor([15, 15, 15, 16])).all())
    larger = (sizes == 16).double().mean(0).tolist()
    assert larger == pytest.approx([0.25] * 4, abs=5 * math.sqrt(3 / 16 / 400))


def test_rebalanced_form_stops_at_the_fair_share() -> None:
    """A client with n / N = 50 examples gets no further class: before its last class it held fewer than 50."""

    def most_before_another_class(partition: Dirichlet) -> int:
        counts = many(partition, torch.arange(1000) % 10, 20, seeds=5)
        assert int(counts.sum(2).min()) >= (5 if partition.form == "rebalanced" else 0)
        return int((counts.cumsum(2) - counts)[counts > 0].max())

    assert most_before_another_class(Dirichlet(0.1, form="rebalanced", min_samples=5)) < 50
    assert most_before_another_class(Dirichlet(0.1)) >= 50


def test_hybrid_by_hand() -> None:
    """Six classes of 100, five clients: the first two take 100 / 5 = 20 of each (no skew).

    Of the 60 of every class that remain, one of the last three takes all (alpha -> 0).
    """
    for seed in range(5):
        counts = class_counts(HybridDirichlet((1e305, 1e-300), share=0.4), torch.arange(600) % 6, 5, seed)
        assert counts[:2].tolist() == [[20] * 6] * 2
        assert counts[2:].sort(0).values.tolist() == [[0] * 6, [0] * 6, [60] * 6]


def test_hybrid_halves_have_their_own_law() -> None:
    """FedLAW's Fig. 5: of each class, clients 0-9 have Beta(10, 190) shares: mean 1/20, variance 0.05 * 0.95 / 201.

    Clients 10-19 share what remains: Beta(0.1, 0.9) each, mean 1/10, variance 0.1 * 0.9 / 2.
    """
    counts = many(HybridDirichlet(), torch.arange(50_000) % 10, 20, seeds=100).transpose(1, 2)  # (seeds, C, N)
    remaining = counts[..., 10:].sum(2, keepdim=True)
    check_shares(counts[..., :10] / 5000, 10, 190, draws=1000)
    check_shares(counts[..., 10:] / remaining, 0.1, 0.9, draws=1000)


def test_hybrid_of_three_equal_clients() -> None:
    """FedLAW's Fig. 12: the first of three clients by itself, the others from what it leaves, all of equal size.

    Client 0 has no skew, and of two classes of 450 about 150 each: hypergeometric, variance 300 / 4 * 600 / 899 = 50.
    The others want one class alone (alpha -> 0) and have 300 of some 600: if they want different ones, each has them.
    """
    counts = many(HybridDirichlet((math.inf, 1e-300), 1 / 3, form="client"), torch.arange(900) % 2, 3, seeds=200)
    assert bool((counts.sum(2) == 300).all())
    first = counts[:, 0, 0].double()
    assert first.mean().item() == pytest.approx(150, abs=5 * math.sqrt(50 / 200))
    assert bool((first - 150).abs().max() < 5 * math.sqrt(50))
    assert bool((counts[:, 1:, 0].double().sub(150).abs() > 100).all())  # complementary


@pytest.mark.parametrize(("share", "first"), [(0.1, 0), (0.25, 1), (0.9, 4)])
def test_hybrid_rounds_its_share(share: float, first: int) -> None:
    """0.4, 1 and 3.6 of 4 clients: none, one, all. Those have 10 of every class; the others all 20 or none."""
    counts = class_counts(HybridDirichlet((1e305, 1e-300), share), torch.arange(80) % 2, 4)
    assert (counts == 10).all(1).tolist() == [True] * first + [False] * (4 - first)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(0.0), r"expected alpha > 0, got 0.0: use"),
        (lambda: Dirichlet(math.nan), r"expected alpha > 0, got nan: use"),
        (lambda: QuantitySkew(-1.0), r"expected alpha > 0, got -1.0: use"),
        (lambda: HybridDirichlet((1.0, 0.0)), r"expected alphas\[1\] > 0, got 0.0: use"),
        (lambda: HybridDirichlet((1.0,)), r"expected two alphas, got \(1.0,\)"),
        (lambda: HybridDirichlet(share=0.0), r"expected share in \(0, 1\), got 0.0"),
        (lambda: HybridDirichlet(share=math.nan), r"expected share in \(0, 1\), got nan"),
        (lambda: HybridDirichlet(form="rebalanced"), "form must be 'class' or 'client', got 'rebalanced'"),
        (lambda: Dirichlet(1.0, form="classes"), "form must be 'class', 'client' or 'rebalanced', got 'classes'"),
        (lambda: Dirichlet(1.0, min_samples=-1), "min_samples must be at least 0, got -1"),
    ],
)
def test_refuses_other_arguments(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_refuses_what_cannot_be_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes, each to one client (alpha -> 0): redrawing does not help three clients to data."""
    with pytest.raises(ConfigurationError, match="at least 20 x min_samples = 200 examples, got 100"):
        class_counts(Dirichlet(1.0, form="rebalanced"), torch.arange(100) % 10, 20)
    monkeypatch.setattr("fl_lightning.datamodules.partition.dirichlet.MAX_REDRAWS", 50)
    with pytest.raises(ConfigurationError, match=r"min_samples=1 examples.*in 50 draws.*raise alpha"):
        class_counts(Dirichlet(1e-300, form="rebalanced", min_samples=1), torch.arange(10) % 2, 3)
