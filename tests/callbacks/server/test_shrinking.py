"""A fixed shrinking factor."""

from lib.hand_made import apply
from lib.toy import UPDATES, close

from fl_lightning.callbacks import FedAvg, FedNova, GlobalWeightShrinking

W0 = [4.0, 0.0, -2.0, 1.0]


def test_shrinks_the_new_model() -> None:
    """With n = (1, 3), w + Σ λ_k Δ_k = (4, 0, -2, 1) + (0.5, 3, 1.5, 0) = (4.5, 3, -0.5, 1); γ = 0.5 halves it."""
    updates = [[2.0, 0.0, 0.0, 0.0], [0.0, 4.0, 2.0, 0.0]]
    model, _ = apply(updates, GlobalWeightShrinking(0.5), samples=[1, 3], start=W0)
    assert close(model, [2.25, 1.5, -0.25, 0.5])
    assert close(apply([[0.0] * 4], GlobalWeightShrinking(0.75), start=W0)[0], [3.0, 0.0, -1.5, 0.75])


def test_every_round() -> None:
    """From w = 0 with one update of 1: γ, then γ (γ + 1)."""
    assert close(apply([[1.0]], GlobalWeightShrinking(0.9), rounds=2)[0], [0.9 * 1.9])


def test_goes_with_rules_that_weigh_or_correct() -> None:
    """FedNova with τ = (1, 1, 2): τ_eff = 4/3, updates times (4/3, 4/3, 2/3): (2/3, 0) / 3 on average, halved."""
    expected = [(8 / 3 - 4 / 3 - 2 / 3) / 6, 0.0]
    weighed, shrunk = [FedAvg("uniform"), FedNova()], [GlobalWeightShrinking(0.5)]
    for rules in (weighed + shrunk, shrunk + weighed):
        assert close(apply(UPDATES, *rules, steps=[1, 1, 2])[0], expected)
