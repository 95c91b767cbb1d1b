"""AggregationError: what is lost where the server averages the matrices of adapters in place of their products."""

import math
from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, Metric, Monitor, Server
from fl_lightning.callbacks.adapters.low_rank import (
    Adapters,
    LowRank,
    is_in_part_local,
    mean_less_product,
    norm_of_product,
    shares_of,
    shown,
    stacked,
)


class AggregationError(Monitor):
    """Logs how far the new adapters are from the mean of what the clients' adapters add to the frozen weights.

    - ``adapter/aggregation_error``: ‖Σ s_k B_k A_k - B A‖ ÷ ‖Σ s_k B_k A_k‖, in [0, ∞), over all adapters together,
      with the clients' weights s_k, the new global A and B, and Frobenius norms; 0 if the server loses nothing. Not
      logged while all products are zero, nor for modules of which a part of an adapter stays with the clients.

    The adapters are those that peft has put around linear layers, convolutions, embeddings and attention, and that are
    in use; a line names others. The clients' matrices are those before any rule's correction; what rules such as
    :class:`FedExLoRA` put into the frozen weights counts as not lost. The monitor changes nothing.
    """

    metrics = (
        Metric(
            "adapter/aggregation_error",
            "Aggregation error of the adapters",
            "What averaging A and B apart loses of the mean of the clients' products; 0 if nothing is lost.",
            formula="‖Σ s_k B_k A_k - B A‖ ÷ ‖Σ s_k B_k A_k‖ over all adapters, Frobenius norms.",
            panel="adapters",
        ),
    )

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Server)
        found = Adapters.of(pl_module.client)
        self.streams = not found.products  # type: ignore[misc]  # single updates are read of adapters alone
        if found.unknown:
            rank_zero_warn(f"AggregationError leaves out adapters of an unknown product: {shown(found.unknown)}")
        elif not found.products:
            name = type(pl_module.client).__name__
            rank_zero_warn(f"AggregationError logs nothing, since {name} has no adapters that peft has put in")

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        found = Adapters.of(orchestrator.client)
        if any(is_in_part_local(adapter, orchestrator) for adapters in found.products for adapter in adapters):
            return
        shares = shares_of(cohort)
        lost, whole = 0.0, 0.0
        moved = _moved(orchestrator, cohort, found.exact)
        for adapters in found.products:
            sent = [own.of_clients(orchestrator, cohort, cohort.updates.columns_at) for own in adapters]
            clients = stacked(adapters, sent)
            none = (torch.zeros_like(clients[0][0]), torch.zeros_like(clients[1][0]))
            whole += norm_of_product(*mean_less_product(shares, *clients, none)) ** 2
            left, right = mean_less_product(shares, *clients, stacked(adapters, [own.factors for own in adapters]))
            name = adapters[0].name
            if name in moved:
                lost += float((left @ right - moved[name]).norm()) ** 2
            else:
                lost += norm_of_product(left, right) ** 2
        if whole > 0:
            orchestrator.log_round("adapter/aggregation_error", math.sqrt(lost / whole))


def _moved(orchestrator: Server, cohort: Cohort, adapters: Sequence[LowRank]) -> dict[str, Tensor]:
    """Return by how much (out, in) rules have moved frozen weights in this round, by the layers' names."""
    places = {name: place for place, name in enumerate(orchestrator.buffer_names)}
    frozen = orchestrator.read_buffers()
    moved = dict[str, Tensor]()
    for adapter in adapters:
        before, now = cohort.buffers[places[adapter.weight]], frozen[places[adapter.weight]]
        if before is not now and before is not None and now is not None:
            moved[adapter.name] = adapter.as_weight((now.double() - before.double()).cpu())
    return moved
