"""FedLAW on two linear classifiers and a proxy set of four points."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.optim.swa_utils import SWALR, AveragedModel
from toy import Capture, Head, Normalized, NormalizedData, Notes, ProxyData, Quadratic, ToyData, close, trainer

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedLAW, GradientHarmonization

W0 = torch.tensor([0.5, 0.5, 0.3, 0.4], dtype=torch.float64)  # where the clients start
W = torch.tensor([[1.0, 0.0, 0.0, 0.5], [0.0, 2.0, 1.0, 0.0]], dtype=torch.float64)  # where they end
X, Y = ProxyData.inputs, ProxyData.labels
SAMPLES = [1, 3]
SAMPLES_SHARES = torch.tensor([0.25, 0.75], dtype=torch.float64)


def proxy_loss(w: Tensor) -> Tensor:
    """Cross-entropy of the logits X Wᵀ."""
    return F.cross_entropy(X @ w.reshape(2, 2).T, Y)


class Recorded(Head):
    """Keeps the losses on the proxy set."""

    def __init__(self) -> None:
        super().__init__(W0.tolist())
        self.proxy_losses: list[float] = Notes()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if not batch[1].is_floating_point():
            self.proxy_losses.append(float(loss.detach()))
        return loss


def fit(*rules: Any) -> tuple[Capture, FederatedOrchestrator, Any]:
    """One round in which the clients end at W."""
    capture, orchestrator = Capture(), FederatedOrchestrator(Recorded())
    run = trainer(*rules, capture)
    run.fit(orchestrator, datamodule=ProxyData(W0 - W, samples=SAMPLES))
    return capture, orchestrator, run


def first_gradients(*rules: Any) -> list[Tensor]:
    """What FedLAW gives its Adam for (γ̂, x) in the first step."""
    seen: list[list[Tensor]] = []

    def look(optimizer: Any, *_: Any) -> None:
        if isinstance(optimizer, torch.optim.Adam):
            seen.append([p.grad.clone() for group in optimizer.param_groups for p in group["params"]])

    handle = register_optimizer_step_pre_hook(look)
    try:
        fit(*rules)
    finally:
        handle.remove()
    return seen[0]


def test_first_loss_and_gradients() -> None:
    """Work out the first proxy loss, at γ = 1 and λ = (1/4, 3/4), and its gradients in γ̂ = log γ and in x."""
    w = W[0] / 4 + 3 * W[1] / 4
    assert close(w, (0.25, 1.5, 0.75, 0.125))  # by hand
    logits_0, logits_1 = X @ w[:2], X @ w[2:]
    d = (logits_1 - logits_0) * torch.tensor([1, -1, -1, 1])  # the wrong class's logit less the right one's
    assert close(d, (0.5, 1.375, 0.875, -1.1875))  # by hand
    losses = [math.log(1 + math.exp(difference)) for difference in d.tolist()]
    assert losses == pytest.approx([0.974077, 1.600413, 1.223445, 0.266190])  # by hand
    loss = sum(losses) / 4
    p = [1 / (1 + math.exp(-difference)) for difference in d.tolist()]  # the wrong class's probability
    slope = (-p[0] * X[0] + p[1] * X[1] + p[2] * X[2] - p[3] * X[3]) / 4  # ∂L/∂w for class 0; for class 1, -slope
    s_1, s_2 = (float(slope @ end[:2] - slope @ end[2:]) for end in W)  # s_k = ⟨∂L/∂w, W_k⟩
    by_gamma, by_x = 1 / 4 * s_1 + 3 / 4 * s_2, 1 / 4 * 3 / 4 * (s_1 - s_2)
    assert (loss, by_gamma, by_x) == pytest.approx((1.0160310134, 0.4371930214, -0.1328312091), abs=1e-9)
    _, orchestrator, _ = fit(FedLAW())
    assert orchestrator.client.proxy_losses[0] == pytest.approx(loss, abs=1e-9)  # type: ignore[union-attr]
    log_gamma, scores = first_gradients(FedLAW(epochs=1))
    assert close(log_gamma, by_gamma)
    assert close(scores, (by_x, -by_x))


@pytest.mark.parametrize(
    ("mode", "lr", "gamma", "share"),
    [
        ("joint", 0.01, 0.7238526604, 0.4022713387),
        ("shrinking", 0.01, 0.7047961286, 0.25),
        ("attentive", 0.01, 1.0, 0.4196486090),
        ("joint", 0.005, 0.8377199514, 0.3256462882),
        ("shrinking", 0.005, 0.8319962058, 0.25),
        ("attentive", 0.005, 1.0, 0.3301490244),
    ],
)
def test_one_hundred_epochs(mode: Any, lr: float, gamma: float, share: float) -> None:
    """Adam (0.5, 0.999) halved every 20 epochs, from γ̂ = 0 and x = (log 1/4, log 3/4)."""
    capture, orchestrator, run = fit(FedLAW(mode, lr))
    assert capture.cohort.shrinking == pytest.approx(gamma, abs=1e-9)
    assert close(capture.cohort.weights, (share, 1 - share))
    assert close(orchestrator.params, gamma * (share * W[0] + (1 - share) * W[1]))
    assert float(run.callback_metrics["fedlaw/gamma"]) == pytest.approx(gamma, abs=1e-6)
    assert float(run.callback_metrics["fedlaw/largest_weight"]) == pytest.approx(1 - share, abs=1e-6)


def test_gradients_through_the_corrections_of_another_rule() -> None:
    """After harmonization W_k is w + row k of mixing @ deltas; checked against autograd through the whole sum."""
    capture, _, _ = fit(GradientHarmonization(order="ascending"))
    models = W0 + capture.corrected
    assert not close(models, W)  # the two updates conflict: (0.5, -0.5, -0.3, 0.1)·(-0.5, 1.5, 0.7, -0.4) = -1.25
    log_gamma = torch.zeros((), dtype=torch.float64, requires_grad=True)
    scores = torch.tensor([0.25, 0.75], dtype=torch.float64).log().requires_grad_()
    expected = torch.autograd.grad(proxy_loss(log_gamma.exp() * scores.softmax(0) @ models), (log_gamma, scores))
    for gradient, wanted in zip(
        first_gradients(GradientHarmonization(order="ascending"), FedLAW(epochs=1)), expected, strict=True
    ):
        assert close(gradient, wanted)


def test_starts_anew_every_round() -> None:
    """Clients that stay where they are: the second round fits (γ, λ) from the same start, not from the first's end."""
    orchestrator, first = FederatedOrchestrator(Recorded()), Capture()
    data = ProxyData(torch.zeros(2, 4), samples=SAMPLES)
    trainer(FedLAW("attentive"), first, rounds=2).fit(orchestrator, datamodule=data)
    for cohort in first.cohorts:  # all models are equal: nothing to learn for λ
        assert close(cohort.weights, (0.25, 0.75))
    losses = orchestrator.client.proxy_losses  # type: ignore[union-attr]
    assert len(losses) == 200
    shrinking, single = Capture(), Capture()
    trainer(FedLAW("shrinking"), shrinking, rounds=2).fit(FederatedOrchestrator(Recorded()), datamodule=data)
    again = FederatedOrchestrator(Recorded())
    again.client.w.data.copy_(shrinking.cohorts[1].anchor)  # type: ignore[union-attr, operator]
    trainer(FedLAW("shrinking"), single).fit(again, datamodule=data)
    assert shrinking.cohorts[1].shrinking == single.cohort.shrinking


