"""Arguments out of range are refused in one line that says what was expected, and what came."""

from math import inf, nan
from typing import Any

import pytest

from fl_lightning import ConfigurationError
from fl_lightning import callbacks as shipped

PART, FINITE, POSITIVE = "in [0, 1)", "at least 0 and finite", "positive and finite"
ONE_ATTACKER = {"num_byzantine": 1}
SWA = {"mode": "swa"}
# The callback, an argument, values out of its range, what the message expects, and the arguments that are needed.
REFUSED: list[tuple[str, str, tuple[Any, ...], str, dict[str, Any]]] = [
    ("ALIE", "z", (nan, inf), "finite, or null for the largest z that stays hidden", ONE_ATTACKER),
    ("CAGrad", "c", (-0.1, 1.0, nan), PART, {}),
    ("CentredClipping", "iterations", (0,), "at least 1", {"threshold": 1.0}),
    ("CentredClipping", "threshold", (0.0, nan), "greater than 0", {}),
    ("ConFIG", "reduction", ("max",), "'mean' or 'sum'", {}),
    ("ConflictMonitor", "every", (-1, nan), "a number of rounds, 0 for never", {}),
    ("DetectionMonitor", "every", (-1,), "at least 0", {}),
    ("DetectionMonitor", "images", (0,), "at least 1", {}),
    ("GenerationMonitor", "prompts", (0,), "at least 1", {}),
    ("GenerationMonitor", "length", (0,), "at least 1", {}),
    ("GenerationMonitor", "every", (0,), "at least 1", {}),
    ("GenerationMonitor", "given", (0,), "at least 1", {}),
    ("DominantGradientCorrection", "ratio", (0.0, -0.1, 1.1, nan), "in (0, 1]", {}),
    ("FaultInjection", "fault", ("zero",), "'raise', 'nan', 'inf' or 'huge'", {}),
    ("FedALA", "lr", (0.0, -1.0, nan, inf), POSITIVE, {"parts": ["head"]}),
    ("FedALA", "share", (0.0, 1.1, nan), "in (0, 1]", {"parts": ["head"]}),
    ("FedAWA", "epochs", (0,), "at least 1", {}),
    ("FedAWA", "lr", (0.0, -0.1, nan, inf), POSITIVE, {}),
    ("FairGrad", "alpha", (0.0, -1.0, nan, inf), POSITIVE, {}),
    ("FairGrad", "max_norm", (0.0, nan, inf), POSITIVE, {}),
    ("FAMO", "gamma", (-0.1, nan, inf), FINITE, {}),
    ("FAMO", "lr", (0.0, nan, inf), POSITIVE, {}),
    ("FedAdagrad", "beta1", (-0.1, 1.0, nan), PART, {}),
    ("FedAdagrad", "lr", (0.0, -0.1, nan, inf), POSITIVE, {}),
    ("FedAdagrad", "tau", (0.0, nan), POSITIVE, {}),
    ("FedAdam", "beta1", (1.0,), PART, {}),
    ("FedAdam", "beta2", (-0.1, 1.0, nan), PART, {}),
    ("FedAvg", "weighting", ("median",), "'samples' or 'uniform'", {}),
    ("FedAvgM", "momentum", (-0.1, 1.0, nan), PART, {}),
    ("FedBE", "epochs", (0,), "at least 1", {}),
    ("FedBE", "num_samples", (0,), "at least 1", {}),
    ("FedBE", "teacher", ("mean",), "'probabilities' or 'logits'", {}),
    ("FedDF", "epochs", (0,), "at least 1", {}),
    ("FedDF", "lr", (-1.0, nan), POSITIVE, {}),
    ("FedDecorr", "beta", (-0.1, nan, inf), FINITE, {}),
    ("FedDecorr", "scale", ("code",), "'released' or 'paper'", {}),
    ("FedDyn", "alpha", (-0.1, 0.0, nan, inf), POSITIVE, {}),
    ("FedGAM", "alpha", (-0.1, nan, inf), FINITE, {}),
    ("FedGAM", "rho", (nan,), FINITE, {}),
    ("FedGAM", "rho_prime", (nan,), FINITE, {}),
    ("FedGAM", "variant", ("eq19",), "'paper' or 'released'", {}),
    ("FedGAMCV", "control", ("both",), "'paper' or 'released'", {}),
    ("FedGAMCV", "rho_prime", (nan,), FINITE, {}),
    ("FedInit", "beta", (-0.1, nan, inf), FINITE, {}),
    ("FedLAW", "buffers", ("none",), "'average' or 'proxy'", {}),
    ("FedLAW", "decay_every", (0,), "at least 1", {}),
    ("FedLAW", "epochs", (0,), "at least 1", {}),
    ("FedLAW", "epochs", (12, 15), "even and at least 14 for swa", SWA),
    ("FedLAW", "global_lr", (-1.0, inf), POSITIVE, {}),
    ("FedLAW", "last_round", (-1,), "at least 0", {}),
    ("FedLAW", "lr", (0.0, nan), POSITIVE, {}),
    ("FedLAW", "mode", ("SWA",), "'joint', 'shrinking', 'attentive' or 'swa'", {}),
    ("FedLAW", "parametrization", ("exp",), "'softmax' or 'quadratic'", {}),
    ("FedLAW", "swa_order", ("gamma",), "'gamma first' or 'lambda first'", {}),
    ("FedMGDAPlus", "epsilon", (-0.1, 1.1, nan), "in [0, 1]", {}),
    ("FedProx", "mu", (-1.0, nan, inf), FINITE, {}),
    ("FedSAM", "eta", (-0.1, nan), FINITE, {}),
    ("FedSAM", "rho", (-0.1, nan, inf), FINITE, {}),
    ("FedSMOO", "penalty", (-0.1, nan, inf), POSITIVE, {}),
    ("FedSMOO", "rho", (-0.1, nan, inf), FINITE, {}),
    ("FedSOL", "rho", (-0.1, nan, inf), FINITE, {}),
    ("FedSOL", "temperature", (0.0, nan, inf), POSITIVE, {}),
    ("FedSpeed", "alpha", (-0.1, 1.1, nan), "in [0, 1]", {}),
    ("FedSpeed", "penalty", (0.0, -0.1, nan, inf), POSITIVE, {}),
    ("FedSpeed", "rho", (-0.1, nan, inf), FINITE, {}),
    ("FocalLoss", "beta", (0.0,), POSITIVE, {}),
    ("FocalLoss", "gamma", (-1.0, nan), FINITE, {}),
    ("GaussianAttack", "std", (-1.0, nan, inf), FINITE, ONE_ATTACKER),
    ("GeometricMedian", "iterations", (0,), "at least 1", {}),
    ("GeometricMedian", "smoothing", (0.0, nan), POSITIVE, {}),
    ("GlobalWeightShrinking", "gamma", (0.0, -0.5, nan, inf), POSITIVE, {}),
    ("GradVac", "beta", (-0.1, 1.1, nan), "in [0, 1]", {}),
    ("GradVac", "order", ("up",), "'random', 'ascending' or 'descending'", {}),
    ("GradVac", "reduction", ("max",), "'mean' or 'sum'", {}),
    ("GradientHarmonization", "order", ("up",), "'random', 'ascending' or 'descending'", {}),
    ("GradientHarmonization", "variant", ("talk",), "'paper' or 'slides'", {}),
    ("HessianMonitor", "count", (0,), "at least 1", {}),
    ("HessianMonitor", "every", (0, -1), "at least 1", {}),
    ("HessianMonitor", "examples", (0,), "at least 1", {}),
    ("IPM", "epsilon", (-1.0, nan, inf), FINITE, ONE_ATTACKER),
    ("Krum", "num_byzantine", (-1,), "at least 0", {}),
    ("Krum", "num_selected", (0,), "at least 1", ONE_ATTACKER),
    ("LossSurface", "every", (-1, nan), "a number of rounds, or 0 for the last round alone", {}),
    ("LossSurface", "examples", (0,), "at least 1", {}),
    ("LossSurface", "points", (1, 20), "odd and at least 3", {}),
    ("LossSurface", "span", (0.0, nan, inf), POSITIVE, {}),
    ("MOON", "mu", (-1.0, nan), FINITE, {}),
    ("MOON", "temperature", (0.0, nan), POSITIVE, {}),
    ("MoFedSAM", "alpha", (0.0, 1.1, nan), "in (0, 1]", {}),
    ("MoFedSAM", "rho", (-0.1, nan, inf), FINITE, {}),
    ("NashMTL", "max_norm", (0.0, nan, inf), POSITIVE, {}),
    ("NormClipping", "threshold", (0.0, -1.0, nan), "greater than 0, or None for the median norm", {}),
    ("PCGrad", "order", ("up",), "'random', 'ascending' or 'descending'", {}),
    ("PCGrad", "reduction", ("max",), "'mean' or 'sum'", {}),
    ("PersonalEvaluation", "every", (0, -1), "at least 1", {}),
    ("Scaffold", "option", ("III",), "'I' or 'II'", {}),
    ("Scaffold", "server_lr", (0.0, -1.0, nan, inf), POSITIVE, {}),
    ("ScalingAttack", "scale", (-1.0, nan, inf), FINITE, ONE_ATTACKER),
    ("ServerFT", "epochs", (0,), "at least 1", {}),
    ("ServerFT", "lr", (0.0, nan, inf), POSITIVE, {}),
    ("SignAgreement", "others", ("one",), "'zero' or 'random'", {}),
    ("SignFlip", "num_byzantine", (-1,), "at least 0", {}),
    ("SignFlip", "scale", (nan,), FINITE, ONE_ATTACKER),
    ("TrainingEvaluation", "every", (0, -1), "at least 1", {}),
    ("TrimmedMean", "ratio", (-0.1, 0.5, nan), "in [0, 0.5)", {}),
]


