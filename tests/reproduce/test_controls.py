"""The sham of three rules on g₁ = (2, 0), g₂ = (-1, 1), g₃ = (-1, -2): as far as the rule, elsewhere."""

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server
from fl_lightning.callbacks import (
    DominantGradientCorrection,
    FedAvg,
    FedFV,
    FedNova,
    GradientHarmonization,
    Krum,
    PCGrad,
    TrimmedMean,
)
from fl_lightning.fit.configs import CONFIGS
from fl_lightning.reproduce.controls import PartCorrection, ShamCorrection

NO_CONFLICT = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]
PAPER, SLIDES = GradientHarmonization(order="ascending"), GradientHarmonization("slides", "ascending")


@pytest.mark.parametrize(
    ("rule", "average", "length"),
    [
        # By n = (1, 1, 2), FedAvg's step is (-0.25, -0.75) and GH's (-0.5, -0.5): see test_gh. ‖(-0.25, 0.25)‖
        (PAPER, (-0.25, -0.75), 0.125**0.5),
        # Uniform, FedAvg's step is (0, -1/3) and GH's (-0.2, -2.2/3): ‖(-0.2, -0.4)‖
        (SLIDES, (0.0, -1 / 3), 0.2**0.5),
        # PCGrad's mean is (-1/3, -1/3), its sum (-1, -1) and that of the updates (0, -1)
        (PCGrad(order="ascending"), (0.0, -1 / 3), 1 / 3),
        (PCGrad("sum", "ascending"), (0.0, -1.0), 1.0),
    ],
)
def test_moves_the_step_as_far_as_the_rule(rule: FederatedCallback, average: object, length: float) -> None:
    """All updates are shifted by the same vector, which is not the rule's."""
    step, capture = apply(UPDATES, ShamCorrection(rule), samples=[1, 1, 2])
    average = torch.tensor(average, dtype=torch.float64)
    assert float((step - average).norm()) == pytest.approx(length, rel=1e-12)
    shift = capture.corrected - capture.cohort.deltas
    assert close(shift, shift[:1].expand(3, -1), 1e-12)
    assert close(float(capture.cohort.weights.sum()) * shift[0], step - average, 1e-12)
    assert not close(step, apply(UPDATES, rule, samples=[1, 1, 2])[0], 0.01)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # The steps of the test above: (-0.25, -0.75) gets the length of (-0.5, -0.5).
        (PAPER, (-0.25 * 0.8**0.5, -0.75 * 0.8**0.5)),
        # (0, -1/3) gets the length of (-0.2, -2.2/3).
        (SLIDES, (0.0, -((0.2**2 + (2.2 / 3) ** 2) ** 0.5))),
        # (0, -1) gets the length of (-1, -1).
        (PCGrad("sum", "ascending"), (0.0, -(2**0.5))),
    ],
)
def test_or_makes_the_step_as_long_as_the_rules(rule: FederatedCallback, expected: object) -> None:
    assert close(apply(UPDATES, ShamCorrection(rule, "length"), samples=[1, 1, 2])[0], expected, 1e-12)


def test_a_step_without_direction_stays() -> None:
    """FedAvg's step is zero, and PCGrad's, too; a rule without a correction leaves FedAvg's step."""
    assert close(apply([[1.0, 0.0], [-1.0, 0.0]], ShamCorrection(PCGrad(), "length"))[0], (0.0, 0.0), 0.0)
    average = apply(NO_CONFLICT, FedAvg("uniform"))[0]
    assert close(apply(NO_CONFLICT, ShamCorrection(SLIDES, "length"))[0], average, 1e-12)


def test_the_rule_is_the_one_that_the_run_would_have() -> None:
    """DGC takes its losses from the run, random orders come from the rule's own stream; two seeds, two directions."""
    losses = [0.5, 1.0, 2.0]
    for rule in (DominantGradientCorrection(0.4), GradientHarmonization("slides")):
        average, corrected, sham = (
            apply(UPDATES, each, losses=losses)[0] for each in (FedAvg("uniform"), rule, ShamCorrection(rule))
        )
        assert float((sham - average).norm()) == pytest.approx(float((corrected - average).norm()), rel=1e-12)
        assert float((corrected - average).norm()) > 0.1


