"""FedBuff and FedAsync: a server that steps when clients have arrived, whatever models they began with."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import (
    Arrivals,
    ArrivalSampler,
    Buffers,
    Cohort,
    ConfigurationError,
    FederatedCallback,
    Metric,
    Server,
    check_not_negative,
    check_within,
    rules_of,
)


class FedBuff(FederatedCallback):
    """Trains each client from the model that was new when it began, stale updates weigh less (Nguyen et al., 2022).

    A round is a step of the server, with the K clients that :class:`ArrivalSampler` lets arrive. Client k, which began
    with the model of s rounds ago, counts with (1 + s)^-p / K: the weights do not sum to one. Buffers are the newest
    ones. The server keeps the models from which busy clients have begun.

    Args:
        power: p >= 0; 0 ignores staleness.

    Raises:
        ConfigurationError: ``power`` is negative; the sampler is no ArrivalSampler, or there is ``availability``; a
            rule behind weighs clients anew, as ``PCGrad`` does.
    """

    settles = frozenset({"base weights"})
    starts_at_server = True  # from models of earlier rounds, which are not sent
    needs_each_client = "starts each client from another model"
    streams = True
    metrics = (
        Metric(
            "async/time",
            "Virtual time",
            "Time of the server's step, in the time that a client of median speed takes for an example.",
            panel="virtual time",
        ),
        Metric(
            "async/staleness",
            "Staleness of updates",
            "Mean over the cohort of the number of rounds since a client's model was new.",
            panel="staleness",
        ),
    )

    def __init__(self, power: float = 0.5) -> None:
        check_not_negative(power=power)
        self.power = power

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set outside its __init__
        if not isinstance(data.sampler, ArrivalSampler) or data.availability is not None:
            got = f"{type(data.sampler).__name__}{' and availability' if data.availability else ''}"
            raise ConfigurationError(
                f"{type(self).__name__} needs data.sampler: ArrivalSampler, which says when clients arrive, and no "
                f"data.availability, got {got}"
            )
        rules = rules_of(trainer)
        for rule in rules[rules.index(self) + 1 :]:
            if "base weights" in rule.settles:
                raise ConfigurationError(
                    f"{type(rule).__name__} weighs clients anew, which undoes the weights of {type(self).__name__} by "
                    f"staleness: put {type(rule).__name__} before it"
                )

    def _arrivals(self, orchestrator: Server) -> Arrivals:
        data: Any = orchestrator.data
        return data.sampler.arrivals(data.sizes, data.cohort_size, orchestrator.round)  # type: ignore[no-any-return]

    def _staleness(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        versions = self._arrivals(orchestrator).versions
        return torch.tensor([cohort.round - versions[client] for client in cohort.clients], dtype=torch.float64)

    @override
    def start(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        version = self._arrivals(orchestrator).versions[client]
        return self._model(version, params), buffers

    def _model(self, version: int, newest: Tensor) -> Tensor:
        """Return the global model (P,) of a round's start, given the newest one."""
        versions = self.state["versions"].tolist() if "versions" in self.state else []
        return self.recall("models", newest)[versions.index(version)].clone() if version in versions else newest

    @override
    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return params, buffers

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        weights = self.stream_weights(orchestrator, cohort, cohort.weights)
        return cohort.replace(weights=weights / orchestrator.data.cohort_size)

    @override
    def stream_weights(self, orchestrator: Server, cohort: Cohort, weights: Tensor) -> Tensor:
        return (1 + self._staleness(orchestrator, cohort)) ** -self.power

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        arrivals = self._arrivals(orchestrator)
        versions = self.state.get("versions", torch.zeros(0, dtype=torch.int64)).tolist()
        known = dict(zip(versions, self.state.get("models", ()), strict=True)) | {cohort.round: cohort.anchor.clone()}
        needed = sorted({*arrivals.busy.values()})
        self.state["versions"] = torch.tensor(needed, dtype=torch.int64)
        rows = [known[version].to(cohort.anchor) for version in needed]
        self.state["models"] = torch.stack(rows) if rows else cohort.anchor.new_empty(0, len(cohort.anchor))
        orchestrator.log_round("async/time", arrivals.time)
        orchestrator.log_round("async/staleness", float(self._staleness(orchestrator, cohort).mean()))


class FedAsync(FedBuff):
    """Moves the global model towards each client's model as it arrives (Xie et al., 2019).

    The step is α (1 + s)^-p (w_k - w), with the model w_k of a client that began s rounds ago and the newest global
    model w; with a larger cohort than ``participation: 1``, the mean of these steps.

    Args:
        alpha: α in (0, 1].
        power: p >= 0; 0 ignores staleness.

    Raises:
        ConfigurationError: as for :class:`FedBuff`; ``alpha`` is out of range.
    """

    streams = True

    def __init__(self, alpha: float = 0.6, power: float = 0.5) -> None:
        super().__init__(power)
        check_within("(0, 1]", alpha=alpha)
        self.alpha = alpha

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        weights, versions = self.alpha * super().aggregate(orchestrator, cohort).weights, self._arrivals(orchestrator)
        began = [self._model(versions.versions[client], cohort.anchor) for client in cohort.clients]
        apart = [weight * (old - cohort.anchor) for weight, old in zip(weights.tolist(), began, strict=True)]
        return cohort.replace(weights=weights).plus(torch.stack(apart).sum(0))
