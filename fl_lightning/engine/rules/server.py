"""Server: the part of the orchestrator that rules may use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from typing_extensions import override

from fl_lightning.better import Better, better_of
from fl_lightning.engine.federation.clients import TRANSFER_HOOKS
from fl_lightning.engine.federation.data import ClientIds, FederatedData
from fl_lightning.engine.module.logged import MetricLog, examples_in
from fl_lightning.engine.module.params import FlatParameters
from fl_lightning.engine.module.state import Buffers, ModuleState
from fl_lightning.engine.rules.declared import declares
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.validation import Validation
from fl_lightning.errors import ConfigurationError
from fl_lightning.lightning_private import log_again, transfer
from fl_lightning.seeding import derive, generator, isolated, seed_globals

NAMED = 10  # clients in a line
NO_FIT = "no fit is going on: clients train, and have optimizers, from a fit's on_train_start to its on_fit_end"


class Server(LightningModule):
    """Holds the global model and the operations that rules may use: the type of ``orchestrator`` in a rule's hooks.

    Rules may also read ``trainer`` and ``device``, as on any LightningModule.

    Args:
        client: the LightningModule that every client trains; between clients, the module holds the global model.
        seed: the seed of local randomness and of rules that draw random numbers.

    Attributes:
        client: the LightningModule that every client trains.
        seed: the seed of local randomness and of rules that draw random numbers.
        rounds_done: rounds completed since the run began, resumed ones included.
        rounds_before: rounds of earlier fits, from whose model a second fit goes on.
        seconds_looking: wall time in seconds that the monitors' hooks of FederatedCallback took, except ``loss``.
    """

    flat: FlatParameters  # made when a fit begins, since the module must lie on its device
    channels_last: bool = False  # whether images lie in memory with the channels last

    def __init__(self, client: LightningModule, seed: int) -> None:
        super().__init__()
        self.client = _check_module(client)
        self.seed = seed
        self.rounds_done = 0
        self.rounds_before = 0
        self.seconds_looking = 0.0
        self._state: ModuleState | None = None  # the rest of the global module, while a fit lasts
        self._train_again: Callable[..., Tensor] | None = None  # trains a second model of a client, while a fit lasts

    @property
    def round(self) -> int:
        """Number of the current round, 1, 2, …; between two rounds, the number of the next round."""
        return self.rounds_done + 1

    @property
    def data(self) -> FederatedData:
        """The run's data module.

        Raises:
            ConfigurationError: the Trainer has no data module, or not a FederatedDataModule.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]  # set by the Trainer outside its __init__
        if not isinstance(data, FederatedData):
            raise ConfigurationError(
                f"expected trainer.fit(orchestrator, datamodule=a FederatedDataModule), got {type(data).__name__}: an "
                "ordinary one becomes federated by FederatedDataModule.from_datamodule(…, num_clients=…)"
            )
        return data

    @property
    def personal_model(self) -> Callable[[int], tuple[Tensor, Buffers]] | None:
        """The model that serves a client, parameters (P,) and buffers, by the client's id, while a fit lasts.

        None where the global model serves all clients; see :meth:`FederatedCallback.personal`.
        """
        return None

    def train_again(
        self,
        run: LocalRun,
        start: Tensor,
        before_step: Callable[[LocalRun], None] | None = None,
        epochs: int | None = None,
    ) -> Tensor:
        """Train a second model of a client, for rules in ``on_client_end``; the client's run stays as it was.

        The second training has new optimizers, other draws of batches and no rule's hooks but ``before_step``.

        Args:
            run: the client's run.
            start: (P,) the parameters that the second model starts from.
            before_step: called with the second training's run before each optimizer step; may correct its ``grads``.
            epochs: number of local epochs; by default the client's local work of this round.

        Returns:
            (P,) the parameters of the second model at the end.

        Raises:
            ConfigurationError: no fit is going on.
        """
        if self._train_again is None:
            raise ConfigurationError(NO_FIT)
        return self._train_again(run, start, before_step, epochs)

    def train_new(self, client: int, epochs: int) -> tuple[tuple[Tensor, Buffers], tuple[Tensor, Buffers]] | None:
        """Train a client that never takes part from the global model, for monitors in ``on_round_end``.

        The client trains as in its first round, with the rules' hooks and this round's rates, for other epochs;
        neither rules nor monitors keep anything of it.

        Args:
            client: the client's number, from ``data.num_clients`` on.
            epochs: number of local epochs.

        Returns:
            Parameters (P,) and buffers that the client starts from; and those that serve it then, what a rule's
            ``personal`` makes, else the model with which its training ended. None if the training fails, as a line
            says.

        Raises:
            ConfigurationError: no fit is going on.
        """
        raise ConfigurationError(NO_FIT)

    @property
    def params(self) -> Tensor:
        """(P,) the live trainable parameters of the global model; while a client trains, the client's parameters."""
        return self.flat.vector

    def split(self, vector: Tensor) -> list[Tensor]:
        """Cut a (P,) vector into the shapes of the trainable parameters; the parts share its memory."""
        return self.flat.views(vector)

    def columns_of(self, name: str) -> slice:
        """Return the columns that a part of the client module has in (P,) vectors, of parameters, gradients or updates.

        Args:
            name: the name of a parameter, as in ``client.named_parameters()``, or of a submodule that holds some. A
                parameter that several submodules share has the first of its names alone.

        Raises:
            ConfigurationError: no trainable parameter has the name, or lies in a submodule of this name.
        """
        return self.flat.columns_of(name)

    def mask_of(self, names: Iterable[str]) -> Tensor:
        """Return the (P,) mask of the columns that some parts of the client module have; see :meth:`columns_of`."""
        mask = torch.zeros_like(self.params, dtype=torch.bool)
        for name in names:
            mask[self.columns_of(name)] = True
        return mask

    def generator(self, purpose: str, *indices: int) -> torch.Generator:
        """Make a CPU generator keyed by the seed, the purpose and the indices, for a rule that draws random numbers."""
        return generator(self.seed, purpose, *indices)

    def log_round(self, name: str, value: float, prog_bar: bool = False, logger: bool | None = None) -> None:
        """Log a metric of this round, from ``aggregate`` to ``on_round_end``; loggers get the round as their step."""
        # A tensor on the CPU, since Lightning would put a number on the device, and wait for it there.
        scalar = torch.tensor(value, dtype=torch.get_default_dtype())
        with self.validation.interrupted():
            if not log_again(self, name, scalar):
                self.log(name, scalar, prog_bar, logger, on_step=False, on_epoch=True, batch_size=1)

    @cached_property
    def better(self) -> dict[str, Better | None]:
        """Which values of each metric logged so far are better, by name; None where the client module does not say."""
        return {}

    def note_better(self, name: str, value: Any = None, **how: Any) -> Better | None:
        """Note which values of a metric that the client module logs are better, and return that.

        Args:
            name: the metric's name.
            value: the logged value; None to ask the module alone.
            how: the arguments of ``LightningModule.log``.
        """
        if self.better.get(name) is None:
            names = [name]
            if how.get("on_step") or how.get("on_epoch"):
                names += [f"{name}_step", f"{name}_epoch"]  # Lightning's names for two metrics of one call
            self.better.update(dict.fromkeys(names, better_of(self.client, name, value)))
        return self.better[name]

    def log_left_out(self, name: str, clients: Sequence[int]) -> None:
        """Log how many clients a metric leaves out, since it is nan on them; a line names those of the first time."""
        count = f"left_out/{name}"
        if clients and count not in self.trainer.callback_metrics:
            labels = [self.data.client_label(client) for client in clients[:NAMED]]
            if len(clients) > NAMED:
                labels.append("…")
            word = "clients" if len(labels) > 1 else "client"
            rank_zero_warn(
                f"round {self.round}: {name} leaves out {word} {', '.join(labels)}, where it is not defined "
                f"(nan), as AUROC is not on examples of one class, or where training has diverged; {count} counts such "
                "clients"
            )
        if clients or count in self.trainer.callback_metrics:
            self.log_round(count, float(len(clients)))

    @property
    def _module_state(self) -> ModuleState:
        return ModuleState(self.client) if self._state is None else self._state

    def read_buffers(self) -> Buffers:
        """Return the client module's buffers and frozen parameters; do not write to these tensors."""
        return self._module_state.read()

    @property
    def buffer_names(self) -> list[str]:
        """The names of what :meth:`read_buffers` returns."""
        return self._module_state.names

    def write_buffers(self, buffers: Buffers) -> None:
        """Copy buffers and frozen parameters, such as those of a client's result, into the client module."""
        self._module_state.write(buffers)

    @contextlib.contextmanager
    def at(self, params: Tensor, buffers: Buffers = ()) -> Iterator[None]:
        """Give the client module other parameters (P,) and, if given, other buffers inside a ``with`` block."""
        before = self.params.clone()
        buffers_before = self.read_buffers() if buffers else ()
        try:
            self.params.copy_(params)
            if buffers:
                self.write_buffers(buffers)
            yield
        finally:
            self.params.copy_(before)
            if buffers:
                self.write_buffers(buffers_before)

    @contextlib.contextmanager
    def server_side(self, purpose: str) -> Iterator[None]:
        """Use the client module on the server inside a ``with`` block.

        Random numbers are seeded by the round and the purpose, logged metrics are dropped, ``self.trainer`` shows the
        run, also while a client trains, and all of the module but its trainable parameters is restored.
        """
        state = ModuleState(self.client, self._state)
        with isolated(self.device), self._showing_run():
            seed_globals(derive(self.seed, purpose, self.round), self.device)
            try:
                yield
            finally:
                state.restore()

    def _showing_run(self) -> contextlib.AbstractContextManager[None]:
        """Let ``self.trainer`` of the client module show the run inside a ``with`` block; done by an orchestrator."""
        return contextlib.nullcontext()

    def validating(self) -> contextlib.AbstractContextManager[None]:
        """Treat the client module inside a ``with`` block as the Trainer's validation does.

        The module is in evaluation mode, ``self.trainer.validating`` is true, and ``training`` is not, in the transfer
        hooks, too. What the module logs is dropped, and its torchmetrics objects are empty copies.
        """
        return self.validation.going_on()

    def loss_and_gradient(self, params: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the client module's training loss and its gradient at given parameters.

        Args:
            params: (P,) parameters; the module's own parameters are restored, its buffers change as in training.
            batch: a batch of the proxy set or of a client, as the data module returns it.

        Returns:
            The loss, a scalar without graph, and its gradient (P,).

        Raises:
            ConfigurationError: the module's ``training_step`` returns no loss.
        """
        with self.at(params):
            return self.differentiate(lambda: self.training_loss(self.prepare_batch(batch)))

    def client_loss(self, client: int, params: Tensor) -> Tensor:
        """Compute the mean training loss of a client's examples at given parameters (P,), a scalar without graph.

        The module is in evaluation mode, and afterwards as before; the client's own draws stay the same. The examples
        are those of one local epoch, without the data module's transfer hooks' augmentations.
        """
        total = params.new_zeros((), dtype=torch.float64)
        count = 0
        with self.server_side("client loss"), self.validating(), self.at(params), torch.no_grad():
            for batch in self.data.client_batches(client, self.generator("client loss", client)):
                size = examples_in(batch)
                count += size
                with self.trainer.precision_plugin.train_step_context():
                    total += size * self.training_loss(self.prepare_batch(batch)).double()
        return total / count

    def training_loss(self, batch: Any) -> Tensor:
        """Compute the client module's training loss on a batch, with its graph, at the module's current parameters.

        Args:
            batch: a batch in the form that ``training_step`` takes.

        Raises:
            ConfigurationError: ``training_step`` returns no loss.
        """
        step = self.client.training_step
        outputs: Any = step(batch, 0) if takes_index(step) else step(batch)
        value = outputs["loss"] if isinstance(outputs, dict) else outputs
        if not isinstance(value, Tensor):
            raise ConfigurationError(
                f"a rule needs the loss that {type(self.client).__name__}.training_step returns, got "
                f"{type(value).__name__}: return the loss"
            )
        return value

    def differentiate(self, loss: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """Compute a loss of the client module and its gradient at the module's current parameters.

        Args:
            loss: a function that computes the loss, a scalar with its graph.

        Returns:
            The loss, a scalar without graph, and its gradient (P,).
        """
        with self.trainer.precision_plugin.train_step_context(), torch.enable_grad():
            value = loss()
        parts = torch.autograd.grad(value, self.flat.parameters, materialize_grads=True)
        return value.detach(), self.flat.join(parts)

    def evaluate(self, batches: Iterable[Any]) -> dict[str, float]:
        """Collect the metrics that the client module's ``validation_step`` logs on batches, at its current parameters.

        The Trainer's own validation, and the torchmetrics objects that it uses, are not affected. Other hooks, such as
        ``on_validation_epoch_end``, are not called; a line says once which metrics the module logs there.

        Args:
            batches: batches as the data module returns them, before the transfer hooks.

        Returns:
            The metrics by name, each reduced as ``self.log`` was told, by default to the mean over the examples; for a
            torchmetrics object, its result on this device.
        """
        logged = MetricLog(training=False)
        step = self.client.validation_step
        indexed = takes_index(step)
        size = 1  # number of examples in the present batch

        def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            self.note_better(name, value, **kwargs)
            logged.add(name, value, *args, in_batch=size, **kwargs)

        self.validation.tell_elsewhere()
        with self.validation.going_on(log), torch.no_grad():
            for index, batch in enumerate(map(self.prepare_batch, batches)):
                size = examples_in(batch)
                with self.trainer.precision_plugin.val_step_context():
                    if indexed:
                        step(batch, index)
                    else:
                        step(batch)
            return logged.collect()

    def forget_fit(self) -> None:
        """Forget what holds for one fit alone."""
        self._state = None
        self._train_again = None
        vars(self).pop("validation", None)
        vars(self).pop("batches_ready", None)
        vars(self).pop("hooks_by_example", None)

    @cached_property
    def validation(self) -> Validation:
        """Lets the client module be validated within a round, while a fit lasts."""
        return Validation(self.client, self.trainer)

    @cached_property
    def batches_ready(self) -> bool:
        """Whether batches need no transfer, hooks or conversion in this fit, which halves a tiny client's time."""
        parts = [self, self.data]
        hooked = any(is_overridden(hook, part, DataHooks) for hook in TRANSFER_HOOKS for part in parts)
        converted = type(self.trainer.precision_plugin).convert_input is not Precision.convert_input
        return self.device.type == "cpu" and not hooked and not converted

    @cached_property
    def hooks_by_example(self) -> bool:
        """Whether the transfer hooks, if there are any, make of each example what depends on that example alone."""
        has_own_hooks = any(is_overridden(hook, self.client) for hook in TRANSFER_HOOKS)
        by_example = not has_own_hooks and declares(self.data, "by_example", TRANSFER_HOOKS)
        return self.batches_ready or by_example

    def prepare_batch(self, batch: Any) -> Any:
        """Bring a batch through the transfer hooks and to the device, in the form that ``training_step`` takes."""
        if not self.batches_ready:
            batch = transfer(self, self.trainer.precision_plugin.convert_input(batch))
        return apply_to_collection(batch, Tensor, _with_channels_last) if self.channels_last else batch

    @override
    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        if isinstance(batch, ClientIds):  # the user's transfer hooks must not see client ids
            self.on_batch_passed_on()
            return batch
        return super()._on_before_batch_transfer(batch, dataloader_idx)

    @override
    def _apply_batch_transfer_handler(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        if isinstance(batch, ClientIds):
            return batch
        return super()._apply_batch_transfer_handler(batch, device, dataloader_idx)

    def tell_trained(self, clients: Sequence[int]) -> None:
        """Tell the callbacks that define ``on_clients_trained`` that clients of this device have trained."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]  # set outside Trainer.__init__
            listen = getattr(callback, "on_clients_trained", None)
            if listen is not None:
                listen(self.trainer, self, clients)

    def on_batch_passed_on(self) -> None:
        """Do nothing until overridden; called when the Trainer has passed on client ids, before callbacks get them."""


def takes_index(step: Callable[..., Any]) -> bool:
    """Tell whether a step of a LightningModule takes the batch's number beside the batch."""
    return is_param_in_hook_signature(step, "batch_idx", min_args=2)


def _with_channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _check_module(module: Any) -> LightningModule:
    """Refuse a module that is no LightningModule of the package ``lightning``; return the module."""
    if isinstance(module, LightningModule):
        return module
    advice = "put the network in one"
    if any(parent.__module__.startswith("pytorch_lightning.") for parent in type(module).__mro__):
        advice = (
            "pytorch_lightning is another package with the same classes; import lightning.pytorch in its place, or set "
            'sys.modules["pytorch_lightning"] = lightning.pytorch before the import'
        )
    raise ConfigurationError(f"expected a LightningModule of lightning.pytorch, got {type(module).__name__}: {advice}")