def test_the_direction_is_a_random_combination_of_the_updates_so_far() -> None:
    """No update has a fourth entry, and the only one with a third is zero: the direction has neither."""
    updates = torch.tensor([[1.0, 0, 0, 0], [-1.0, 1, 0, 0], [-1.0, 0, 2, 0]], dtype=torch.float64)
    directions = []
    for round in (1, 2):
        corrected = apply(updates, Before(round), ShamCorrection(SLIDES))[1].corrected
        directions.append(corrected[2])  # of the client whose update is zero
        assert bool((corrected[2, :2].abs() > 1e-6).all())
        assert corrected[2, 2:].tolist() == [0, 0]
    assert abs(float(torch.nn.functional.cosine_similarity(*directions, dim=0))) < 0.999


class Before(FederatedCallback):
    """Gives the cohort another round's number, and makes client 2's update zero."""

    def __init__(self, round: int) -> None:
        self.round = round

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.replace(round=self.round).scaled(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_a_correction_is_exactly_fedavg(weighting: str) -> None:
    """No update conflicts; the slides' variant weighs uniformly, the paper's by n_k. Nothing comes of zeros, either."""
    average = apply(NO_CONFLICT, FedAvg(weighting), samples=[1, 1, 2])[0]  # type: ignore[arg-type]  # one of the two
    rule = PAPER if weighting == "samples" else SLIDES
    assert torch.equal(apply(NO_CONFLICT, ShamCorrection(rule), samples=[1, 1, 2])[0], average)
    assert close(apply([[0.0, 0.0]] * 2, ShamCorrection(rule))[0], (0.0, 0.0), 0.0)
    assert close(apply([[1.0, -3.0]], ShamCorrection(rule))[0], (1.0, -3.0), 0.0)


def test_acts_on_what_earlier_rules_left() -> None:
    """FedNova makes (2, 0), (-1, 1) of 1 and 2 steps into (3, 0), (-0.75, 0.75): the sham goes as far as GH then."""
    updates, steps = [[2.0, 0.0], [-1.0, 1.0]], [1, 2]
    nova, harmonised, sham = (
        apply(updates, FedNova(), *rules, steps=steps)[0] for rules in ((), (PAPER,), (ShamCorrection(PAPER),))
    )
    assert float((harmonised - nova).norm()) > 0.1
    assert float((sham - nova).norm()) == pytest.approx(float((harmonised - nova).norm()), rel=1e-12)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Krum(1), "Krum settles other parts of a round"),
        (TrimmedMean(0.2), "TrimmedMean settles other parts"),
        (FedFV(), "FedFV also defines update"),
    ],
)
def test_refuses_rules_that_do_something_else(rule: FederatedCallback, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"such as GradientHarmonization, and does nothing else: {reason}"):
        ShamCorrection(rule)


def test_refuses_to_keep_anything_else() -> None:
    with pytest.raises(ConfigurationError, match="keeps must be 'distance' or 'length', got 'size'"):
        ShamCorrection(PCGrad(), "size")  # type: ignore[arg-type]  # on purpose


def test_its_configs_find_it() -> None:
    """It is no class of fl_lightning.callbacks, whose classes go by their names alone."""
    for name in ("rules/sham", "papers/controls/sham", "papers/controls/length"):
        text = (CONFIGS / f"{name}.yaml").read_text()
        assert f"class_path: {ShamCorrection.__module__}.ShamCorrection" in text


@pytest.mark.parametrize(
    ("strength", "expected"),
    [
        # FedAvg steps (-0.25, -0.75), GH (-0.5, -0.5): half way is (-0.375, -0.625), and all have FedAvg's length.
        (0.0, (-0.25, -0.75)),
        (0.5, (-0.375 * (0.625 / 0.53125) ** 0.5, -0.625 * (0.625 / 0.53125) ** 0.5)),
        (1.0, (-0.5 * 1.25**0.5, -0.5 * 1.25**0.5)),
    ],
)
def test_a_part_of_a_correction_keeps_the_length(strength: float, expected: object) -> None:
    step, _ = apply(UPDATES, PartCorrection(PAPER, strength), samples=[1, 1, 2])
    assert close(step, expected, 1e-12)


def test_other_rules_and_parts_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="rule must be a rule that corrects the updates"):
        PartCorrection(TrimmedMean(0.1), 0.5)
    with pytest.raises(ConfigurationError, match="strength"):
        PartCorrection(PAPER, -0.1)
