"""FedLAW: learnable aggregation weights."""

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torch.optim.swa_utils import SWALR
from typing_extensions import override

from fl_lightning import (
    Cohort,
    ConfigurationError,
    FederatedCallback,
    Metric,
    Server,
    check_at_least,
    check_choice,
    check_positive,
    is_due,
    save_arrays,
)
from fl_lightning.later import later

Mode = Literal["joint", "shrinking", "attentive", "swa"]
Order = Literal["gamma first", "lambda first"]
Form = Literal["softmax", "quadratic"]
Buffers = Literal["average", "proxy"]

# From the published code: learning rate while averaging, epochs before averaging, epochs of half a cosine period.
SWA_LR, SWA_START, COSINE = 0.05, 6, 100
SETTLED = 0.1  # share of its way that a value which has settled still has before it


def shares(scores: Tensor, form: Form) -> Tensor:
    """Compute the weights λ from the variables x, both (K,): exp(x_k) / Σ exp(x) or x_k² / Σ x² (eq. 10).

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedlaw import shares
    >>> shares(torch.tensor([0.0, 0.0]), "softmax").tolist()
    [0.5, 0.5]
    >>> shares(torch.tensor([1.0, 3.0]).double(), "quadratic").tolist()
    [0.1, 0.9]
    """
    return scores.softmax(0) if form == "softmax" else scores.square() / scores.square().sum()


