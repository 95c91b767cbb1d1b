"""FAMO by hand, and by the numbers of the released code."""

import math
from collections.abc import Sequence

import pytest
import torch
from lib.hand_made import Bench, Watch, serve
from lib.toy import GivenData, Linear, close
from torch import Tensor

from fl_lightning import ClientResult, Cohort
from fl_lightning.callbacks import FAMO
from fl_lightning.callbacks.server.client_losses import LOSS
from fl_lightning.callbacks.server.famo import move_logits
from fl_lightning.errors import TrainingError

LOSSES = [[2.0, 1.0, 0.5], [1.5, 0.9, 0.5], [1.2, 0.5, 0.6], [1.1, 0.45, 0.3], [0.6, 0.44, 0.2]]
# Made by the class FAMO of methods/weight_methods.py in Cranial-XIX/FAMO on these losses, in float64: in each round but
# the first, its update(losses); then the derivatives of get_weighted_loss by the losses.
RELEASED = {
    (0.025, 0.001): [
        [0.1428571442857143, 0.2857142871428572, 0.5714285685714287],
        [0.16932129609236346, 0.296670962892619, 0.5340077410150176],
        [0.1749466233452184, 0.4417600532264788, 0.3832933234283029],
        [0.13235407151083842, 0.33740342482500185, 0.5302425036641597],
        [0.17412784128240166, 0.2509193406234729, 0.5749528180941255],
    ],
    (0.5, 0.01): [
        [0.1428571442857143, 0.2857142871428572, 0.5714285685714287],
        [0.07307105063917307, 0.3310459551649687, 0.5958829941958581],
        [0.052679256778451145, 0.33144981702495, 0.615870926196599],
        [0.03534154286690105, 0.20306327748614603, 0.7615951796469531],
        [0.04439592710506531, 0.15897867393303675, 0.7966253989618978],
    ],
}


def weights_of(
    rule: FAMO, losses: Sequence[Sequence[float]], cohorts: Sequence[Sequence[int]] | None = None
) -> list[Tensor]:
    """The weights of each round, given the losses (N,) in it, and its clients: by default all."""
    updates = torch.eye(len(losses[0]), dtype=torch.float64)
    capture = Watch()
    server = Bench(Linear(len(updates)), GivenData(updates), rule, capture)
    found = []
    for round, row in enumerate(losses):
        clients = list(cohorts[round]) if cohorts else list(range(len(row)))
        vectors = [{LOSS: torch.tensor(row[k], dtype=torch.float64)} for k in clients]
        results = [ClientResult(k, 1, 1, 0.0, 1.0, vectors=sent) for k, sent in zip(clients, vectors, strict=True)]
        server.take(Cohort.collect(round + 1, server.params.clone(), updates[clients], results))
        found.append(capture.cohort.weights)
    return found


@pytest.mark.parametrize(("lr", "gamma"), RELEASED)
def test_the_weights_of_the_released_code(lr: float, gamma: float) -> None:
    for ours, theirs in zip(weights_of(FAMO(lr, gamma), LOSSES), RELEASED[lr, gamma], strict=True):
        assert close(ours, theirs, 1e-12)


def test_the_first_two_rounds_by_hand() -> None:
    """Losses (1, 4) give the weights 1 : 1/4. The first falls to 1/2: Adam's first step of 0.1 makes ξ (-0.1, 0.1)."""
    first, second = weights_of(FAMO(0.1, 0.0), [[1.0, 4.0], [0.5, 4.0]])
    assert close(first, (0.8, 0.2), 1e-7)
    lower, higher = 2 * math.exp(-0.1), math.exp(0.1) / 4
    assert close(second, (lower / (lower + higher), higher / (lower + higher)), 1e-6)


def test_adam_is_that_of_pytorch() -> None:
    """On the gradient of Σ softmax(ξ)_i fall_i, by autograd."""
    values = torch.tensor([0.5, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([values], lr=0.3, weight_decay=0.05)
    logits = torch.zeros(4, 3, dtype=torch.float64)
    logits[0] = values.detach()
    for seed in range(5):
        fall = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        optimizer.zero_grad()
        (values.softmax(0) @ fall).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        logits = move_logits(logits, fall, 0.3, 0.05)
        assert close(logits[0], values.detach(), 1e-12)


def test_clients_that_are_away_keep_what_they_have() -> None:
    """Client 2's loss falls from round 1 to 3 by 1 → 0.5; without the rounds between, in which it had no part."""
    rule = FAMO(0.1, 0.0)
    weights_of(rule, [[1.0, 1.0, 1.0], [0.9, 0.5, 7.0]], [[0, 1, 2], [0, 1]])
    logits, last = rule.state["logits"].clone(), rule.state["log losses"].clone()
    assert close(logits[:, 2], [0.0] * 4, 0.0)
    assert float(last[2]) == pytest.approx(0.0, abs=1e-7)
    assert float(logits[0, 0]) > 0 > float(logits[0, 1])
    weights_of(rule := FAMO(0.1, 0.0), [[1.0] * 3, [0.9, 0.5, 7.0], [0.9, 3.0, 0.5]], [[0, 1, 2], [0, 1], [0, 2]])
    assert close(rule.state["logits"][:, 1], logits[:, 1], 0.0)
    assert close(rule.state["logits"][3], (2.0, 1.0, 1.0), 0.0)
    assert float(rule.state["logits"][0, 2]) == pytest.approx(-0.1, abs=1e-6)


def test_a_new_client_starts_even() -> None:
    """Client 2 comes in round 2, of which it learns nothing: ξ = 0, and its loss is kept."""
    rule = FAMO(0.1, 0.0)
    _, second = weights_of(rule, [[1.0, 1.0, 9.0], [0.5, 1.0, 2.0]], [[0, 1], [0, 1, 2]])
    shares = [math.exp(-0.1) / 0.5, math.exp(0.1) / 1.0, 1 / 2.0]
    assert close(second, [share / sum(shares) for share in shares], 1e-6)
    assert float(rule.state["log losses"][2]) == pytest.approx(math.log(2))


def test_one_client_and_equal_falls_move_nothing() -> None:
    assert close(torch.cat(weights_of(FAMO(), [[3.0], [2.0], [1.0]])), [1.0] * 3, 0.0)
    moved = move_logits(torch.zeros(4, 3, dtype=torch.float64), torch.full((3,), 0.7, dtype=torch.float64), 0.5, 0.001)
    assert close(moved[0], [0.0] * 3, 1e-8)


@pytest.mark.parametrize("scale", [1e-6, 1e9])
def test_the_unit_of_the_losses_does_not_count(scale: float) -> None:
    scaled = [[scale * loss for loss in row] for row in LOSSES]
    tolerance = max(1e-6, 1e-7 / scale)  # 1e-8 is added to losses
    for one, other in zip(weights_of(FAMO(), scaled), weights_of(FAMO(), LOSSES), strict=True):
        assert close(one, other, tolerance)


def test_losses_of_zero_and_below() -> None:
    """A client that has nothing left to learn takes nearly all the weight, as published: its loss counts as 1e-8."""
    server, _ = serve([[1.0, 0.0], [0.0, 1.0]], FAMO(), losses=[0.0, 1.0])
    assert close(server.params / torch.tensor([1.0, 1e-8]), (1.0, 1.0), 1e-6)
    with pytest.raises(TrainingError, match=r"round 1: FAMO needs losses of at least 0, got -0\.5"):
        serve([[1.0, 0.0], [0.0, 1.0]], FAMO(), losses=[1.0, -0.5])
