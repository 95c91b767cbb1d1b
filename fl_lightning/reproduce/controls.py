"""ShamCorrection and PartCorrection: what stands in for a rule that corrects updates, to tell what that is worth."""

from typing import Literal

import torch
from typing_extensions import override

from fl_lightning import (
    Cohort,
    ConfigurationError,
    FederatedCallback,
    Server,
    check_choice,
    check_not_negative,
    overrides,
)
from fl_lightning.engine.rules.callback import CLIENT_HOOKS

OTHER_HOOKS = (*CLIENT_HOOKS, "update", "refine", "on_round_end")  # a corrected update needs none of them


class ShamCorrection(FederatedCallback):
    """Moves FedAvg's step at random, as far as another rule's correction moves it, or makes it as long as that rule's.

    A control, as in a medical trial: a rule that gains no more over FedAvg than its sham gains nothing by the direction
    of its correction. The weights w are those that the rule sets. With the updates Δ and the rule's corrected updates
    Δ', the rule moves the step from wΔ to wΔ'. The sham moves the step by s, with ‖s‖ = ‖wΔ' - wΔ‖: every update is
    shifted by s / Σw. If the rule corrects nothing, the step is wΔ exactly.

    Lengths agree for the step and not for each update, since the model feels the step alone: independent shifts of the
    updates, each as long as the update's own correction, would average out. The direction of s is a random combination
    of the updates, with standard normal coefficients that are drawn anew each round. The rule's correction is such a
    combination, too; a direction drawn among all P parameters would be nearly orthogonal to every update, and the model
    would hardly feel s.

    With ``keeps="length"``, the sham is the step wΔ in its own direction, with the length ‖wΔ'‖ (0 if wΔ is 0): a rule
    that gains no more over FedAvg than this sham gains by longer steps alone.

    Args:
        rule: the rule whose correction is replaced, such as :class:`GradientHarmonization`,
            :class:`DominantGradientCorrection` or :class:`PCGrad`. It must settle "updates" and define no hooks but
            ``aggregate``. Do not list the rule itself among the callbacks.
        keeps: the length that the sham takes from the rule: "distance" between the rule's step and FedAvg's, or
            "length" of the rule's step.

    Raises:
        ConfigurationError: ``rule`` is no such rule; ``keeps`` is neither "distance" nor "length".
    """

    settles = frozenset({"updates"})

    def __init__(self, rule: FederatedCallback, keeps: Literal["distance", "length"] = "distance") -> None:
        _check_corrects_alone(rule)
        check_choice("keeps", keeps, "distance", "length")
        self.rule, self.keeps = rule, keeps

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        corrected = self.rule.aggregate(orchestrator, cohort)
        if self.keeps == "length":
            steps = corrected.weights @ torch.stack([corrected.mixing, cohort.mixing])
            wanted, length = cohort.replace(mixing=steps).norms
            return corrected.replace(mixing=(wanted / length if length > 0 else 1.0) * cohort.mixing)
        draws = orchestrator.generator("sham correction", cohort.round)
        drawn = torch.randn(len(cohort.clients), generator=draws, dtype=torch.float64) @ cohort.mixing
        moved = corrected.weights @ (corrected.mixing - cohort.mixing)
        wanted, length = cohort.replace(mixing=torch.stack([moved, drawn])).norms
        if wanted > 0:
            drawn = wanted / length / corrected.weights.sum() * drawn
            return corrected.replace(mixing=cohort.mixing + drawn)
        return corrected.replace(mixing=cohort.mixing)


class PartCorrection(FederatedCallback):
    """Turns FedAvg's step by a part of another rule's correction, and keeps the length of FedAvg's step.

    The dose of a correction without its longer steps: with the weights w that the rule sets, the updates Δ and the
    rule's corrected updates Δ', the step has the direction of wΔ + strength (wΔ' - wΔ) and the length ‖wΔ‖. With
    strength 0 it is FedAvg's, with 1 it is the rule's at FedAvg's length.

    Args:
        rule: the rule whose correction is applied in part, as for :class:`ShamCorrection`.
        strength: >= 0, the part.

    Raises:
        ConfigurationError: ``rule`` is no such rule, or ``strength`` is negative.
    """

    settles = frozenset({"updates"})

    def __init__(self, rule: FederatedCallback, strength: float) -> None:
        _check_corrects_alone(rule)
        check_not_negative(strength=strength)
        self.rule, self.strength = rule, strength

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        corrected = self.rule.aggregate(orchestrator, cohort)
        turned = cohort.mixing + self.strength * (corrected.mixing - cohort.mixing)
        steps = corrected.weights @ torch.stack([cohort.mixing, turned])
        wanted, length = cohort.replace(mixing=steps).norms
        return corrected.replace(mixing=(wanted / length if length > 0 else 1.0) * turned)


def _check_corrects_alone(rule: FederatedCallback) -> None:
    """Refuse a rule that does more than correct the updates in ``aggregate``."""
    name, others = type(rule).__name__, [hook for hook in OTHER_HOOKS if overrides(rule, hook)]
    if "updates" not in rule.settles or rule.reduce is not None or others:
        reason = f"{name} also defines {', '.join(others)}" if others else f"{name} settles other parts of a round"
        raise ConfigurationError(
            "rule must be a rule that corrects the updates in aggregate, such as GradientHarmonization, and does "
            f"nothing else: {reason}"
        )
