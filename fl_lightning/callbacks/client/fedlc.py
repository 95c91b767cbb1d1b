"""FedLC: logits calibrated by how many examples of each class a client has."""

from typing import Any

import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_not_negative
from fl_lightning.callbacks.client.classes import class_counts, logits_and_targets


class FedLC(FederatedCallback):
    """Replaces each client's loss by cross-entropy with larger margins for rarer classes (Zhang et al., 2022).

    The logit of class c loses τ n_kc^(-1/4), with n_kc examples of class c on client k; classes that client k lacks do
    not count. The paper's sum leaves out an example's own class; here, as in all public code, it counts.

    Args:
        tau: τ >= 0; 0 leaves the classes that a client has as they are.

    Raises:
        ConfigurationError: ``tau`` is negative; the data module does not know its ``class_counts``; in a round,
            ``training_step`` returns no dict with "logits" and "targets".
    """

    settles = frozenset({"loss"})
    stacks = True

    def __init__(self, tau: float = 1.0) -> None:
        check_not_negative(tau=tau)
        self.tau = tau

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        counts = class_counts(self, trainer.datamodule, with_new=True).to(pl_module.device)  # type: ignore[attr-defined]
        self.margins = (self.tau * counts.double() ** -0.25).masked_fill(counts == 0, float("inf"))

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.kept["fedlc"] = self.margins[run.client].to(run.anchor)

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        logits, targets = logits_and_targets(self, run, outputs)
        return F.cross_entropy(logits - run.kept["fedlc"].to(logits), targets)