def test_buffers_are_the_average_and_undisturbed_by_the_fit() -> None:
    """By hand in NormalizedData; the proxy inputs (±50, 70) would drag the running mean far away."""
    orchestrator, plain = FederatedOrchestrator(Normalized()), FederatedOrchestrator(Normalized())
    for model, rules in ((orchestrator, [FedLAW(epochs=3)]), (plain, [])):
        trainer(*rules).fit(model, datamodule=NormalizedData())
    buffers = dict(orchestrator.client.named_buffers())
    assert close(buffers["norm.running_mean"], [0.8 / 3])
    assert close(buffers["norm.running_var"], [6.5 / 3])
    assert int(buffers["norm.num_batches_tracked"]) == 1
    for name, buffer in plain.client.named_buffers():
        assert torch.equal(buffers[name], buffer)


def test_needs_a_proxy_set() -> None:
    with pytest.raises(ConfigurationError, match="FedLAW learns on a proxy set, but ToyData has none"):
        trainer(FedLAW()).fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())


class Scores(nn.Module):
    """x, as torch's AveragedModel wants it."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start)


def by_autograd(
    stages: list[str], epochs: int, form: str = "softmax", lr: float = 0.01, models: Tensor = W
) -> tuple[float, Tensor]:
    """γ and λ (2,) by differentiating through the whole sum, with torch's own averaging; swa in two stages."""
    log_gamma = torch.zeros((), dtype=torch.float64, requires_grad=True)
    share = torch.tensor([0.25, 0.75], dtype=torch.float64)
    scores = Scores(share.log() if form == "softmax" else share.sqrt())

    def weights() -> Tensor:
        return scores.x.softmax(0) if form == "softmax" else scores.x**2 / (scores.x**2).sum()

    for stage in stages:
        learned = [log_gamma] * ("gamma" in stage) + [scores.x] * ("lambda" in stage)
        optimizer = torch.optim.Adam(learned, lr=lr, betas=(0.5, 0.999))
        steps = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.5)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
        averaged, annealing = AveragedModel(scores), SWALR(optimizer, swa_lr=0.05)
        for epoch in range(epochs):
            optimizer.zero_grad()
            proxy_loss(log_gamma.exp() * weights() @ models).backward()
            optimizer.step()
            if not stage.endswith("swa"):
                steps.step()
            elif epoch > 5:
                averaged.update_parameters(scores)
                annealing.step()
            else:
                cosine.step()
        if stage.endswith("swa"):
            scores.x.data.copy_(averaged.module.x)
    return float(log_gamma.detach().exp()), weights().detach()