def said(callback: str, **arguments: Any) -> str:
    """The refusal."""
    with pytest.raises(ConfigurationError) as refusal:
        getattr(shipped, callback)(**arguments)
    return str(refusal.value)


@pytest.mark.parametrize(("callback", "argument", "values", "expected", "others"), REFUSED)
def test_out_of_range(
    callback: str, argument: str, values: tuple[Any, ...], expected: str, others: dict[str, Any]
) -> None:
    """Monitors, whose arguments have common names, begin with their own."""
    for value in values:
        message = f"{argument} must be {expected}, got {value!r}"
        assert said(callback, **others, **{argument: value}).removeprefix(f"{callback}: ") == message


@pytest.mark.parametrize(("alpha", "tau"), [(-0.1, 1), (1.1, 1), (nan, 1), (0.1, -1)])
def test_two_arguments_in_one_message(alpha: float, tau: int) -> None:
    assert said("FedFV", alpha=alpha, tau=tau) == f"alpha must be in [0, 1] and tau at least 0, got {alpha} and {tau}"


@pytest.mark.parametrize(
    ("callback", "arguments", "message"),
    [
        ("FedProx", {"mu": 1e39}, "mu must be at least 0 and finite in float32, got 1e+39"),
        ("FedGAM", {"alpha": 1e20, "rho": 1e20}, "alpha × rho must be at least 0 and finite in float32, got 1e+40"),
        (
            "LocalDP",
            {"clip": 1e20, "noise_multiplier": 1e20},
            "noise_multiplier × clip must be positive and finite in float32, got 1e+40",
        ),
    ],
)
def test_numbers_that_float32_cannot_hold(callback: str, arguments: dict[str, float], message: str) -> None:
    """Such a number, or a product of two, would raise in the middle of the first client."""
    assert said(callback, **arguments) == message
