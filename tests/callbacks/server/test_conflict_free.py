"""ConFIG by hand on two and three updates, and against TorchJD."""

import math
from typing import Any

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close
from torchjd import aggregation

from fl_lightning import cosines
from fl_lightning.callbacks import ConFIG, FedAvg, PCGrad
from fl_lightning.callbacks.server.conflict_free import conflict_free_weights


@pytest.mark.parametrize("degrees", [10, 90, 120, 170])
@pytest.mark.parametrize("lengths", [(1.0, 1.0), (2.0, 5.0)])
def test_two_updates_meet_in_the_middle(degrees: float, lengths: tuple[float, float]) -> None:
    """Both have the angle θ/2 with the step, whose length is the sum (a + b) cos θ/2 of theirs along it."""
    half = math.radians(degrees) / 2
    updates = [[lengths[0], 0.0], [lengths[1] * math.cos(2 * half), lengths[1] * math.sin(2 * half)]]
    length = sum(lengths) * math.cos(half)
    assert close(apply(updates, ConFIG("sum"))[0], (length * math.cos(half), length * math.sin(half)))
    assert close(apply(updates, ConFIG())[0], (length / 2 * math.cos(half), length / 2 * math.sin(half)))


def test_weights_are_cosines() -> None:
    """(1, 0), (0, 2) by n = (3, 1): the direction (3, 1)/√10 has these cosines; the length is (3 + 2)/√10."""
    assert close(apply([[1.0, 0.0], [0.0, 2.0]], ConFIG("sum"), samples=[3, 1])[0], (1.5, 0.5))


@pytest.mark.parametrize(("size", "columns"), [(1, 3), (2, 2), (3, 7), (8, 3), (20, 400)])
def test_the_steps_of_torchjd(size: int, columns: int) -> None:
    """Whose preferences are the run's weights; where K > P, no direction has these cosines, and the nearest counts."""
    draw = torch.Generator().manual_seed(size)
    g = torch.randn(size, columns, generator=draw, dtype=torch.float64) * torch.logspace(-2, 2, size)[:, None]
    samples = list(range(1, size + 1))
    theirs = aggregation.ConFIG()(g)
    assert close(apply(g, FedAvg("uniform"), ConFIG("sum"), samples=samples)[0] / theirs.norm(), theirs / theirs.norm())
    theirs = aggregation.ConFIG(torch.tensor(samples).double())(g)
    assert close(apply(g, ConFIG("sum"), samples=samples)[0] / theirs.norm(), theirs / theirs.norm())


@pytest.mark.parametrize("size", [2, 5, 20])
def test_no_client_loses(size: int) -> None:
    """All cosines with the step are equal and positive, however the updates conflict."""
    draw = torch.Generator().manual_seed(size)
    g = torch.randn(size, 50, generator=draw, dtype=torch.float64)
    step, _ = apply(g - 0.9 * g.mean(0), ConFIG())
    angles = torch.nn.functional.cosine_similarity(g - 0.9 * g.mean(0), step[None])
    assert float(angles.min()) > 0
    assert float(angles.max() - angles.min()) < 1e-9
    assert float(cosines(g @ g.T).min()) < 0 or size == 2


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_scales_with_the_updates(scale: float) -> None:
    updates = torch.tensor(UPDATES, dtype=torch.float64)
    assert close(apply(scale * updates, ConFIG())[0] / scale, apply(updates, ConFIG())[0])


def test_one_huge_update_turns_no_step() -> None:
    """(1e-9, 0) and (0, 1e9): the direction stays (1, 1)/√2; the length is (1e-9 + 1e9)/√2."""
    assert close(apply([[1e-9, 0.0], [0.0, 1e9]], ConFIG("sum"))[0] / 1e9, (0.5, 0.5))


def test_one_update_and_equal_updates_are_followed() -> None:
    """K equal updates: C⁺ of rank one gives each a K-th."""
    assert close(apply([[1.0, -3.0]], ConFIG())[0], (1.0, -3.0))
    assert close(apply([[1.0, -3.0]] * 4, ConFIG())[0], (1.0, -3.0))
    assert close(apply([[1.0, -3.0]] * 4, ConFIG("sum"))[0], (4.0, -12.0))


@pytest.mark.parametrize("updates", [[[0.0, 0.0]] * 3, [[0.1, 0.7], [-0.3, -2.1]]], ids=["zero", "opposite"])
def test_no_direction_gives_no_step(updates: Any) -> None:
    assert close(apply(updates, ConFIG())[0], (0.0, 0.0), 0.0)


def test_what_rounding_leaves_of_opposite_updates_is_no_direction() -> None:
    half = torch.full((2,), 0.5, dtype=torch.float64)
    for x, y, scale in torch.cartesian_prod(*[torch.arange(1, 10).double() / 10] * 3):
        g = torch.stack([torch.stack([x, y]), -scale * torch.stack([x, y])])
        assert not conflict_free_weights(g @ g.T, half).any()


def test_a_zero_update_has_no_angle() -> None:
    """(3, 0), (0, 0), (0, 4): along (1, 1)/√2 the others have the lengths 3/√2 and 4/√2, the sum of which is 7/√2."""
    assert close(apply([[3.0, 0.0], [0.0, 0.0], [0.0, 4.0]], ConFIG("sum"))[0], (3.5, 3.5))


def test_works_on_the_updates_so_far() -> None:
    """PCGrad makes (2, 0), (-1, 1) into (1, 1), (0, 1), 45° apart: 22.5° from either, √2 and 1 long."""
    step, _ = apply([[2.0, 0.0], [-1.0, 1.0]], PCGrad(), ConFIG("sum"))
    length, angle = (math.sqrt(2) + 1) * math.cos(math.pi / 8), 3 * math.pi / 8
    assert close(step, (length * math.cos(angle), length * math.sin(angle)))
