"""FedExLoRA: exact averages of adapters, and FLoRA, which starts them anew each round."""

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server, overrides, rules_of
from fl_lightning.callbacks.adapters.hetlora import HetLoRA
from fl_lightning.callbacks.adapters.low_rank import (
    LowRank,
    Pair,
    adapters_of,
    check_adapters,
    mean_less_product,
)
from fl_lightning.engine.rules.declared import declares

ROUNDING = 1e-9  # of weights that sum to 1
TAKES = "takes the mean of the clients' products"


class FedExLoRA(FederatedCallback):
    """Averages A and B, and adds what that loses of the mean of B A to the frozen weights (Singhal et al., 2025).

    Without the rule, the server makes mean(B) mean(A) of the clients' B A; with it, a layer's frozen weight becomes
    W + s (mean(B A) - mean(B) mean(A)), s the factor of the adapters. So the new model adds to W exactly what the
    clients' adapters add in the mean. The clients' adapters are the global ones and their updates, as the rules'
    corrections have made the updates, and the mean has the rules' weights. A frozen weight in half precision rounds.

    The rule acts on layers where an adapter adds B A to one weight of one linear layer, and nothing else; a line names
    layers with several adapters, of other kinds, or with weights that others share, which are averaged as without the
    rule. Rules that make the new model of anything but a weighted sum of the updates are refused.

    What the server adds has rank (K + 2) r for K clients; each client of the next round receives it as two factors,
    which ``bytes/down`` counts. A client that has missed rounds would receive those of all rounds since.

    Raises:
        ConfigurationError: the client module has no adapters on linear layers, a part of one stays with the clients, or
            the new model is not a weighted sum of the clients' updates.
    """

    broadcasts = ("added",)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Server)
        check_adapters(self, pl_module)
        before = True
        for rule in rules_of(trainer):
            if rule is self:
                before = False
            elif reason := self.conflict(rule, before):
                raise ConfigurationError(f"{type(self).__name__} {TAKES}, but {reason}")
        self._check_server(pl_module)

    def conflict(self, rule: FederatedCallback, before: bool) -> str:
        """Say why a rule does not go together with this one, and what to do; "" if it does.

        Args:
            rule: the other rule.
            before: whether it stands before this one in the list.
        """
        name = type(rule).__name__
        leave = f"leave {name} or {type(self).__name__} out"
        if rule.reduce is not None or overrides(rule, "update") or "shrinking" in rule.settles:
            return f"{name} makes the new model of something else than the weighted sum of their updates: {leave}"
        if overrides(rule, "start") and type(rule) is not HetLoRA:
            return f"with {name} they start from other models than the global one: {leave}"
        if overrides(rule, "upload") and not declares(rule, "post_processes", ["upload"]):
            return f"with {name} they send something else than what they have learned: {leave}"
        if isinstance(rule, FedExLoRA):
            return f"so does {name}: {leave}"
        if before and overrides(rule, "refine"):
            return f"{name} changes the new model before: list {name} after {type(self).__name__}"
        return ""

    def _check_server(self, orchestrator: Any) -> None:
        """Refuse a server optimizer that does more than to add the update."""
        ((kind, groups),) = orchestrator.made_optimizers()["server"]  # there is one
        adds = kind is torch.optim.SGD and orchestrator.server_scheduler is None
        for group in groups:
            adds = adds and group["lr"] == 1 and not (group["momentum"] or group["weight_decay"] or group["maximize"])
        if not adds:
            raise ConfigurationError(
                f"{type(self).__name__} {TAKES}, but the server does more with the mean update than to add it: leave "
                "model.server_optimizer and model.server_scheduler out"
            )

    @override
    def refine(self, orchestrator: Server, cohort: Cohort) -> None:
        if cohort.shrinking != 1 or cohort.added is not None:
            raise ConfigurationError(
                f"{type(self).__name__} {TAKES}, but a rule adds to the weighted sum of their updates, or shrinks it: "
                f"leave that rule or {type(self).__name__} out"
            )
        places = {name: place for place, name in enumerate(orchestrator.buffer_names)}
        known = orchestrator.read_buffers()
        new: list[Tensor | None] = [None] * len(known)
        sent = list[Tensor]()
        for adapter in adapters_of(orchestrator):
            left, right = self.to_add(adapter, *corrected(adapter, orchestrator, cohort))
            weight = known[places[adapter.weight]]
            assert weight is not None
            product = adapter.as_weight(adapter.scaling * left @ right)
            new[places[adapter.weight]] = (weight.double().cpu() + product).to(weight)
            sent += [left.flatten(), right.flatten()]
        orchestrator.write_buffers(new)
        self.state["added"] = torch.cat(sent).to(orchestrator.params.dtype)

    def to_add(self, adapter: LowRank, shares: Tensor, clients: Pair) -> Pair:
        """Factor what the frozen weight of a layer gets, without the factor of the adapter: (out, R) and (R, in).

        Args:
            adapter: the layer's adapter, whose matrices are the new global ones.
            shares: (K,) weights that sum to 1.
            clients: A_k (K, r, in) and B_k (K, out, r).
        """
        return mean_less_product(shares, *clients, adapter.factors)


