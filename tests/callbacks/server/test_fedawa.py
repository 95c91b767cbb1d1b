"""FedAWA by hand, by autograd, and beside the released code."""

import math
from typing import Any

import pytest
import torch
from lib.hand_made import apply, serve
from lib.toy import close

from fl_lightning.callbacks import FedAWA
from fl_lightning.callbacks.server.fedawa import misalignment

START = [0.3, -0.2, 0.1]
GIVEN = [[2.0, 0.0, 1.0], [-1.0, 1.0, 0.5], [-1.0, -2.0, 0.0]]


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (1, [0.2509999998785947, 0.24900000005416273, 0.5009999999022101]),
        (10, [0.260008669371399, 0.2399749499803349, 0.5100381313857689]),
        (300, [0.504919250482833, -0.06286259382726274, 0.8441769636174622]),
    ],
)
def test_the_released_code(epochs: int, expected: list[float]) -> None:
    """The function fedawa of ChanglongShi/FedAWA, run apart in float64 on these models: the numbers t."""
    rule = FedAWA(epochs)
    model, capture = apply(GIVEN, rule, samples=[1, 1, 2], start=START)
    assert close(rule.state["logits"], expected, 1e-12)
    assert close(capture.cohort.weights, torch.tensor(expected, dtype=torch.float64).softmax(0), 1e-12)
    assert close(model, torch.tensor(START, dtype=torch.float64) + capture.corrected.T @ capture.cohort.weights, 1e-12)


@pytest.mark.parametrize("columns", [2, 40])
def test_the_slope_is_that_of_the_models_themselves(columns: int) -> None:
    """Value and gradient by autograd on vectors, where the rule has the Gram matrix alone."""
    draw = torch.Generator().manual_seed(columns)
    updates = torch.randn(5, columns, generator=draw, dtype=torch.float64)
    w = torch.randn(columns, generator=draw, dtype=torch.float64)
    weights = torch.rand(5, generator=draw, dtype=torch.float64).requires_grad_()
    turned = 1 - torch.cosine_similarity(w[None], w + updates)
    value = weights @ ((updates - weights @ updates).norm(dim=1) + turned)
    value.backward()
    ours, slope = misalignment(updates @ updates.T, turned, weights.detach())
    assert close(ours, value.detach(), 1e-12)
    assert close(slope, weights.grad, 1e-12)


def test_two_clients_by_hand() -> None:
    """(1, 0) and (0, 1) from (1, 0): the distances are the same, the second model alone turns, by 1 - 1/√2.

    So t goes from (½, ½) by Adam's first step, its rate, to ½ ± 0.1; the weights are e^0.2 : 1.
    """
    rule = FedAWA(lr=0.1)
    _, capture = apply([[1.0, 0.0], [0.0, 1.0]], rule, start=[1.0, 0.0])
    assert close(rule.state["logits"], (0.6, 0.4), 1e-7)
    assert close(capture.cohort.weights, (math.exp(0.2) / (1 + math.exp(0.2)), 1 / (1 + math.exp(0.2))), 1e-7)


def test_a_client_that_is_away_keeps_its_number() -> None:
    """Three shares of ⅓; client 2 is away in round 1, and 0 in round 2."""
    rule = FedAWA(lr=0.1)
    apply([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], rule, start=[1.0, 0.0], cohorts=[[0, 1]])
    assert close(rule.state["logits"], (1 / 3 + 0.1, 1 / 3 - 0.1, 1 / 3), 1e-7)
    again = FedAWA(lr=0.1)
    apply([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], again, start=[1.0, 0.0], cohorts=[[0, 1], [1, 2]])
    assert close(again.state["logits"], (1 / 3 + 0.1, 1 / 3 - 0.2, 1 / 3 + 0.1), 1e-4)


def test_many_steps_lower_what_is_to_be_small() -> None:
    """The outlier of four updates weighs less, the longer the rule learns."""
    updates = [[1.0, 0.0, 0.1], [1.0, 0.1, 0.0], [1.0, 0.0, 0.0], [-3.0, 2.0, 0.0]]
    outlier = [
        float(apply(updates, FedAWA(epochs, lr=0.01), start=START)[1].cohort.weights[3]) for epochs in (1, 9, 99)
    ]
    assert outlier == sorted(outlier, reverse=True)
    assert outlier[-1] < 0.15


@pytest.mark.parametrize("updates", [[[2.0, -1.0]], [[1.0, 1.0]] * 3, [[0.0, 0.0]] * 3], ids=["one", "same", "zero"])
@pytest.mark.parametrize("start", [[0.0, 0.0], [0.5, 1.0]])
def test_clients_that_agree_move_the_model_as_one(updates: Any, start: list[float]) -> None:
    model, capture = apply(updates, FedAWA(epochs=20), start=start)
    assert close(model, torch.tensor(start).double() + torch.tensor(updates[0]).double(), 1e-12)
    assert close(capture.cohort.weights.sum(), 1.0, 1e-12)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_any_scale_gives_weights(scale: float) -> None:
    opposite = scale * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]).double()
    _, capture = serve(opposite, FedAWA(epochs=50), start=[0.5, 1.0], rounds=3)
    assert bool((capture.cohort.weights > 0).all())
    assert close(capture.cohort.weights.sum(), 1.0, 1e-12)
