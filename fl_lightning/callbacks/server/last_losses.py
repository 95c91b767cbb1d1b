"""LastLosses: what the sampler PowerOfChoice knows of the clients."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, PowerOfChoice, Server


class LastLosses(FederatedCallback):
    """Keeps each client's last training loss, for the sampler that draws by it (PowerOfChoice; Cho et al., 2022).

    A client's loss is the mean over its local steps, which clients send anyway. The losses are in every checkpoint, and
    the same on all devices. A loss that is nan is not taken in.

    Raises:
        ConfigurationError: ``data.sampler`` is no :class:`PowerOfChoice`, or there is ``data.availability``.
    """

    reads = frozenset({"losses"})
    streams = True

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set outside its __init__
        if not isinstance(data.sampler, PowerOfChoice) or data.availability is not None:
            got = f"{type(data.sampler).__name__}{' and availability' if data.availability else ''}"
            raise ConfigurationError(
                f"LastLosses needs data.sampler: PowerOfChoice, and no data.availability, got {got}: set the sampler, "
                "or leave LastLosses out"
            )
        self._tell(pl_module)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._tell(pl_module)

    def _tell(self, pl_module: Any) -> None:
        """Let the sampler know the losses before the round that begins."""
        data = pl_module.data
        data.sampler.losses = {pl_module.round: self._losses(data.num_clients)}

    def _losses(self, num_clients: int) -> Tensor:
        """Return the last losses (N,), infinite for clients that have none."""
        return self.state.get("losses", torch.full((num_clients,), torch.inf, dtype=torch.float64))

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        losses = self._losses(orchestrator.data.num_clients).clone()
        known = ~cohort.losses.isnan()
        losses[torch.tensor(cohort.clients)[known]] = cohort.losses[known]
        self.state["losses"] = losses