def corrected(adapter: LowRank, orchestrator: Server, cohort: Cohort) -> tuple[Tensor, Pair]:
    """Return the weights and adapters of clients as the rules have made them.

    Where the weights do not sum to 1, the model from which the clients started has the rest, as a client that does not
    move: so the weighted mean of the adapters is the new global adapter.

    Returns:
        (K,) weights that sum to 1, and A_k (K, r, in) and B_k (K, out, r); K + 1 of them with the first model.
    """
    first, second = adapter.of_clients(orchestrator, cohort, cohort.columns)
    rest = 1 - float(cohort.weights.sum())
    if abs(rest) < ROUNDING:
        return cohort.weights, (first, second)
    start = adapter.of_clients(orchestrator, cohort, lambda indices: torch.zeros(1, len(indices), dtype=torch.float64))
    shares = torch.cat([cohort.weights, cohort.weights.new_tensor([rest])])
    return shares, (torch.cat([first, start[0][:1]]), torch.cat([second, start[1][:1]]))


class FLoRA(FedExLoRA):
    """Adds the mean of the clients' B A to the frozen weights, and starts the adapters anew (Wang et al., 2024).

    A is drawn as peft draws it by default, uniform within ±1/√in, and B is zero; where B is frozen, A is zero. The
    server sends the clients' matrices, stacked, which ``bytes/down`` counts.

    Raises:
        ConfigurationError: as :class:`FedExLoRA`; or another rule keeps models of the clients.
    """

    @override
    def conflict(self, rule: FederatedCallback, before: bool) -> str:
        name = type(rule).__name__
        if overrides(rule, "personal") and not overrides(rule, "start"):
            return f"{name} keeps adapters that FLoRA starts anew: leave {name} or FLoRA out"
        return super().conflict(rule, before)

    @override
    def refine(self, orchestrator: Server, cohort: Cohort) -> None:
        super().refine(orchestrator, cohort)
        for adapter in adapters_of(orchestrator):
            first, second = adapter.parameters
            generator = orchestrator.generator(f"FLoRA {adapter.name}", orchestrator.round)
            bound = 1 / math.sqrt(first.shape[1])
            with torch.no_grad():
                if not second.requires_grad:
                    first.zero_()
                    continue
                second.zero_()
                if first.requires_grad:
                    first.copy_(torch.empty(first.shape).uniform_(-bound, bound, generator=generator))

    @override
    def to_add(self, adapter: LowRank, shares: Tensor, clients: Pair) -> Pair:
        first, second = clients
        left = shares[:, None, None] * second
        return torch.cat(list(left), 1), torch.cat(list(first), 0)
