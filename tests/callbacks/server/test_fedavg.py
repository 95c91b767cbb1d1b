"""FedAvg on the toy problems, by hand."""

from typing import Literal

import pytest
import torch
from lib.hand_made import apply
from lib.toy import A, B, close, train

from fl_lightning.callbacks import FedAvg


@pytest.mark.parametrize(
    ("weighting", "momentum", "by_hand"),
    [
        ("samples", 0.0, (-0.938, 0.1239375)),
        ("uniform", 0.0, (-0.562, -0.037375)),
        ("samples", 0.9, (-1.847, 0.2679375)),
    ],
)
def test_one_round_of_the_toy_problem(
    weighting: Literal["samples", "uniform"], momentum: float, by_hand: tuple[float, float]
) -> None:
    """Average the ends of T's two clients by samples or uniformly; each client's momentum starts from zero."""
    v = A[0] * (0 - B[0])  # client 0, two steps: (-1, 2)
    w = -0.1 * v  # (0.1, -0.2)
    v = momentum * v + A[0] * (w - B[0])  # the gradient is (-0.9, 1.6)
    end_0 = w - 0.1 * v
    v = A[1] * (0 - B[1])  # client 1, three steps: (6, -1)
    w = -0.1 * v  # (-0.6, 0.1)
    v = momentum * v + A[1] * (w - B[1])  # the gradient is (4.2, -0.95)
    w = w - 0.1 * v
    v = momentum * v + A[1] * (w - B[1])
    end_1 = w - 0.1 * v
    n_0, n_1 = (1, 3) if weighting == "samples" else (1, 1)
    expected = (n_0 * end_0 + n_1 * end_1) / (n_0 + n_1)
    assert close(expected, by_hand)
    assert close(train(FedAvg(weighting), momentum=momentum), expected)


def test_is_what_a_run_does_without_any_rule() -> None:
    assert torch.equal(train(rounds=3, momentum=0.9), train(FedAvg(), rounds=3, momentum=0.9))


def test_weights_count_the_cohort_only() -> None:
    """N = (1, 1, 2): (2 - 1 - 2)/4 and (0 + 1 - 4)/4."""
    updates = [[2.0, 0.0], [-1.0, 1.0], [-1.0, -2.0]]
    model, capture = apply(updates, FedAvg(), samples=[1, 1, 2])
    assert close(capture.cohort.weights, (0.25, 0.25, 0.5))
    assert close(model, (-0.25, -0.75))
    assert close(apply(updates, FedAvg("uniform"), samples=[1, 1, 2])[0], (0.0, -1 / 3))
