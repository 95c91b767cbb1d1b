"""SCAFFOLD: control variates against client drift."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from typing_extensions import override

from fl_lightning import (
    Cohort,
    ConfigurationError,
    FederatedCallback,
    LocalRun,
    Server,
    check_choice,
    check_positive,
    isolated,
    overrides,
    rules_of,
)
from fl_lightning.later import later


def mean_gradient(common: Tensor, own: Tensor, delta: Tensor, reach: float) -> Tensor:
    """Recover the mean of a client's gradients before their correction: c_i⁺ = c_i - c - Δ_i / reach.

    A client whose gradients are 3 follows 3 + c - c_i = 3 + 1 - 2 = 2; ten steps with η = 0.1 take it to Δ_i = -2:

    >>> import torch
    >>> from fl_lightning.callbacks.client.scaffold import mean_gradient
    >>> mean_gradient(common=torch.tensor([1.0]), own=torch.tensor([2.0]), delta=torch.tensor([-2.0]), reach=10 * 0.1)
    tensor([3.])

    Args:
        common: (P,) c, the server's control variate.
        own: (P,) c_i, the client's control variate.
        delta: (P,) Δ_i, the client's update.
        reach: η_i ‖a_i‖₁, the learning rate times FedNova's normalizer, which for plain SGD is the number of steps; 0
            if the client took no step.

    Returns:
        (P,) c_i⁺; c_i if the client took no step.
    """
    return own - common - delta / reach if reach > 0 else own


def full_gradient(orchestrator: Server, run: LocalRun) -> Tensor:
    """Compute the gradient (P,) at the global model, averaged over a client's examples; no effect on its training."""
    order = orchestrator.generator("scaffold", run.round, run.client)
    total, count = torch.zeros_like(run.anchor), 0
    with isolated(orchestrator.device), run.at(run.anchor):
        for batch in run.batches(order):
            size = extract_batch_size(batch)
            total, count = total + size * orchestrator.loss_and_gradient(run.anchor, batch)[1], count + size
    return total / max(count, 1)


class Scaffold(FederatedCallback):
    """Adds control variates to each client's gradient, against client drift (Karimireddy et al., 2020, Algorithm 1).

    Client i follows g + c - c_i, where g is its gradient; the correction c - c_i is added before the local optimizer
    applies its momentum. All control variates start at zero. The server averages uniformly; c gains
    (1/N) Σ_S (c_i⁺ - c_i), where N is the number of clients with data. Option II divides by η_i ‖a_i‖₁, the learning
    rate times FedNova's normalizer. The paper divides by η τ, with τ local steps: this is the same for plain SGD, but
    with momentum the paper's form diverges.

    The published averages count a client with three examples as much as one with three thousand. Where sizes are
    skewed, the average of the control variates costs SCAFFOLD its accuracy, and ``weighting="samples"`` gives it back
    (``reproduce controls/variates``).

    Args:
        option: "II": c_i⁺ = c_i - c - Δ_i / (η_i ‖a_i‖₁). "I": c_i⁺ is the gradient at the global model of the loss
            that ``training_step`` returns, averaged over the client's examples, which takes another pass over these
            examples.
        server_lr: η_g > 0, factor on the mean update.
        weighting: "uniform": updates and control variates of all clients count equally, as published. "samples": client
            i counts by its number of examples, n_i / Σ n in place of 1/N.

    Raises:
        ConfigurationError: an argument is out of range; the clients' optimizer is not SGD; for option II, its learning
            rate or momentum differs between parameters; for option I, the module optimizes manually, or another rule
            changes the loss or its gradient.
    """

    settles = frozenset({"base weights"})
    broadcasts = ("c",)
    reads = frozenset({"steps"})
    stacks = True

    @later(weighting="uniform")
    def __init__(
        self,
        option: Literal["I", "II"] = "II",
        server_lr: float = 1.0,
        weighting: Literal["uniform", "samples"] = "uniform",
    ) -> None:
        check_choice("option", option, "I", "II")
        check_choice("weighting", weighting, "uniform", "samples")
        check_positive(server_lr=server_lr)
        self.option, self.server_lr, self.weighting = option, server_lr, weighting

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        orchestrator: Any = pl_module
        others = [rule for rule in rules_of(trainer) if overrides(rule, "loss") or overrides(rule, "closure")]
        self._check_own_loss(orchestrator.client, [type(rule).__name__ for rule in others])

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        self._check(run)
        start = torch.zeros_like(run.anchor)
        run.kept["scaffold"] = self.recall("c", start) - self.recall(f"c/{run.client}", start)
        if self.option == "I":
            run.send("scaffold", full_gradient(orchestrator, run))

    @override
    def sends(self, orchestrator: Server) -> Mapping[str, Tensor]:
        return {"scaffold": orchestrator.params} if self.option == "I" else {}

    @override
    def on_before_client_step(self, run: LocalRun) -> None:
        run.grads.add_(run.kept["scaffold"])

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        start = torch.zeros_like(cohort.anchor)
        common, change = self.recall("c", start), start.clone()
        counts = self._counts(cohort.num_samples)
        clients = zip(cohort.results, cohort.rows(), self._reaches(cohort).tolist(), counts.tolist(), strict=True)
        for result, delta, reach, count in clients:
            own, sent = self.recall(f"c/{result.client}", start), result.vectors.get("scaffold")
            renewed = mean_gradient(common, own, delta, reach) if sent is None else sent.to(start)
            change += count * (renewed - own)
            self.state[f"c/{result.client}"] = renewed.cpu()  # the vectors of many clients may not fit on a GPU
        self.state["c"] = common + change / self._divisor(orchestrator, cohort)
        weighed = cohort.replace(weights=counts.double() / counts.sum())
        return weighed.scaled(torch.full_like(cohort.weights, self.server_lr))

    def _reaches(self, cohort: Cohort) -> Tensor:
        """Return (K,) the distance that a constant gradient of 1 moves each client."""
        return cohort.learning_rates * cohort.normalizers

    def _counts(self, sizes: Tensor) -> Tensor:
        """Return (K,) how much each client counts, given (K,) their numbers of examples."""
        return sizes if self.weighting == "samples" else (sizes > 0).long()

    def _divisor(self, orchestrator: Server, cohort: Cohort) -> int:
        """Return by what the sum of the cohort's c_i⁺ - c_i is divided: how much all clients count."""
        return int(self._counts(orchestrator.data.sizes).sum())

    def _check(self, run: LocalRun) -> None:
        name, module = type(self).__name__, type(run.module).__name__
        for optimizer in run.optimizers:
            if not isinstance(optimizer, torch.optim.SGD):
                got = type(optimizer).__name__
                raise ConfigurationError(f"{name} needs clients that train by SGD, got {got}: let {module} use SGD")
        rates = {(group["lr"], group["momentum"]) for optimizer in run.optimizers for group in optimizer.param_groups}
        if self.option == "II" and len(rates) > 1:
            raise ConfigurationError(
                f"{name} computes gradients from updates: {module}'s optimizer must have one lr and one momentum for "
                f"all parameters, got the pairs {sorted(rates)}"
            )
        self._check_own_loss(run.module, [] if run.module.automatic_optimization else ["manual optimization"])

    def _check_own_loss(self, module: LightningModule, others: Sequence[str]) -> None:
        """Refuse option I where something other than the module's own loss decides the gradients."""
        if self.option == "I" and others:
            raise ConfigurationError(
                f"{type(self).__name__}'s option I takes the gradient of {type(module).__name__}'s own loss, but "
                f"clients train by {', '.join(others)}: use option II"
            )
