"""FedExLoRA: exact averages of adapters, and FLoRA, which starts them anew each round."""

import math

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server, overrides, rules_of
from fl_lightning.callbacks.adapters.low_rank import (
    LowRank,
    adapters_of,
    check_adapters,
    mean_less_product,
    shares_of,
)

UNDONE = {"updates", "reduction", "step"}  # parts of a round that FLoRA would undo
Factors = tuple[Tensor, Tensor]  # (out, R) and (R, in), float64, on the CPU


class FedExLoRA(FederatedCallback):
    """Averages A and B, and adds what that loses of the mean of B A to the frozen weights (Singhal et al., 2025).

    Without the rule, the server makes mean(B) mean(A) of the clients' B A; with it, a layer's frozen weight becomes
    W + s (mean(B A) - mean(B) mean(A)), s the factor of the adapters. So the new model adds to W exactly what the
    clients' adapters add in the mean, also where other rules change the adapters. A frozen weight in half precision
    rounds.

    What the server adds has rank (K + 2) r for K clients; each client of the next round receives it as two factors,
    which ``bytes/down`` counts. A client that has missed rounds would receive those of all rounds since.

    Raises:
        ConfigurationError: the client module has no adapters on linear layers, or a part of one stays with the clients.
    """

    broadcasts = ("added",)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Server)
        check_adapters(self, pl_module)

    @override
    def refine(self, orchestrator: Server, cohort: Cohort) -> None:
        places = {name: place for place, name in enumerate(orchestrator.buffer_names)}
        known = orchestrator.read_buffers()
        new: list[Tensor | None] = [None] * len(known)
        sent = list[Tensor]()
        for adapter in adapters_of(orchestrator):
            left, right = self.to_add(adapter, orchestrator, cohort)
            weight = known[places[adapter.weight]]
            assert weight is not None
            product = adapter.as_weight(adapter.scaling * left @ right)
            new[places[adapter.weight]] = (weight.double().cpu() + product).to(weight)
            sent += [left.flatten(), right.flatten()]
        orchestrator.write_buffers(new)
        self.state["added"] = torch.cat(sent).to(orchestrator.params.dtype)

    def to_add(self, adapter: LowRank, orchestrator: Server, cohort: Cohort) -> Factors:
        """Factor what the frozen weight of a layer gets, without the factor of the adapter."""
        clients = adapter.of_clients(orchestrator, cohort)
        return mean_less_product(shares_of(cohort), *clients, adapter.factors)


class FLoRA(FedExLoRA):
    """Adds the mean of the clients' B A to the frozen weights, and starts the adapters anew (Wang et al., 2024).

    A is drawn as peft draws it, uniform within ±1/√in, and B is zero. The server sends the clients' matrices, stacked,
    which ``bytes/down`` counts. Rules that correct updates or the server's step are refused, since it would undo them.

    Raises:
        ConfigurationError: as :class:`FedExLoRA`; or another rule changes what becomes of the updates.
    """

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        for rule in rules_of(trainer):
            if rule.settles & UNDONE or rule.reduce is not None or overrides(rule, "update"):
                raise ConfigurationError(
                    f"FLoRA starts the adapters anew each round, and would undo what {type(rule).__name__} does: leave "
                    "one of the two out, or take FedExLoRA"
                )

    @override
    def refine(self, orchestrator: Server, cohort: Cohort) -> None:
        super().refine(orchestrator, cohort)
        for adapter in adapters_of(orchestrator):
            first, second = adapter.parameters
            generator = orchestrator.generator(f"FLoRA {adapter.name}", orchestrator.round)
            bound = 1 / math.sqrt(first.shape[1])
            with torch.no_grad():
                second.zero_()
                if first.requires_grad:
                    first.copy_(torch.empty(first.shape).uniform_(-bound, bound, generator=generator))

    @override
    def to_add(self, adapter: LowRank, orchestrator: Server, cohort: Cohort) -> Factors:
        first, second = adapter.of_clients(orchestrator, cohort)
        left = shares_of(cohort)[:, None, None] * second
        return torch.cat(list(left), 1), torch.cat(list(first), 0)
