"""SharedEvaluation: the processes of a run divide the forward passes of an evaluation, and all know all outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from fl_lightning.engine.devices.strategy import busy, waits
from fl_lightning.engine.rules.server import Server
from fl_lightning.lightning_private import transfer
from fl_lightning.seeding import isolated

FLAG = "shares_evaluation"  # class attribute of a client module, or of a network in it
KNOWN = ("fl_lightning", "torch", "torchmetrics", "timm")  # whose layers are functions of their input in an evaluation
BETWEEN = ("on_validation_batch_start", "on_validation_batch_end")  # hooks between two steps


class SharedEvaluation(Callback):
    """Divides the forward passes of a fit's evaluations among the processes of a CPU, which changes no bit.

    Every process takes all steps of an evaluation, with all hooks and metrics, as on one device. The client module's
    ``forward``, which takes most of the time, is computed for each batch by one process; the processes exchange its
    outputs before the first step.

    Shared is what is known to be a function of the batch: the class of the client module says so by
    ``shares_evaluation = True``, as :class:`ImageClassifier` does, and a subclass must say so itself. Then its
    ``validation_step`` calls ``self(batch[0])`` once, and what that returns depends on nothing but the tensor and the
    module's parameters and buffers. The network is one of the package's, or its class says the same; its parts are
    layers of the package, torch and timm. Batches must be parts of a TensorDataset, in order, pass through no hooks
    but those of the package's data modules, and no other code may run between two steps. In all other cases, every
    process computes everything.

    Args:
        server: the orchestrator, which holds the client module.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._outputs: list[Tensor] = []  # of these batches; empty where the evaluation is not shared
        self._input: Tensor | None = None  # of the current step
        self._input_version = 0  # of the input
        self._output: Tensor | None = None  # of the current step, until it is asked for

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if batch_idx == 0 and self._is_shared(trainer):
            self._compute = self._server.client.forward
            self._outputs = self._share(_batches_in_memory(trainer))
            self._server.client.forward = self._answer  # type: ignore[method-assign]  # until the evaluation ends
        if self._outputs:
            self._input = batch[0]
            self._input_version = batch[0]._version
            self._output = self._outputs[batch_idx]

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._outputs:
            del self._server.client.forward
        self._outputs = []
        self._input = self._output = None

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_validation_end(trainer, pl_module)

    def _is_shared(self, trainer: Trainer) -> bool:
        """Tell whether all processes may share the evaluation that begins; all of them must ask."""
        if trainer.state.fn is not TrainerFn.FITTING or trainer.sanity_checking:
            return False
        may_share = (
            self._server.hooks_by_example
            and is_function_of_batch(self._server.client)
            and not _has_code_between_steps(trainer)
            and len(_batches_in_memory(trainer)) > 1
        )
        return trainer.strategy.reduce_boolean_decision(may_share, all=True)

    def _answer(self, images: Tensor) -> Tensor:
        """Stand for the client module's ``forward``; only the current step's own input, unchanged, has an output."""
        output = self._output
        if output is None or images is not self._input or images._version != self._input_version:
            return self._compute(images)  # type: ignore[no-any-return]
        self._output = None
        return output

    def _share(self, batches: Sequence[Any]) -> list[Tensor]:
        """Compute this process's part of the batches, and exchange all outputs."""
        trainer = self._server.trainer
        own: dict[int, Tensor] = {}
        with isolated(self._server.device), trainer.precision_plugin.val_step_context():
            for number in range(trainer.global_rank, len(batches), trainer.world_size):
                batch = trainer.precision_plugin.convert_input(batches[number])
                own[number] = self._compute(transfer(self._server, batch)[0])
        parts: list[dict[int, Tensor]] = [{}] * trainer.world_size
        waits(trainer)
        torch.distributed.all_gather_object(parts, own)
        busy(trainer, f"the evaluation after round {self._server.rounds_done}")
        outputs: dict[int, Tensor] = {}
        for part in parts:
            outputs |= part
        return [outputs[number] for number in range(len(batches))]


def is_function_of_batch(client: LightningModule) -> bool:
    """Tell whether a module's output in an evaluation is known to depend on its input, parameters and buffers alone.

    Known are classes, exactly these: a subclass, a forward pass that an instance has in place of its class's, hooks of
    layers, and layers that are left in training mode may do anything.
    """
    if not _says(client) or "validation_step" in vars(client):
        return False
    networks = [child for child in client.children() if next(child.parameters(), None) is not None]
    if not all(_package(network) == "fl_lightning" or _says(network) for network in networks):
        return False
    for part in client.modules():
        is_known = _package(part) in KNOWN or _says(part)
        is_changed = "forward" in vars(part) or part._forward_hooks or part._forward_pre_hooks or part.training
        if is_changed or not is_known:
            return False
    return True


def _package(part: nn.Module) -> str:
    """Return the name of the package that defines the class of a module."""
    return type(part).__module__.partition(".")[0]


def _says(part: nn.Module) -> bool:
    """Tell whether the class of a module, not one that it inherits from, sets the flag."""
    return bool(vars(type(part)).get(FLAG))


def _has_code_between_steps(trainer: Trainer) -> bool:
    """Tell whether a callback that is not the package's, nor Lightning's, is called between two steps."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set outside Trainer.__init__
        is_known = type(callback).__module__.startswith(("fl_lightning.", "lightning."))
        if not is_known and any(is_overridden(hook, callback, Callback) for hook in BETWEEN):
            return True
    return False


def _batches_in_memory(trainer: Trainer) -> Sequence[Any]:
    """Return the batches of a validation, if they are parts of tensors in memory, in order; else none."""
    loader: Any = trainer.val_dataloaders
    is_plain = isinstance(loader, DataLoader) and loader.batch_size is None and not loader.num_workers
    if not is_plain or type(loader.dataset) is not TensorDataset or not isinstance(loader.sampler, Sequence):
        return []
    most = int(min(trainer.num_val_batches[0], len(loader.sampler)))
    return [loader.collate_fn(loader.dataset[rows]) for rows in loader.sampler[:most]]  # views
