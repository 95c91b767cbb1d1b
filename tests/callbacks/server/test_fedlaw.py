"""FedLAW on two linear classifiers and a proxy set of four points."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lib.hand_made import Bench, apply, serve
from lib.toy import Head, Normalized, NormalizedData, Notes, ProxyData, close, trainer
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel

from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedLAW, GradientHarmonization
from fl_lightning.callbacks.server.fedlaw import gradients

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


def fit(*rules: Any, samples: Sequence[int] = SAMPLES, **settings: Any) -> tuple[Bench, Cohort]:
    """The server after rounds in which the clients go from W0 to W, and the last round's cohort."""
    server, capture = serve(W - W0, *rules, samples=samples, client=Recorded(), **settings)
    return server, capture.cohort


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
    server, _ = fit(FedLAW(epochs=1))
    assert server.client.proxy_losses[0] == pytest.approx(loss, abs=1e-9)  # type: ignore[union-attr]
    along = torch.tensor([s_1, s_2], dtype=torch.float64)
    log_gamma, scores = gradients(1.0, SAMPLES_SHARES.log(), along, "softmax")
    assert close(log_gamma, by_gamma)
    assert close(scores, (by_x, -by_x))
    # With x = (1/2, √3/2) and m = ∂γ̂, ∂x_k = 2 x_k (s_k - m), where the softmax has λ_k (s_k - m) = ∓by_x.
    log_gamma, scores = gradients(1.0, SAMPLES_SHARES.sqrt(), along, "quadratic")
    assert close(log_gamma, by_gamma)
    assert close(scores, (4 * by_x, -4 / 3**0.5 * by_x))


@pytest.mark.parametrize(
    ("mode", "lr", "gamma", "share"),
    [
        ("joint", 0.01, 0.7238526604, 0.4022713387),
        ("shrinking", 0.01, 0.7047961286, 0.25),
        ("attentive", 0.005, 1.0, 0.3301490244),
    ],
)
def test_one_hundred_epochs(mode: Any, lr: float, gamma: float, share: float) -> None:
    """Adam (0.5, 0.999) halved every 20 epochs, from γ̂ = 0 and x = (log 1/4, log 3/4)."""
    server, cohort = fit(FedLAW(mode, lr))
    assert cohort.shrinking == pytest.approx(gamma, abs=1e-9)
    assert close(cohort.weights, (share, 1 - share))
    assert close(server.params, gamma * (share * W[0] + (1 - share) * W[1]))


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


FAR = 2 * W - W0  # with η_g = 2, the models in the sum
CORRECTED = W0 + apply(W - W0, harmonization := GradientHarmonization(order="ascending"))[1].corrected
QUADRATIC = {"parametrization": "quadratic"}
STAGES: list[Any] = [
    ({"mode": "joint", **QUADRATIC}, ["gamma lambda"], 100, {"form": "quadratic"}),
    ({"mode": "attentive", **QUADRATIC}, ["lambda"], 100, {"form": "quadratic"}),
    ({"global_lr": 2.0}, ["gamma lambda"], 100, {"models": FAR}),
    ({"rules": [harmonization]}, ["gamma lambda"], 100, {"models": CORRECTED}),
    ({"mode": "swa"}, ["gamma", "lambda swa"], 100, {}),
    ({"mode": "swa", "swa_order": "lambda first", **QUADRATIC}, ["lambda swa", "gamma"], 40, {"form": "quadratic"}),
    ({"mode": "swa", "swa_order": "lambda first"}, ["lambda swa", "gamma"], 14, {}),
]


