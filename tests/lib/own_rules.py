"""Three rules as users write them: a file of their own, and public names alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from fl_lightning import (
    Buffers,
    Cohort,
    ConfigurationError,
    FederatedCallback,
    LocalRun,
    Metric,
    Server,
    check_not_negative,
    check_within,
    isolated,
    overrides,
    rules_of,
)


class Ahead(FederatedCallback):
    """Takes the server's steps with momentum, and starts clients where the momentum will lead, as FedACG does."""

    settles = frozenset({"step"})
    broadcasts = ("momentum",)
    metrics = (Metric("ahead/momentum", "Norm of the server's momentum", formula="‖m‖"),)

    def __init__(self, lam: float, beta: float) -> None:
        check_within("[0, 1)", lam=lam)
        check_not_negative(beta=beta)
        self.lam = lam
        self.beta = beta

    def start(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        momentum = self.recall("momentum", torch.zeros_like(params))
        return params + self.lam * momentum, buffers

    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return params, buffers

    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.proximal += self.beta

    def on_before_client_step(self, run: LocalRun) -> None:
        run.grads.add_(run.params - run.anchor, alpha=self.beta)

    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        momentum = self.lam * self.recall("momentum", torch.zeros_like(update)) + update
        self.state["momentum"] = momentum
        orchestrator.log_round("ahead/momentum", float(momentum.norm()))
        return momentum


class Controlled(FederatedCallback):
    """Adds control variates to the clients' gradients, as SCAFFOLD does with option I."""

    settles = frozenset({"base weights"})
    broadcasts = ("c",)

    def on_fit_start(self, trainer: object, pl_module: object) -> None:
        for rule in rules_of(trainer):  # type: ignore[arg-type]  # a Trainer
            if overrides(rule, "loss"):
                raise ConfigurationError(f"Controlled needs the module's own loss: leave {type(rule).__name__} out")

    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        start = torch.zeros_like(run.anchor)
        run.kept["correction"] = self.recall("c", start) - self.recall(f"c/{run.client}", start)
        run.send("gradient", self.gradient(orchestrator, run))

    def gradient(self, orchestrator: Server, run: LocalRun) -> Tensor:
        """The mean gradient (P,) over the client's examples, where the client starts."""
        total = torch.zeros_like(run.anchor)
        examples = 0
        order = orchestrator.generator("scaffold", run.round, run.client)
        with isolated(orchestrator.device), run.at(run.anchor):
            for batch in run.batches(order):
                _, gradient = orchestrator.loss_and_gradient(run.anchor, batch)
                total = total + len(batch[0]) * gradient
                examples += len(batch[0])
        return total / examples

    def on_before_client_step(self, run: LocalRun) -> None:
        run.grads.add_(run.kept["correction"])

    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        start = torch.zeros_like(cohort.anchor)
        change = torch.zeros_like(cohort.anchor)
        for result in cohort.results:
            renewed = result.vectors["gradient"].to(start)
            change += renewed - self.recall(f"c/{result.client}", start)
            self.state[f"c/{result.client}"] = renewed.cpu()
        self.state["c"] = self.recall("c", start) + change / orchestrator.data.num_with_data
        return cohort.uniform()


class Mixture(FederatedCallback):
    """Serves each client by a mixture of a model of its own and the global one, as APFL does."""

    def __init__(self, alpha: float) -> None:
        check_within("(0, 1]", alpha=alpha)
        self.alpha = alpha

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        rest = (1 - self.alpha) * run.params
        start = self.alpha * self.recall(f"v/{run.client}", run.anchor) + rest
        mixed = orchestrator.train_again(run, start, self.shortened())
        self.keep(run, "v", (mixed - rest) / self.alpha)

    def shortened(self) -> Callable[[LocalRun], None]:
        """A hook before the steps of the second training."""

        def shorten(again: LocalRun) -> None:
            again.grads.mul_(self.alpha**2)

        return shorten

    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        own = self.recall(f"v/{client}", params)
        return self.alpha * own + (1 - self.alpha) * params, buffers
