"""FedLF by hand on two updates, by the optimality of the shortest vector, and by the numbers of the released code."""

from typing import Any

import pytest
import torch
from lib.hand_made import apply, serve
from lib.toy import close
from torch import Tensor

from fl_lightning.callbacks import FedLF
from fl_lightning.callbacks.server.fedlf import by_layer, evening, fair_descent
from fl_lightning.engine.updates.updates import Updates

SIZES = [9, 6]
ONES = [1.0, 1.0]
# Made by get_FedLF_d_layers of gfedplat/algorithm/FedLF/FedLF.py in zibinpan/FedLF on the updates of released(), in
# float64 and with tolerances of 1e-14 in its solver: the losses, whether client 3 is away, and the direction.
RELEASED: list[tuple[list[float], bool, list[float]]] = [
    (
        [1.0, 2.0, 4.0],
        False,
        [
            -0.0247958751,
            0.0617275660,
            0.0011421692,
            0.0345769046,
            0.0289620272,
            0.0066446648,
            0.0564475847,
            -0.0198440870,
            0.0814093582,
            0.0433178927,
            0.1507289860,
            0.0502148905,
            0.1418201979,
            0.0609571594,
            0.1294594547,
        ],
    ),
    (
        [1.0, 2.0, 4.0],
        True,
        [
            -0.0045219426,
            0.0081144972,
            -0.0014148712,
            0.0048166954,
            0.0020076554,
            0.0013379458,
            0.0054730008,
            -0.0020446363,
            0.0087051174,
            0.0424084349,
            -0.0038659597,
            0.0108202800,
            0.0280161403,
            -0.0207176448,
            0.0585786581,
        ],
    ),
    (
        [4.0, 1.0, 2.0],
        False,
        [
            -0.0448706668,
            0.1266193742,
            -0.0146663904,
            0.0935872623,
            0.0205324190,
            0.0569262597,
            0.0579218446,
            0.0195567607,
            0.0945234661,
            0.0560781977,
            -0.0265504837,
            0.0144067595,
            0.0159407140,
            -0.0280537361,
            0.0575206604,
        ],
    ),
]


def released() -> Tensor:
    """(4, 15) the updates of three clients, and the last of one that is away."""
    updates = (3 * torch.arange(60, dtype=torch.float64)).sin().reshape(4, 15) + 0.6
    updates[3] = 2 * updates[0] - updates[1] - updates[2] + 0.2
    return updates


def direction(updates: Tensor, sizes: list[int], losses: list[float]) -> Tensor:
    """(P,) the layers' directions, one after another; in a layer without one, zero."""
    layers = by_layer(Updates.of(updates).gram, sizes, evening(torch.tensor(losses, dtype=torch.float64)))
    lengths = torch.tensor([size for size, _ in layers])
    factors = torch.stack([coefficients for _, coefficients in layers])
    return (factors.T.repeat_interleave(lengths, 1) * updates).sum(0)


@pytest.mark.parametrize(("losses", "away", "theirs"), RELEASED)
def test_the_directions_of_the_released_code(losses: list[float], away: bool, theirs: list[float]) -> None:
    updates = released() if away else released()[:3]
    assert close(direction(updates, SIZES, losses), theirs, 1e-7)


@pytest.mark.parametrize("losses", [[1.0, 2.0, 4.0, 2.0, 3.0], [1.0] * 5])
def test_the_shortest_vector_of_the_hull(losses: list[float]) -> None:
    """In each layer d·v >= ‖d‖² for all corners v: the scaled updates, and the evening one. So no client loses."""
    draw = torch.Generator().manual_seed(1)
    updates = torch.randn(5, 100, generator=draw, dtype=torch.float64) * torch.logspace(-2, 2, 5)[:, None]
    sizes = [60, 40]
    leaning = evening(torch.tensor(losses, dtype=torch.float64))
    found = direction(updates, sizes, losses).split(sizes)
    for step, layer in zip(found, updates.split(sizes, 1), strict=True):
        mean = layer.norm(dim=1).mean()
        units = torch.nn.functional.normalize(layer)
        corners = torch.cat([units, torch.nn.functional.normalize((leaning @ units)[None])]) * mean
        corners = corners[corners.norm(dim=1) > 0]
        assert float((corners @ step).min() / (step @ step)) == pytest.approx(1, abs=1e-5)
        assert float(step.norm()) > 0


