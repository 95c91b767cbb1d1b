"""AggregationError: what is lost where the server averages the matrices of adapters in place of their products."""

import math

import torch
from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from fl_lightning import Cohort, Metric, Monitor, Server
from fl_lightning.callbacks.adapters.low_rank import (
    adapters_of,
    is_in_part_local,
    mean_less_product,
    norm_of_product,
    shares_of,
)


class AggregationError(Monitor):
    """Logs how far the new adapters are from the mean of what the clients' adapters add to the frozen weights.

    - ``adapter/aggregation_error``: ‖Σ s_k B_k A_k - B A‖ ÷ ‖Σ s_k B_k A_k‖, in [0, ∞), over all adapters together,
      with the clients' weights s_k, the new global A and B, and Frobenius norms; 0 if the server loses nothing. Not
      logged while all products are zero, nor for modules of which a part of an adapter stays with the clients.

    The clients' matrices are those before any rule's correction; what rules such as :class:`FedExLoRA` put into the
    frozen weights counts as not lost. The monitor changes nothing. ``fl-lightning fit`` adds it to every run of a
    module that has adapters, or may get some in ``configure_model``.
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
        self.streams = not adapters_of(pl_module)  # type: ignore[misc]  # single updates are read of adapters alone

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        adapters = adapters_of(orchestrator)
        if any(is_in_part_local(adapter, orchestrator) for adapter in adapters):
            return
        shares = shares_of(cohort)
        places = {name: place for place, name in enumerate(orchestrator.buffer_names)}
        frozen = orchestrator.read_buffers()
        lost, whole = 0.0, 0.0
        for adapter in adapters:
            clients = adapter.of_clients(orchestrator, cohort)
            none = (torch.zeros_like(clients[0][0]), torch.zeros_like(clients[1][0]))
            whole += (adapter.scaling * norm_of_product(*mean_less_product(shares, *clients, none))) ** 2
            left, right = mean_less_product(shares, *clients, adapter.factors)
            before, now = cohort.buffers[places[adapter.weight]], frozen[places[adapter.weight]]
            if before is now or before is None or now is None:
                lost += (adapter.scaling * norm_of_product(left, right)) ** 2
            else:  # a rule has moved the frozen weight
                moved = adapter.as_weight((now.double() - before.double()).cpu())
                lost += float((adapter.scaling * left @ right - moved).norm()) ** 2
        if whole > 0:
            orchestrator.log_round("adapter/aggregation_error", math.sqrt(lost / whole))
