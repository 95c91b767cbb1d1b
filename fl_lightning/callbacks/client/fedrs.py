"""FedRS: a softmax that holds back the classes that a client lacks."""

from typing import Any

import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import FederatedCallback, LocalRun, Server, check_within
from fl_lightning.callbacks.client.classes import class_counts, logits_and_targets


class FedRS(FederatedCallback):
    """Replaces each client's loss by cross-entropy with the logits of missing classes scaled (Li & Zhan, 2021).

    The released code scales every class c by α + (1 - α) n_c / max n; this is the paper's rule, for the logits as they
    are, with their bias.

    Args:
        alpha: α in [0, 1], factor on the logits of the classes that the client lacks; 1 is FedAvg.

    Raises:
        ConfigurationError: ``alpha`` is out of range; the data module does not know its ``class_counts``; in a round,
            ``training_step`` returns no dict with "logits" and "targets".
    """

    settles = frozenset({"loss"})
    stacks = True

    def __init__(self, alpha: float = 0.5) -> None:
        check_within("[0, 1]", alpha=alpha)
        self.alpha = alpha

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        counts = class_counts(self, trainer.datamodule, with_new=True).to(pl_module.device)  # type: ignore[attr-defined]
        self.factors = (counts == 0).double() * (self.alpha - 1) + 1

    @override
    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        run.kept["fedrs"] = self.factors[run.client].to(run.anchor)

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        logits, targets = logits_and_targets(self, run, outputs)
        return F.cross_entropy(logits * run.kept["fedrs"].to(logits), targets)