def test_losses_turn_towards_equal_ones() -> None:
    """By autograd: the gradient of -cos(1, F), times ‖F‖."""
    losses = torch.tensor([0.5, 3.0, 1.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(
        -torch.nn.functional.cosine_similarity(losses, torch.ones(3).double(), dim=0), losses
    )
    assert close(evening(losses.detach()), slope * losses.detach().norm())
    for equal in ([0.0, 0.0], [0.1, 0.1, 0.1], [1e-9] * 7):
        assert not evening(torch.tensor(equal, dtype=torch.float64)).any()


def test_two_orthogonal_updates() -> None:
    """Scaled to the length 2, (1, 0) and (0, 3) meet in (1, 1), scaled to the mean's length √(1 + 9)/2.

    The losses (1, 3) are evened along (-3, 1): the hull's shortest vector is perpendicular to (1, 0) - (-3, 1)/√10.
    """
    step, _ = apply([[1.0, 0.0], [0.0, 3.0]], FedLF(), losses=ONES)
    assert close(step, [(10**0.5 / 2) / 2**0.5] * 2, 1e-7)
    uneven, _ = apply([[1.0, 0.0], [0.0, 3.0]], FedLF(), losses=[1.0, 3.0])
    assert float(uneven[1] / uneven[0]) == pytest.approx(3 + 10**0.5, abs=1e-5)
    assert float(uneven.norm()) == pytest.approx(10**0.5 / 2)


def test_layers_join_where_updates_cancel() -> None:
    """Columns: 1 that cancels, 2 orthogonal, 1 that cancels: a layer joins the next, the last the one before."""
    updates = torch.tensor([[1.0, 2.0, 0.0, 1.0], [-1.0, 0.0, 2.0, -1.0]], dtype=torch.float64)
    even = torch.zeros(2, dtype=torch.float64)
    assert [size for size, _ in by_layer(Updates.of(updates).gram, [1, 2, 1], even)] == [4]
    assert [size for size, _ in by_layer(Updates.of(updates[:, 1:]).gram, [2, 1], even)] == [3]
    assert [size for size, _ in by_layer(Updates.of(updates[:, :3]).gram, [1, 2], even)] == [3]
    assert [size for size, _ in by_layer(Updates.of(updates[:, 1:3].repeat(1, 2)).gram, [2, 2], even)] == [2, 2]
    assert by_layer(Updates.of(updates[:, :1]).gram, [1], even) == []


def test_clients_that_are_away_are_not_lost_from_sight() -> None:
    """Client 0 steps by (2, -1) and leaves; τ = 1. Then (0, 1) of client 1 would go against it, and stops halfway.

    Scaled to the length 1, (2, -1)/√5 and (0, 1) meet in their middle, along (2, √5 - 1).
    """
    updates = [[2.0, -1.0], [0.0, 1.0]]
    server, _ = serve(updates, FedLF(), losses=ONES, cohorts=[[0], [1]])
    second = server.params - torch.tensor([2.0, -1.0], dtype=torch.float64)
    assert close(second / second.norm(), torch.nn.functional.normalize(torch.tensor([2.0, 5**0.5 - 1]), dim=0), 1e-6)
    assert float(second.norm()) == pytest.approx(1.0)
    server, _ = serve(updates, FedLF(), losses=ONES, cohorts=[[0], [1], [1], [1]])
    fourth = server.params - serve(updates, FedLF(), losses=ONES, cohorts=[[0], [1], [1]])[0].params
    assert close(fourth, (0.0, 1.0), 1e-7)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_scales_with_the_updates(scale: float) -> None:
    given = {"losses": [1.0, 2.0, 3.0]}
    updates = released()[:3]
    assert close(apply(scale * updates, FedLF(), **given)[0] / scale, apply(updates, FedLF(), **given)[0], 1e-6)


@pytest.mark.parametrize("updates", [[[0.0, 0.0]] * 2, [[0.1, 0.7], [-0.3, -2.1]]], ids=["zero", "opposite"])
def test_no_step_where_none_helps_all(updates: Any) -> None:
    assert close(apply(updates, FedLF(), losses=[1.0, 2.0])[0], (0.0, 0.0), 0.0)


def test_one_update_equal_ones_and_a_zero_one() -> None:
    """Equal updates cannot even unequal losses but by a step backwards, against themselves."""
    assert close(apply([[1.0, -3.0]], FedLF(), losses=[2.0])[0], (1.0, -3.0))
    assert close(apply([[1.0, -3.0]] * 3, FedLF(), losses=[2.0] * 3)[0], (1.0, -3.0), 1e-6)
    assert close(apply([[1.0, -3.0]] * 3, FedLF(), losses=[1.0, 2.0, 3.0])[0], (0.0, 0.0), 0.0)
    gram = torch.tensor([[4.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert close(fair_descent(gram, torch.zeros(2, dtype=torch.float64)), (0.5, 0.0))
