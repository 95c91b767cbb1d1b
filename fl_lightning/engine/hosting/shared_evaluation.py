"""SharedEvaluation: the processes of a run divide the forward passes of an evaluation, and all know all outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from fl_lightning.engine.devices.strategy import busy, waits
from fl_lightning.engine.module.state import ModuleState
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.states.large import checksums, is_large
from fl_lightning.lightning_private import transfer
from fl_lightning.seeding import all_states, isolated

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
Key = tuple[torch.dtype, torch.Size, tuple[int, ...], bytes]


class SharedEvaluation(Callback):
    """Divides the forward passes of a fit's evaluations among the processes of a CPU, which changes no bit.

    Every process takes all steps of an evaluation, with all hooks and metrics, as on one device. The network alone,
    which takes most of the time, is computed for each batch by one process; the processes exchange its outputs before
    the first step. An output stands in for a call with the same bits: type, shape, strides and content of the input,
    and unchanged parameters.

    The network is the largest child of the client module. Its call in the first step of a fit shows whether it may be
    shared, from the second step on: one tensor goes in, which is the first of the batch; one tensor comes out, not
    larger; no random number is drawn, and nothing in the network changes. Batches must be parts of a TensorDataset, in
    order, and pass through no hooks but those of the package's data modules. In all other cases, every process computes
    everything.

    Args:
        server: the orchestrator, which holds the client module.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._network: nn.Module | None = None  # during an evaluation
        self._batches: Sequence[Any] = ()  # of the evaluation, before the transfer hooks
        self._is_pure: bool | None = None  # whether the network may be shared; None before all processes know
        self._observed: bool | None = None  # whether this process has found it so; None if it looks at the next call
        self._outputs: dict[Key | None, Any] = {}
        # Of the network whose outputs these are: its tensors, and the checksums of its large frozen parameters
        self._remembered: tuple[list[Tensor], list[int]] = ([], [])

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_pure = None

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._is_pure is False or trainer.state.fn is not TrainerFn.FITTING or trainer.sanity_checking:
            return
        network = _largest_child(self._server.client)
        self._batches = _batches_in_memory(trainer) if self._server.hooks_by_example else ()
        if network is None or "forward" in vars(network) or isinstance(network, torch.jit.ScriptModule):
            return
        if len(self._batches) < 2:
            return
        self._network = network
        self._outputs = {}
        self._observed = False
        self._compute = network.forward
        network.forward = self._answer

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        # Here all processes meet; in a call of the network they need not, since one alone may make it.
        if self._network is None or batch_idx > 1:
            return
        if batch_idx == 0 and self._is_pure is None:
            self._observed = None
        elif batch_idx == 0:
            self._share(first=0)
        elif self._is_pure is None:
            self._is_pure = trainer.strategy.reduce_boolean_decision(bool(self._observed), all=True)
            self._observed = False
            if self._is_pure:
                self._share(first=1)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._network is not None:
            vars(self._network).pop("forward", None)
            self._network = None
            self._remembered = ([], [])

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_validation_end(trainer, pl_module)

    def _answer(self, *inputs: Any, **options: Any) -> Any:
        """Stand for the network's ``forward``."""
        key = self._key(inputs, options)
        if self._observed is None:
            return self._observe(key, inputs, options)
        is_known = key in self._outputs and self._is_as_remembered()
        return self._outputs.pop(key) if is_known else self._compute(*inputs, **options)

    def _observe(self, key: Key | None, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Compute the first batch of a fit, and find out whether the network may be shared."""
        assert self._network is not None
        before = ModuleState(self._network)
        self._remember()
        drawn = all_states(self._server.device)
        output = self._compute(*inputs, **options)
        is_pure = key is not None and isinstance(output, Tensor) and output.numel() <= inputs[0].numel()
        is_pure = is_pure and key == self._key(inputs, options) == self._key([self._input_of(0)], {})
        is_pure = is_pure and self._is_as_remembered() and not before.is_changed()
        self._observed = is_pure and drawn == all_states(self._server.device)
        return output

    def _share(self, first: int) -> None:
        """Compute this process's part of the batches from number ``first`` on, and exchange all outputs."""
        trainer = self._server.trainer
        own: dict[Key | None, Any] = {}
        with isolated(self._server.device), trainer.precision_plugin.val_step_context():
            for number in range(first + trainer.global_rank, len(self._batches), trainer.world_size):
                inputs = [self._input_of(number)]
                own[self._key(inputs, {})] = self._compute(*inputs)
        parts: list[dict[Key | None, Any]] = [{}] * trainer.world_size
        waits(trainer)
        torch.distributed.all_gather_object(parts, own)
        busy(trainer, f"the evaluation after round {self._server.rounds_done}")
        self._outputs = {key: output for part in parts for key, output in part.items() if key is not None}
        self._remember()

    def _input_of(self, number: int) -> Any:
        """Return the first tensor of a batch, as the Trainer passes it on."""
        batch = self._server.trainer.precision_plugin.convert_input(self._batches[number])
        return transfer(self._server, batch)[0]

    def _remember(self) -> None:
        tensors, large = self._tensors()
        self._remembered = ([tensor.clone() for tensor in tensors], checksums(large))

    def _is_as_remembered(self) -> bool:
        """Tell whether the network has the parameters and buffers that were remembered last, a nan being none."""
        tensors, large = self._tensors()
        remembered, sums = self._remembered
        return all(map(torch.equal, tensors, remembered)) and checksums(large) == sums

    def _tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the network's parameters and buffers, the large frozen parameters apart."""
        assert self._network is not None
        tensors = list[Tensor]()
        large = list[Tensor]()
        for tensor in (*self._network.parameters(), *self._network.buffers()):
            is_apart = not tensor.requires_grad and is_large(tensor)
            (large if is_apart else tensors).append(tensor)
        return tensors, large

    def _key(self, inputs: Sequence[Any], options: Mapping[str, Any]) -> Key | None:
        """Return what tells a call of the network from all others; None for a call that cannot be shared."""
        assert self._network is not None
        if options or len(inputs) != 1 or type(inputs[0]) is not Tensor or torch.is_grad_enabled():
            return None
        for part in self._network.modules():
            if part.training or any(vars(part)[hooks] for hooks in HOOKS):
                return None
        (tensor,) = inputs
        content = sha256(tensor.contiguous().view(torch.uint8).numpy()).digest()
        return tensor.dtype, tensor.shape, tensor.stride(), content


def _largest_child(client: LightningModule) -> nn.Module | None:
    """Return the child of a module with the most parameters; None if no child has any."""
    largest = max(client.children(), key=_num_parameters, default=None)
    return largest if largest is not None and _num_parameters(largest) else None


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _batches_in_memory(trainer: Trainer) -> Sequence[Any]:
    """Return the batches of a validation, if they are parts of tensors in memory, in order; else none."""
    loader: Any = trainer.val_dataloaders
    is_plain = isinstance(loader, DataLoader) and loader.batch_size is None and not loader.num_workers
    if not is_plain or type(loader.dataset) is not TensorDataset or not isinstance(loader.sampler, Sequence):
        return []
    most = int(min(trainer.num_val_batches[0], len(loader.sampler)))
    return [loader.collate_fn(loader.dataset[rows]) for rows in loader.sampler[:most]]  # views