def gradients(gamma: float, scores: Tensor, along: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """Compute ∂L/∂γ̂ and ∂L/∂x of a loss L(γ Σ λ_k w_k) with γ = exp(γ̂).

    With λ = (1/2, 1/2), ∂L/∂γ̂ is the mean of 3 and 1, and ∂L/∂x_k is λ_k times the difference to this mean:

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedlaw import gradients
    >>> gradients(1.0, scores=torch.tensor([0.0, 0.0]), along=torch.tensor([3.0, 1.0]), form="softmax")
    (tensor(2.), tensor([ 0.5000, -0.5000]))

    Args:
        gamma: γ > 0, the shrinking factor.
        scores: (K,) the variables x that give λ.
        along: (K,) ⟨g, w_k⟩, where g is L's gradient at the sum.
        form: formula that gives λ from x, "softmax" or "quadratic".

    Returns:
        ∂L/∂γ̂, a scalar, and ∂L/∂x (K,).
    """
    weights, slope = shares(scores, form), gamma * along  # slope: ∂L/∂λ
    mean = weights @ slope
    factor = weights if form == "softmax" else 2 * scores / scores.square().sum()
    return mean, factor * (slope - mean)


def settled_after(values: Tensor) -> int:
    """Count the epochs until values have settled: from then on they stay within a tenth of their way from their end.

    The way is the largest distance from the last values. Here the distances are 8, 4, 0.5 and 0:

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedlaw import settled_after
    >>> settled_after(torch.tensor([[9.0], [5.0], [0.5], [1.0]]))
    3

    Args:
        values: (epochs, D) the values after each epoch, not all the same.
    """
    left = torch.linalg.vector_norm(values - values[-1], dim=1)
    return 2 + int((left > SETTLED * left.max()).nonzero().max())


def measures(cohort: Cohort) -> dict[str, float]:
    """Compute the logged metrics: γ, λ by client, ‖γ Σ λ_k Δ_k‖, ‖(1 - γ) w‖ (eq. 4), and these norms' ratio r.

    The ratio is left out if ‖(1 - γ) w‖ is zero.
    """
    combination, gamma = cohort.weights @ cohort.mixing, cohort.shrinking
    step = gamma * math.sqrt(max(float(combination @ cohort.gram @ combination), 0.0))
    decay = abs(1 - gamma) * float(torch.linalg.vector_norm(cohort.anchor, dtype=torch.float64))
    named = {"gamma": gamma, "largest_weight": float(cohort.weights.max())}
    named |= {f"weight/{k}": float(weight) for k, weight in zip(cohort.clients, cohort.weights, strict=True)}
    return named | {"global_gradient": step, "shrinking_gradient": decay} | ({"ratio": step / decay} if decay else {})


class FedLAW(FederatedCallback):
    """Learns the clients' weights and a shrinking factor on the server's proxy set (Li et al., 2023, Algorithm 1).

    The new model is γ Σ λ_k w_k (eq. 8): γ = exp(γ̂) shrinks the global model, λ weighs the clients. Adam with betas
    (0.5, 0.999) starts anew every round from γ = 1 and λ = the weights so far: n_k / Σn, or those that an earlier rule
    has set. The gradients need no backward pass through the sum: with g = ∂L/∂w, ∂L/∂λ_k = γ⟨g, w_k⟩ takes one
    matrix–vector product.

    Each round logs ``fedlaw/gamma``, ``fedlaw/weight/<client>``, ``fedlaw/largest_weight``, the norms of the two parts
    of the step, ``fedlaw/global_gradient`` ‖γ η_g Σ λ_k Δ_k‖ and ``fedlaw/shrinking_gradient`` ‖(1 - γ) w‖ (eq. 4), and
    the ratio of these norms, ``fedlaw/ratio``, if γ ≠ 1.

    With ``trajectories``, every so many rounds ``arrays/fedlaw_<round>.npz`` gets ``gamma`` (epochs,) and ``weights``
    (epochs, K) after each epoch of the fit (Fig. 14), and the ``clients`` (K,); ``fedlaw/gamma_settled``
    and ``fedlaw/weights_settled`` are the epochs until each stays within a tenth of its way from its end.

    Args:
        mode: "joint" learns γ and λ; "shrinking" learns γ alone (adaptive global weight shrinking, eq. 5); "attentive"
            learns λ alone (attentive learnable aggregation weights, eq. 7); "swa" learns γ and λ one after the other,
            each in half the epochs, and λ with stochastic weight averaging: after 6 epochs of a cosine schedule the
            rate goes to 0.05 within 10 epochs, and the mean of x after each epoch from then on gives λ. The paper gives
            no details of the averaging; the numbers are those of its published code.
        lr: learning rate of Adam; 0.01 for CIFAR-10 and 0.005 elsewhere in the published code.
        epochs: passes over the proxy set per round.
        decay_every: number of epochs after which the learning rate is halved; not used in the stage that averages λ.
        swa_order: order of the stages in "swa"; the paper's text learns γ first, its published code λ first.
        parametrization: formula that gives λ from the learned x, "softmax" or "quadratic", x² / Σ x². The published
            code starts the quadratic form from equal weights and also makes γ a square; here both forms start as
            Algorithm 1 says.
        global_lr: η_g (Table 10): the models in the sum are w + η_g Δ_k.
        last_round: last round that learns; afterwards the rule leaves the weights alone and γ is 1 (early-stopped
            "attentive", Fig. 5). None: all rounds learn.
        buffers: the new model's buffers: "average" by n_k, or "proxy", what the forward passes on the proxy set leave,
            as in the published code.
        trajectories: number of rounds from one saved trajectory to the next; the last round has one, too. 0 for none.

    Attributes:
        trajectory: (epochs, 1 + K) γ and λ after each epoch of the last fit, for plots (Fig. 14); while x is averaged,
            λ is that of the average. Empty before the first fit.

    Raises:
        ConfigurationError: an argument is outside its range; "swa" with an odd number of epochs, or fewer than 14.
    """

    metrics = (
        Metric(
            "fedlaw/gamma",
            "Shrinking factor γ",
            "Below 1 the server shrinks the new model, as weight decay does.",
            formula="See [FedLAW](fedlaw.md).",
            panel="shrinking factor γ",
            paper="gamma_learned",
        ),
        Metric("fedlaw/weight/<k>", "weight", formula="Weight λ_k of client k.", panel="weights λ"),
        Metric(
            "fedlaw/ratio",
            "Update against shrinking",
            "Length of the global update divided by the length of the shrinking.",
            formula="Not logged if γ = 1.",
            panel="ratio of the two parts",
        ),
        Metric(
            "fedlaw/global_gradient",
            "Length of the global update",
            "Length of the part of the server's step that the clients' updates make.",
            formula="‖γ η_g Σ λ_k Δ_k‖",
            panel="two parts of the step",
        ),
        Metric(
            "fedlaw/shrinking_gradient",
            "Length of the shrinking",
            "Length of the part of the server's step that γ makes.",
            formula="‖(1 − γ) w‖",
            panel="two parts of the step",
        ),
        Metric(
            "fedlaw/largest_weight",
            "Largest weight",
            "The largest of the weights λ that the server learned.",
            panel="largest weight",
        ),
        Metric(
            "fedlaw/gamma_settled",
            "Epochs until γ has settled",
            "Epochs of the server's fit until γ stays within a tenth of its way from its end (FedLAW, Fig. 14).",
            panel="epochs until settled",
        ),
        Metric(
            "fedlaw/weights_settled",
            "Epochs until λ has settled",
            "Epochs of the server's fit until λ stays within a tenth of its way from its end (FedLAW, Fig. 14).",
            panel="epochs until settled",
        ),
    )

    needs_proxy = True
    settles = frozenset({"weights", "shrinking"})

    @later(trajectories=0)
    def __init__(
        self,
        mode: Mode = "joint",
        lr: float = 0.01,
        epochs: int = 100,
        decay_every: int = 20,
        swa_order: Order = "gamma first",
        parametrization: Form = "softmax",
        global_lr: float = 1.0,
        last_round: int | None = None,
        buffers: Buffers = "average",
        trajectories: int = 0,
    ) -> None:
        check_choice("mode", mode, *get_args(Mode))
        check_choice("swa_order", swa_order, *get_args(Order))
        check_choice("parametrization", parametrization, *get_args(Form))
        check_choice("buffers", buffers, *get_args(Buffers))
        check_positive(lr=lr, global_lr=global_lr)
        check_at_least(1, epochs=epochs, decay_every=decay_every)
        check_at_least(0, trajectories=trajectories)
        if last_round is not None:
            check_at_least(0, last_round=last_round)
        if mode == "swa" and (epochs < 14 or epochs % 2):
            raise ConfigurationError(f"epochs must be even and at least 14 for swa, got {epochs}")
        self.mode, self.lr, self.epochs, self.decay_every, self.swa_order = mode, lr, epochs, decay_every, swa_order
        self.parametrization, self.global_lr, self.last_round = parametrization, global_lr, last_round
        self.buffers, self.trajectories = buffers, trajectories
        self.trajectory = torch.zeros(0, 1, dtype=torch.float64)

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        cohort = cohort.scaled(torch.full_like(cohort.weights, self.global_lr))
        if self.last_round is None or cohort.round <= self.last_round:
            cohort = self._fit(orchestrator, cohort)
            if is_due(orchestrator, self.trajectories):
                self._save_trajectory(orchestrator, cohort)
        for name, value in measures(cohort).items():
            orchestrator.log_round(f"fedlaw/{name}", value)
        return cohort

    def _save_trajectory(self, orchestrator: Server, cohort: Cohort) -> None:
        gamma, weights = self.trajectory[:, :1], self.trajectory[:, 1:]
        for name, learned in (("gamma", gamma), ("weights", weights)):
            if (learned != learned[-1]).any():
                orchestrator.log_round(f"fedlaw/{name}_settled", settled_after(learned))
        arrays = {"gamma": gamma[:, 0], "weights": weights, "clients": cohort.clients}
        save_arrays(orchestrator, f"fedlaw_{cohort.round}", **arrays)

    def _fit(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        fit = _Fit(orchestrator, cohort, self.parametrization)
        gamma, scores = fit.log_gamma, fit.scores
        swa = [([gamma], False), ([scores], True)]
        stages = {
            "joint": [([gamma, scores], False)],
            "shrinking": [([gamma], False)],
            "attentive": [([scores], False)],
            "swa": swa if self.swa_order == "gamma first" else swa[::-1],
        }[self.mode]
        with orchestrator.server_side("fedlaw"):
            orchestrator.write_buffers(cohort.buffers)
            for learned, average in stages:
                fit.stage(learned, average, self.lr, self.epochs // len(stages), self.decay_every)
            moved = orchestrator.read_buffers()
        self.trajectory = torch.stack(fit.rows)
        return fit.candidate.replace(buffers=cohort.buffers if self.buffers == "average" else moved)


class _Fit:
    """Trains γ̂ and x for one round."""

    def __init__(self, orchestrator: Server, cohort: Cohort, form: Form) -> None:
        self.orchestrator, self.cohort, self.form = orchestrator, cohort, form
        self.log_gamma = torch.zeros((), dtype=torch.float64)
        self.scores = cohort.weights.log() if form == "softmax" else cohort.weights.sqrt()
        self.rows: list[Tensor] = []

    @property
    def candidate(self) -> Cohort:
        """The cohort with the present γ and λ."""
        return self.cohort.replace(weights=shares(self.scores, self.form), shrinking=float(self.log_gamma.exp()))

    def stage(self, learned: list[Tensor], average: bool, lr: float, epochs: int, decay_every: int) -> None:
        """Train for some epochs on the proxy set; ``average`` leaves x at its mean over the epochs since SWA_START."""
        optimizer = torch.optim.Adam(learned, lr=lr, betas=(0.5, 0.999))
        schedule = CosineAnnealingLR(optimizer, COSINE) if average else StepLR(optimizer, decay_every, gamma=0.5)
        annealing = SWALR(optimizer, SWA_LR, anneal_epochs=10) if average else schedule
        proxy: Any = self.orchestrator.data.proxy_dataloader()
        visited: list[Tensor] = []
        for epoch in range(epochs):
            for batch in proxy:
                self._set_gradients(batch)
                optimizer.step()
            if average and epoch >= SWA_START:
                visited.append(self.scores.clone())
                annealing.step()
            else:
                schedule.step()
            scores = torch.stack(visited).mean(0) if visited else self.scores  # a running mean would turn -inf into nan
            self.rows.append(torch.cat([self.log_gamma.exp()[None], shares(scores, self.form)]))
        self.scores.copy_(scores)

    def _set_gradients(self, batch: Any) -> None:
        cohort, candidate = self.cohort, self.candidate
        _, gradient = self.orchestrator.loss_and_gradient(cohort.anchor + candidate.update, batch)
        along = cohort.mixing @ cohort.products(gradient) + float(cohort.anchor @ gradient)
        step = gradients(candidate.shrinking, self.scores, along, self.form)
        self.log_gamma.grad, self.scores.grad = step
