"""SignAgreement by hand on three updates, and against what the authors' code gives for them."""

from typing import Any

import pytest
import torch
from lib.hand_made import apply, serve
from lib.toy import close
from torch import Tensor

from fl_lightning.callbacks import FedAvg, NormClipping, SignAgreement

THREE = [[2.0, -1.0, 3.0, 0.0, -2.0, 1.0], [1.0, -3.0, -1.0, 1.0, -2.0, 0.5], [3.0, -2.0, 2.0, 2.0, -5.0, 0.0]]
# What agreement_sum of the authors' repository (lucasmansilla/DGvGS, src/gradient.py) returns for THREE.
AGREED = torch.tensor([6.0, -6.0, 0.0, 0.0, -9.0, 0.0], dtype=torch.float64)
SIZE = 7.0  # by which its agreement_rand multiplies the draws for the other three


def drawn() -> Tensor:
    draw = torch.Generator().manual_seed(7)
    return (torch.randn(4, 40, generator=draw) + 0.6).double()


def test_components_that_agree_are_averaged_and_the_others_are_zero() -> None:
    """The first, second and fifth agree; a zero beside 1 and 2 does not. The authors' sum is 3 times the mean."""
    assert close(apply(THREE, FedAvg("uniform"), SignAgreement())[0], AGREED / 3)


def test_the_authors_sum_of_drawn_updates() -> None:
    """As the authors' agreement_sum: the coordinates that it keeps, and the first four of their sums."""
    step = 4 * apply(drawn(), FedAvg("uniform"), SignAgreement())[0]
    kept = step.nonzero().flatten()
    assert kept.tolist() == [0, 1, 4, 8, 9, 18, 20, 24, 25, 33, 34, 35]
    assert close(step[kept[:4]], (-2.8951, 5.6537, 1.4145, 3.3188), 1e-4)


def test_weights_count() -> None:
    """Two examples and one each: (4 + 1 + 3) / 4, (-2 - 3 - 2) / 4, and (-4 - 2 - 5) / 4."""
    step, _ = apply(THREE, SignAgreement(), samples=[2, 1, 1])
    assert close(step, (2.0, -1.75, 0.0, 0.0, -2.75, 0.0))


def test_the_others_are_drawn_as_large_as_the_agreeing_ones() -> None:
    """A third of the authors' steps: their scale is the mean of 6, 6 and 9, not that of the root of the squares."""
    step, _ = apply(THREE, FedAvg("uniform"), SignAgreement("random"))
    draws = serve(THREE)[0].generator("sign agreement", 1)
    noise = torch.randn(6, generator=draws, dtype=torch.float64)
    expected = torch.where(AGREED == 0, SIZE * noise, AGREED) / 3
    assert close(step, expected)


def test_a_draw_of_its_own_in_each_round() -> None:
    one, two = (apply([[1.0, 1.0], [1.0, -1.0]], SignAgreement("random"), rounds=rounds)[0] for rounds in (1, 2))
    assert close(two[0], 2 * one[0])
    assert float(two[1] - one[1]) != pytest.approx(float(one[1]))


@pytest.mark.parametrize("others", ["zero", "random"])
def test_nothing_agrees(others: Any) -> None:
    """Where the authors' Agr-Rand takes the mean of nothing, and the model becomes nan."""
    assert close(apply([[1.0, -2.0], [-1.0, 1.0]], SignAgreement(others))[0], (0.0, 0.0))


def test_it_follows_rules_before_it() -> None:
    """Clipped to the norm 1: (3, 4) → (0.6, 0.8); (0.5, -0.5) stays: (0.55, 0)."""
    step, _ = apply([[3.0, 4.0], [0.5, -0.5]], NormClipping(1.0), SignAgreement())
    assert close(step, (0.55, 0.0))
