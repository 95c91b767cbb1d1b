"""FedROD: a generic model that treats all classes alike, and on each client a head that knows its classes."""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Buffers, FederatedCallback, LocalRun, Server, check_names
from fl_lightning.callbacks.client.classes import class_counts, logits_and_targets


class FedROD(FederatedCallback):
    """Trains the global model by balanced softmax, and on each client a head beside its head (Chen & Chao, 2022).

    The global model's loss is the cross-entropy of logits + ln n_kc, with n_kc examples of class c on client k, so that
    frequent classes are not preferred. The client's head is trained by the module's own loss of both heads' summed
    logits, on features that only weight decay moves; here after the model, in as many steps, from zero. As both heads
    are linear, their sum is one head: a client's own model is the global one with its head added. Clients train one by
    one, and twice.

    Args:
        parts: names of the head's parameters or submodules: those of one linear layer.

    Raises:
        ConfigurationError: ``parts`` is empty; no trainable parameter has a name; the data module does not know its
            ``class_counts``; in a round, ``training_step`` returns no dict with "logits" and "targets".
    """

    settles = frozenset({"loss"})

    def __init__(self, parts: Sequence[str]) -> None:
        check_names(parts=parts)
        self.parts = parts

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        orchestrator = cast(Server, pl_module)
        self._head = orchestrator.mask_of(self.parts)
        self._log_counts = class_counts(self, trainer.datamodule, with_new=True).to(orchestrator.params).log()  # type: ignore[attr-defined]

    @override
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        logits, targets = logits_and_targets(self, run, outputs)
        return F.cross_entropy(logits + self._log_counts[run.client], targets)

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        def only_head(again: LocalRun) -> None:
            again.grads[~self._head] = 0

        start = self._with_head(run.client, run.params)
        self.keep(run, "head", (orchestrator.train_again(run, start, only_head) - run.params)[self._head])

    @override
    def personal(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        return self._with_head(client, params), buffers

    def _with_head(self, client: int, params: Tensor) -> Tensor:
        params = params.clone()
        params[self._head] += self.recall(f"head/{client}", torch.zeros_like(params[self._head]))
        return params
