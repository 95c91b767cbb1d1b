"""FedAdagrad, FedYogi and FedAdam: rounds by hand, composition, and what their state is for."""

from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import UPDATES, A, B, GivenData, Linear, Quadratic, ToyData, close, send, train, trainer

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, FederatedOrchestrator
from fl_lightning.callbacks import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, GradientHarmonization
from fl_lightning.runs.checkpoints import LastCheckpoint

RULES: list[Any] = [FedAdagrad, FedYogi, FedAdam]
HALVES = {"lr": 1.0, "beta1": 0.5, "tau": 1.0}


@pytest.mark.parametrize(
    ("rule", "v"),
    [
        (FedAdagrad(**HALVES), ((2.0, 3.0, 4.0), (5.0, 9.0, 13.0))),
        (FedYogi(**HALVES, beta2=0.5), ((1.0, 1.0, 1.0), (3.0, 5.0, 3.0))),
        (FedAdam(**HALVES, beta2=0.5), ((1.0, 1.0, 1.0), (2.5, 3.25, 3.625))),
    ],
    ids=["adagrad", "yogi", "adam"],
)
def test_three_rounds_of_equal_updates(rule: FederatedCallback, v: tuple[tuple[float, ...], ...]) -> None:
    """For u = (1, -2), u² = (1, 4), v starts at τ² = 1. m is 1/2, 3/4, 7/8 of u; a step is m/(√v + 1).

    Adagrad: v = 1 + 1 + …; 1 + 4 + …. Adam, half old and half new: 1, 1, 1; 2.5, 3.25, 3.625. Yogi, by u²/2 towards
    u²: 1 is there and stays; 1 + 2 = 3, 3 + 2 = 5, 5 - 2 = 3.
    """
    orchestrator = FederatedOrchestrator(Linear(2))
    trainer(rule, rounds=3).fit(orchestrator, datamodule=GivenData(torch.tensor([[-1.0, 2.0]]).double()))
    shares = (0.5, 0.75, 0.875)
    x, y = (sum(m / (sqrt(moment) + 1) for m, moment in zip(shares, row, strict=True)) for row in v)
    assert close(orchestrator.params, (x, -2 * y))


@pytest.mark.parametrize(
    ("rule", "beta_1", "keep", "gain", "by_hand"),
    [
        (FedAdagrad(), 0.9, 1, 1, (-0.0099822, -0.0233975)),
        (FedAdagrad(beta1=0), 0.0, 1, 1, (-0.0998222, -0.1676290)),
        (FedYogi(), 0.9, 1, 0.01, (-0.0982365, -0.2304782)),  # every u² here is above v: nothing is let go
        (FedAdam(), 0.9, 0.99, 0.01, (-0.0982366, -0.2308314)),
    ],
    ids=["adagrad", "adagrad without momentum", "yogi", "adam"],
)
def test_two_rounds_of_the_toy_problem(
    rule: FederatedCallback, beta_1: float, keep: float, gain: float, by_hand: tuple[float, float]
) -> None:
    """Follow two rounds of T with lr = 0.1, τ = 10⁻³ and uniform weights; v becomes keep · v + gain · u²."""
    shrink_0, shrink_1 = (1 - 0.1 * A[0]) ** 2, (1 - 0.1 * A[1]) ** 3  # of w - B_i in two and in three local steps

    def update(w: Any) -> Any:
        end_0, end_1 = B[0] + shrink_0 * (w - B[0]), B[1] + shrink_1 * (w - B[1])
        return (end_0 + end_1) / 2 - w

    u_1 = update(torch.zeros(2, dtype=torch.float64))
    assert close(u_1, (-0.562, -0.037375))  # by hand
    m_1, v_1 = (1 - beta_1) * u_1, keep * 1e-6 + gain * u_1**2  # m starts at 0, v at τ²
    w_1 = 0.1 * m_1 / (v_1**0.5 + 1e-3)
    u_2 = update(w_1)
    m_2, v_2 = beta_1 * m_1 + (1 - beta_1) * u_2, keep * v_1 + gain * u_2**2
    w_2 = w_1 + 0.1 * m_2 / (v_2**0.5 + 1e-3)
    assert [float(w_1[0]), float(w_2[0])] == pytest.approx(by_hand, abs=1e-7)
    assert close(train(FedAvg("uniform"), rule), w_1)
    assert close(train(FedAvg("uniform"), rule, rounds=2), w_2)


