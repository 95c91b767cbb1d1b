"""GradVac by hand on two and three updates, and against TorchJD's over several rounds."""

import math
from typing import Any

import pytest
import torch
from lib.hand_made import apply, serve
from lib.toy import UPDATES, close
from torch import Tensor
from torchjd.aggregation import GradVacWeighting

from fl_lightning.callbacks import GradVac, PCGrad
from fl_lightning.callbacks.server.gradvac import vaccinate

UNITS = [[1.0, 0.0], [0.0, 1.0]]


def drawn(seed: int, size: int, columns: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(size, columns, generator=draw, dtype=torch.float64) + torch.ones(columns).double() / 2


@pytest.mark.parametrize("cosine", [-0.9, 0.0, 0.3])
@pytest.mark.parametrize("target", [0.4, 0.9])
def test_the_cosine_becomes_the_target(cosine: float, target: float) -> None:
    g = torch.tensor([[2.0, 0.0], [3 * cosine, 3 * math.sqrt(1 - cosine**2)]], dtype=torch.float64)
    targets = torch.tensor([[0.0, target], [-1.0, 0.0]], dtype=torch.float64)
    mixing, moved = vaccinate(g @ g.T, targets, 0.25, torch.tensor([[1], [0]]))
    turned = mixing @ g
    assert float(torch.nn.functional.cosine_similarity(turned[0], g[1], dim=0)) == pytest.approx(target)
    assert torch.equal(turned[1], g[1]), "above its target"
    assert close(moved, [[0.0, 0.75 * target + 0.25 * cosine], [0.25 * cosine - 0.75, 0.0]])


def test_two_rounds_by_hand() -> None:
    """(1, 0), (0.6, 0.8) agree: β = 1/2 makes the targets 0.3, and the first step is the mean, (0.8, 0.4).

    Then (1, 0), (0, 1): at a cosine of 0.3, each adds 0.3 / √0.91 of the other.
    """
    rule = GradVac(0.5)
    server, _ = serve([[1.0, 0.0], [0.6, 0.8], *UNITS], rule, cohorts=[[0, 1]])
    assert close(server.params, (0.8, 0.4))
    assert close(rule.state["targets/0"], (0.0, 0.3, 0.0, 0.0))
    assert close(rule.state["targets/1"], (0.3, 0.0, 0.0, 0.0))
    assert "targets/2" not in rule.state
    mixing, targets = vaccinate(
        torch.eye(2).double(), torch.full((2, 2), 0.3).double(), 0.5, order=torch.tensor([[1], [0]])
    )
    assert close(mixing, [[1.0, 0.3 / math.sqrt(0.91)], [0.3 / math.sqrt(0.91), 1.0]], 1e-6)
    assert close(targets - torch.eye(2) * 0.3, [[0.0, 0.15], [0.15, 0.0]], 1e-6)


@pytest.mark.parametrize(("size", "columns"), [(2, 3), (5, 40), (20, 10)])
@pytest.mark.parametrize("beta", [0.0, 0.01, 0.5])
def test_the_weights_of_torchjd_over_five_rounds(size: int, columns: int, beta: float) -> None:
    """Which draws the partners of one update after another from PyTorch's generator; the orders here are its own."""
    theirs, targets = GradVacWeighting(beta, eps=0.0), torch.zeros(size, size, dtype=torch.float64)
    every = torch.arange(size).repeat(size, 1)
    others = every[every != every.T].reshape(size, size - 1)
    for round in range(5):
        g = drawn(round, size, columns)
        with torch.random.fork_rng():
            torch.manual_seed(round)
            order = torch.stack([row[torch.randperm(size - 1)] for row in others])
            torch.manual_seed(round)
            expected = theirs(g @ g.T)
        mixing, targets = vaccinate(g @ g.T, targets, beta, order)
        assert close(mixing.sum(0), expected, 1e-9)
    assert bool(targets.any()) == (beta > 0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_without_memory_it_is_pcgrad(reduction: Any) -> None:
    for order in ("ascending", "descending"):
        ours, _ = apply(UPDATES, GradVac(0.0, reduction, order), samples=[1, 1, 2], rounds=2)
        assert close(ours, apply(UPDATES, PCGrad(reduction, order), rounds=2)[0])


def test_targets_belong_to_pairs_and_wait_for_them() -> None:
    """β = 1: a target is the last cosine. 0 and 1 met at 0.6, 0 and 2 at 0; the first pair's stays while 1 is away."""
    rule = GradVac(1.0)
    serve([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], rule, cohorts=[[0, 1], [0, 2]])
    assert close(rule.state["targets/0"], (0.0, 0.6, 0.0))
    assert close(rule.state["targets/1"], (0.6, 0.0, 0.0))
    assert close(rule.state["targets/2"], (0.0, 0.0, 0.0))


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_scales_with_the_updates(scale: float) -> None:
    updates = drawn(0, 5, 4)
    assert close(apply(scale * updates, GradVac(0.5), rounds=3)[0] / scale, apply(updates, GradVac(0.5), rounds=3)[0])


@pytest.mark.parametrize("beta", [0.01, 1.0])
def test_equal_updates_stay_as_they_are(beta: float) -> None:
    """The targets near 1, or reach it: rounding is no cosine below it."""
    for values in ([0.1, 0.7], [1e-9, 3e-9], [3.0, -4.0]):
        update = torch.tensor(values, dtype=torch.float64)
        step, _ = apply(update.repeat(3, 1), GradVac(beta), rounds=100)
        assert close(step / 100 / update.norm(), update / update.norm(), 1e-9)


def test_zero_opposite_and_single_updates() -> None:
    """Opposite updates cancel as PCGrad's do, and their targets turn negative; a zero update has none."""
    assert close(apply([[0.0, 0.0]] * 3, GradVac(), rounds=2)[0], (0.0, 0.0), 0.0)
    assert close(apply([[2.0, 1.0]], GradVac())[0], (2.0, 1.0), 0.0)
    rule = GradVac(0.5)
    assert close(apply([[0.1, 0.7], [-0.3, -2.1], [0.0, 0.0]], rule)[0], (0.0, 0.0), 1e-15)
    assert close(rule.state["targets/0"], (0.0, -0.5, 0.0))