@pytest.mark.parametrize(("settings", "stages", "epochs", "given"), STAGES)
def test_learns_what_autograd_learns(settings: Any, stages: list[str], epochs: int, given: Any) -> None:
    """Swa in two stages of half the epochs; 14 epochs average a single x. Their order and the averaging matter."""
    before = settings.get("rules", [])
    rule = FedLAW(epochs=epochs, **{name: value for name, value in settings.items() if name != "rules"})
    server, cohort = fit(*before, rule)
    gamma, weights = by_autograd(stages, epochs // len(stages), **given)
    assert cohort.shrinking == pytest.approx(gamma, abs=1e-9)
    assert close(cohort.weights, weights)
    assert close(server.params, gamma * weights @ given.get("models", W))
    assert close(rule.trajectory[-1], [gamma, *weights])
    assert len(rule.trajectory) == epochs
    for other in (stages[::-1], [stage.removesuffix(" swa") for stage in stages]) if len(stages) == 2 else ():
        gamma, weights = by_autograd(other, epochs // 2, **given)
        assert not close(rule.trajectory[-1], [gamma, *weights], 1e-7)


def test_stops_after_the_last_round() -> None:
    """Then γ = 1 and λ = (1/4, 3/4): round 2 moves by 3 (Δ_1 + 3 Δ_2) / 4, where Δ = W - W0 and η_g = 3."""
    server, capture = serve(W - W0, FedLAW(last_round=1, global_lr=3.0), samples=SAMPLES, rounds=2, client=Recorded())
    first, second = capture.cohorts
    assert first.shrinking < 0.9
    assert second.shrinking == server.logged["fedlaw/gamma"] == 1.0
    assert close(second.weights, SAMPLES_SHARES)
    assert close(server.params, second.anchor + 3 * SAMPLES_SHARES @ (W - W0))
    assert len(server.client.proxy_losses) == 100  # type: ignore[arg-type, union-attr]  # none in round 2


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
    rows = torch.cat([torch.zeros(1, 4, dtype=torch.float64), W - W0])
    server, _ = serve(rows, FedLAW("shrinking"), samples=[0, *SAMPLES], client=Recorded())
    step, decay = 0.7047961286 * 1.340625**0.5, 0.2952038714 * 0.75**0.5
    expected = {"gamma": 0.7047961286, "largest_weight": 0.75, "weight/1": 0.25, "weight/2": 0.75}
    expected |= {"global_gradient": step, "shrinking_gradient": decay, "ratio": step / decay}
    found = {name.removeprefix("fedlaw/"): value for name, value in server.logged.items() if "fedlaw/" in name}
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_global_learning_rate_and_another_rule_count_in_the_logged_norm() -> None:
    """Twice the harmonised mean update; in mode "attentive" γ is 1, and there is no ratio."""
    server, cohort = fit(GradientHarmonization(order="ascending"), FedLAW("attentive", global_lr=2.0))
    norm = float((cohort.weights @ cohort.mixing @ cohort.deltas).norm())
    assert server.logged["fedlaw/global_gradient"] == pytest.approx(norm)
    assert server.logged["fedlaw/shrinking_gradient"] == 0.0
    assert "fedlaw/ratio" not in server.logged


def test_zero_updates_from_zero_log_no_nan() -> None:
    """Nothing moves, w = 0: both norms are 0, and there is no ratio."""
    server, _ = serve(torch.zeros(2, 4), FedLAW(), samples=SAMPLES, client=Head())
    assert not server.params.any()
    assert "fedlaw/ratio" not in server.logged
    assert all(map(math.isfinite, server.logged.values()))


def test_trajectory() -> None:
    """Adam's first step is lr · sign: γ̂ = -0.01, x = (log 1/4 + 0.01, log 3/4 - 0.01)."""
    rule = FedLAW()
    assert rule.trajectory.shape == (0, 1)
    _, cohort = fit(rule)
    share = math.exp(0.01) / (math.exp(0.01) + 3 * math.exp(-0.01))
    assert rule.trajectory.shape == (100, 3)
    assert close(rule.trajectory[0], [math.exp(-0.01), share, 1 - share], 1e-8)
    assert close(rule.trajectory[-1], [cohort.shrinking, *cohort.weights], 0.0)


def test_trajectories_are_saved(tmp_path: Path) -> None:
    """After rounds 2 and 3 of three; a value has settled from the epoch on that no later one leaves."""
    rule = FedLAW(epochs=30, trajectories=2)
    run = trainer(rule, rounds=3, default_root_dir=tmp_path)
    run.fit(FederatedOrchestrator(Recorded()), datamodule=ProxyData(W0 - W, samples=SAMPLES))
    files = sorted((tmp_path / "arrays").glob("fedlaw_*"))
    assert [file.name for file in files] == ["fedlaw_2.npz", "fedlaw_3.npz"]
    arrays = np.load(files[1])
    assert arrays["clients"].tolist() == [0, 1]
    assert np.c_[arrays["gamma"], arrays["weights"]].tolist() == rule.trajectory.tolist()
    for name in ("gamma", "weights"):
        values = arrays[name].reshape(30, -1)
        left = [math.dist(row, values[-1]) for row in values]
        settled = next(epoch for epoch in range(30) if max(left[epoch:]) <= max(left) / 10)
        assert run.callback_metrics[f"fedlaw/{name}_settled"] == settled + 1


def test_starts_from_the_weights_of_a_rule_before() -> None:
    """Uniform ones: after one step of Adam x = (log 1/2 + 0.01, log 1/2 - 0.01)."""
    _, cohort = fit(FedAvg("uniform"), FedLAW("attentive", epochs=1))
    share = 1 / (1 + math.exp(-0.02))
    assert close(cohort.weights, [share, 1 - share], 1e-8)


class Without(FederatedCallback):
    """Gives client 0 the weight 0."""

    def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
        weights = cohort.weights * torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
        return cohort.replace(weights=weights / weights.sum())


@pytest.mark.parametrize("form", ["softmax", "quadratic"])
@pytest.mark.parametrize("mode", ["joint", "swa"])
def test_a_weight_of_zero_stays_zero(mode: Any, form: Any) -> None:
    """A third client without weight changes nothing for the two others."""
    rows = torch.cat([torch.full((1, 4), -9.0, dtype=torch.float64), W - W0])
    rule = FedLAW(mode, epochs=20, parametrization=form)
    server, capture = serve(rows, Without(), rule, samples=[5, *SAMPLES], client=Recorded())
    alone, cohort = fit(FedLAW(mode, epochs=20, parametrization=form))
    assert float(capture.cohort.weights[0]) == 0.0
    assert close(capture.cohort.weights[1:], cohort.weights)
    assert close(server.params, alone.params)
    assert bool(rule.trajectory.isfinite().all())