class Median(FederatedCallback):
    """The coordinates' medians."""

    def reduce(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> torch.Tensor:
        return cohort.by_coordinate(lambda rows: rows.median(0).values)


@pytest.mark.parametrize(
    ("other", "update"), [(GradientHarmonization(order="ascending"), (-0.5, -0.5)), (Median(), (-1.0, 0.0))]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_acts_on_the_update_that_the_others_arrive_at(other: Any, update: tuple[float, float], reverse: bool) -> None:
    """Harmonised, the three average to (-0.5, -0.5) (see test_gh); their medians are (-1, 0).

    With β₁ = β₂ = 1/2 and τ = 1, a first u steps by u/2 / (√(1/2 + u²/2) + 1).
    """
    rules = [other, FedAdam(**HALVES, beta2=0.5)]
    model, _ = send(UPDATES, *(rules[::-1] if reverse else rules), samples=[1, 1, 2])
    assert close(model, [u / 2 / (sqrt((1 + u**2) / 2) + 1) for u in update])


@pytest.mark.parametrize("rule", RULES)
def test_zero_updates_leave_the_model(rule: Any) -> None:
    assert torch.equal(send([[0.0, 0.0], [0.0, 0.0]], rule())[0], torch.zeros(2).double())


@pytest.mark.parametrize("rule", RULES)
def test_first_step_has_no_bias_correction(rule: Any) -> None:
    """A huge update: Adagrad steps by lr (1 - β₁), the others by lr (1 - β₁)/√(1 - β₂) = 0.1·0.1/0.1."""
    step = 0.01 if rule is FedAdagrad else 0.1
    assert close(send([[1e9, -1e9]], rule())[0], (step, -step))


def saved(folder: Path, rounds: int, rule: FederatedCallback, resume: Path | None = None) -> Path:
    """The checkpoint of a run of T."""
    run = trainer(rule, LastCheckpoint(), rounds=rounds, default_root_dir=folder, enable_checkpointing=True)
    run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData(), ckpt_path=resume)
    return folder / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize("rule", RULES)
def test_resumes_bit_for_bit(tmp_path: Path, rule: Any) -> None:
    """Stopped after 2 of 4 rounds; both moments come back."""
    whole = saved(tmp_path / "whole", 4, rule())
    parts = saved(tmp_path / "parts", 4, rule(), saved(tmp_path / "parts", 2, rule()))
    first, second = (torch.load(path, weights_only=True) for path in (whole, parts))
    assert torch.equal(first["state_dict"]["client.w"], second["state_dict"]["client.w"])
    one, other = (content["callbacks"][rule.__name__] for content in (first, second))
    assert one.keys() == other.keys() == {"m", "v"}
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("rule", RULES)
def test_a_second_fit_starts_anew(rule: Any) -> None:
    used = rule()
    assert torch.equal(train(used, rounds=2), train(used, rounds=2))


@pytest.mark.parametrize("kinds", [(FedAdam, FedAvgM), (FedAvgM, FedYogi), (FedAdagrad, FedAdam)])
def test_two_rules_that_step_do_not_go_together(kinds: Any) -> None:
    chain = [kind() for kind in kinds]
    names = " and ".join(type(rule).__name__ for rule in chain)
    with pytest.raises(ConfigurationError, match=f"{names} do not go together: both settle the server's step"):
        train(*chain)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("rule", RULES)
def test_refuses_what_is_out_of_range(rule: Any, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"lr must be positive and finite, got {value}"):
        rule(lr=value)
    with pytest.raises(ConfigurationError, match=f"tau must be positive and finite, got {value}"):
        rule(tau=value)
    with pytest.raises(ConfigurationError, match=rf"beta1 must be in \[0, 1\), got {value}"):
        rule(beta1=value)
    if rule is not FedAdagrad:
        with pytest.raises(ConfigurationError, match=rf"beta2 must be in \[0, 1\), got {value}"):
            rule(beta2=value)


@pytest.mark.parametrize("rule", RULES)
def test_refuses_the_ends_of_the_ranges(rule: Any) -> None:
    for wrong in ({"lr": 0.0}, {"tau": 0.0}, {"beta1": 1.0}):
        with pytest.raises(ConfigurationError, match="must be"):
            rule(**wrong)