@pytest.mark.parametrize("form", ["softmax", "quadratic"])
@pytest.mark.parametrize("order", ["gamma first", "lambda first"])
@pytest.mark.parametrize(("epochs", "lr"), [(100, 0.01), (40, 0.005), (14, 0.01)])
def test_stochastic_weight_averaging(order: Any, form: Any, epochs: int, lr: float) -> None:
    """Two stages of half the epochs; 14 epochs average a single x. The order matters, and so does the averaging."""
    capture, _, _ = fit(rule := FedLAW("swa", lr, epochs, swa_order=order, parametrization=form))
    stages = ["gamma", "lambda swa"] if order == "gamma first" else ["lambda swa", "gamma"]
    gamma, weights = by_autograd(stages, epochs // 2, form, lr)
    assert capture.cohort.shrinking == pytest.approx(gamma, abs=1e-9)
    assert close(capture.cohort.weights, weights)
    assert close(rule.trajectory[-1], [gamma, *weights])
    assert len(rule.trajectory) == epochs
    for other in (stages[::-1], [stage.removesuffix(" swa") for stage in stages]):
        gamma, weights = by_autograd(other, epochs // 2, form, lr)
        assert not close(rule.trajectory[-1], [gamma, *weights], 1e-7)


def test_first_gradients_of_the_quadratic_form() -> None:
    """With x = (1/2, √3/2) and m = ∂γ̂, ∂x_k = 2 x_k (s_k - m), where the softmax has λ_k (s_k - m) = ∓0.1328312091.

    s_1 - m = -4 · 0.1328312091, s_2 - m = 4/3 · 0.1328312091: ∂x = 0.1328312091 (-4, 4/√3).
    """
    log_gamma, scores = first_gradients(FedLAW(epochs=1, parametrization="quadratic"))
    assert close(log_gamma, 0.4371930214)
    assert close(scores, [-0.5313248364, 0.1328312091 * 4 / 3**0.5])


@pytest.mark.parametrize(
    ("mode", "stage"), [("joint", "gamma lambda"), ("attentive", "lambda"), ("shrinking", "gamma")]
)
def test_one_hundred_epochs_of_the_quadratic_form(mode: Any, stage: str) -> None:
    capture, _, _ = fit(FedLAW(mode, parametrization="quadratic"))
    gamma, weights = by_autograd([stage], 100, "quadratic")
    assert capture.cohort.shrinking == pytest.approx(gamma, abs=1e-9)
    assert close(capture.cohort.weights, weights)


def test_global_learning_rate() -> None:
    """η_g = 2: the models in the sum are W0 + 2 (W - W0) = 2 W - W0, in the fit and in the new model."""
    capture, orchestrator, _ = fit(FedLAW(global_lr=2.0))
    gamma, weights = by_autograd(["gamma lambda"], 100, models=2 * W - W0)
    assert capture.cohort.shrinking == pytest.approx(gamma, abs=1e-9)
    assert close(capture.cohort.weights, weights)
    assert close(orchestrator.params, gamma * weights @ (2 * W - W0))


def test_stops_after_the_last_round() -> None:
    """Then γ = 1 and λ = (1/4, 3/4): round 2 moves by 3 (Δ_1 + 3 Δ_2) / 4, where Δ = W - W0 and η_g = 3."""
    capture, orchestrator = Capture(), FederatedOrchestrator(Recorded())
    run = trainer(FedLAW(last_round=1, global_lr=3.0), capture, rounds=2)
    run.fit(orchestrator, datamodule=ProxyData(W0 - W, samples=SAMPLES))
    first, second = capture.cohorts
    assert first.shrinking < 0.9
    assert second.shrinking == 1.0
    assert close(second.weights, SAMPLES_SHARES)
    assert close(orchestrator.params, second.anchor + 3 * SAMPLES_SHARES @ (W - W0))
    assert len(orchestrator.client.proxy_losses) == 100  # type: ignore[arg-type, union-attr]  # none in round 2
    assert float(run.callback_metrics["fedlaw/gamma"]) == 1.0


def test_buffers_of_the_proxy_set() -> None:
    """They start from the average (0.8/3, 6.5/3) of NormalizedData and see (50, -50), then (70, 0), momentum 0.1.

    Means 0 and 35, unbiased variances 5000 and 2450: 0.81 · 0.8/3 + 3.5 = 3.716 and
    0.81 · 6.5/3 + 0.09 · 5000 + 0.1 · 2450 = 696.755. The clients' one batch and these two: 3.
    """
    orchestrator = FederatedOrchestrator(Normalized())
    trainer(FedLAW(epochs=1, buffers="proxy")).fit(orchestrator, datamodule=NormalizedData())
    buffers = dict(orchestrator.client.named_buffers())
    assert close(buffers["norm.running_mean"], [3.716])
    assert close(buffers["norm.running_var"], [696.755])
    assert int(buffers["norm.num_batches_tracked"]) == 3


def test_what_is_logged() -> None:
    """Client 0 has no data: the ids are 1 and 2. γ = 0.7047961286, λ = (1/4, 3/4), as above.

    Δ_1 = (0.5, -0.5, -0.3, 0.1), Δ_2 = (-0.5, 1.5, 0.7, -0.4): their mean (-0.25, 1, 0.45, -0.275) has the squared norm
    1.340625, w has 0.75.
    """
    rows = torch.cat([torch.zeros(1, 4, dtype=torch.float64), W0 - W])
    run = trainer(FedLAW("shrinking"))
    run.fit(FederatedOrchestrator(Recorded()), datamodule=ProxyData(rows, samples=[0, *SAMPLES]))
    step, decay = 0.7047961286 * 1.340625**0.5, 0.2952038714 * 0.75**0.5
    expected = {"gamma": 0.7047961286, "largest_weight": 0.75, "weight/1": 0.25, "weight/2": 0.75}
    expected |= {"global_gradient": step, "shrinking_gradient": decay, "ratio": step / decay}
    found = {name.removeprefix("fedlaw/"): float(v) for name, v in run.callback_metrics.items() if "fedlaw/" in name}
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_global_learning_rate_and_another_rule_count_in_the_logged_norm() -> None:
    """Twice the harmonised mean update; in mode "attentive" γ is 1, and there is no ratio."""
    capture, _, run = fit(GradientHarmonization(order="ascending"), FedLAW("attentive", global_lr=2.0))
    norm = (capture.cohort.weights @ capture.corrected).norm()
    assert float(run.callback_metrics["fedlaw/global_gradient"]) == pytest.approx(float(norm), abs=1e-6)
    assert float(run.callback_metrics["fedlaw/shrinking_gradient"]) == 0.0
    assert "fedlaw/ratio" not in run.callback_metrics


def test_zero_updates_from_zero_log_no_nan() -> None:
    """Nothing moves, w = 0: both norms are 0, and there is no ratio."""
    orchestrator = FederatedOrchestrator(Head())
    run = trainer(FedLAW())
    run.fit(orchestrator, datamodule=ProxyData(torch.zeros(2, 4, dtype=torch.float64), samples=SAMPLES))
    assert torch.equal(orchestrator.params, torch.zeros(4, dtype=torch.float64))
    assert "fedlaw/ratio" not in run.callback_metrics
    assert all(bool(value.isfinite()) for value in run.callback_metrics.values())


def test_trajectory() -> None:
    """Adam's first step is lr · sign: γ̂ = -0.01, x = (log 1/4 + 0.01, log 3/4 - 0.01)."""
    rule = FedLAW()
    assert rule.trajectory.shape == (0, 1)
    capture, _, _ = fit(rule)
    share = math.exp(0.01) / (math.exp(0.01) + 3 * math.exp(-0.01))
    assert rule.trajectory.shape == (100, 3)
    assert close(rule.trajectory[0], [math.exp(-0.01), share, 1 - share], 1e-8)
    assert close(rule.trajectory[-1], [capture.cohort.shrinking, *capture.cohort.weights], 0.0)


def test_starts_from_the_weights_of_a_rule_before() -> None:
    """Uniform ones: after one step of Adam x = (log 1/2 + 0.01, log 1/2 - 0.01)."""
    capture, _, _ = fit(FedAvg("uniform"), FedLAW("attentive", epochs=1))
    share = 1 / (1 + math.exp(-0.02))
    assert close(capture.cohort.weights, [share, 1 - share], 1e-8)


class Without(FederatedCallback):
    """Gives client 0 the weight 0."""

    def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
        weights = cohort.weights * torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
        return cohort.replace(weights=weights / weights.sum())


@pytest.mark.parametrize("form", ["softmax", "quadratic"])
@pytest.mark.parametrize("mode", ["joint", "swa"])
def test_a_weight_of_zero_stays_zero(mode: Any, form: Any) -> None:
    """A third client without weight changes nothing for the two others."""
    capture, orchestrator = Capture(), FederatedOrchestrator(Recorded())
    rows = torch.cat([torch.full((1, 4), 9.0, dtype=torch.float64), W0 - W])
    run = trainer(Without(), rule := FedLAW(mode, parametrization=form), capture)
    run.fit(orchestrator, datamodule=ProxyData(rows, samples=[5, *SAMPLES]))
    alone, without, _ = fit(FedLAW(mode, parametrization=form))
    assert float(capture.cohort.weights[0]) == 0.0
    assert close(capture.cohort.weights[1:], alone.cohort.weights)
    assert close(orchestrator.params, without.params)
    assert bool(rule.trajectory.isfinite().all())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "SWA"}, "mode must be .*'swa'.*, got 'SWA'"),
        ({"swa_order": "gamma"}, "swa_order must be .*, got 'gamma'"),
        ({"parametrization": "exp"}, "parametrization must be .*, got 'exp'"),
        ({"buffers": "none"}, "buffers must be .*, got 'none'"),
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"lr": math.nan}, "lr must be positive and finite, got nan"),
        ({"global_lr": -1.0}, "global_lr must be positive and finite, got -1.0"),
        ({"global_lr": math.inf}, "global_lr must be positive and finite, got inf"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"mode": "swa", "epochs": 12}, "epochs must be even and at least 14 for swa, got 12"),
        ({"mode": "swa", "epochs": 15}, "epochs must be even and at least 14 for swa, got 15"),
        ({"decay_every": 0}, "decay_every must be at least 1, got 0"),
        ({"last_round": -1}, "last_round must be None or at least 0, got -1"),
    ],
    ids=str,
)
def test_refuses_what_it_does_not_know(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}$"):
        FedLAW(**settings)
