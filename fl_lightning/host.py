"""ClientHost: the part of the orchestrator that makes the client module at home in the Trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn

from fl_lightning.data import ClientIds
from fl_lightning.errors import ConfigurationError
from fl_lightning.metrics import Spare, in_use, kept, means, spare_metrics
from fl_lightning.params import FlatParameters, copy_buffers, set_buffers
from fl_lightning.seeding import derive, isolated, seed_globals

if TYPE_CHECKING:
    from fl_lightning.local import LocalRun

EVALUATION_HOOKS = tuple(
    f"on_{stage}_{when}"
    for stage in ("validation", "test", "predict")
    for when in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
)
EVALUATION_STEPS = ("validation_step", "test_step", "predict_step")
TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
# Of the client module, while it is hosted: its own would reach for the Trainer's, which are the server's.
BORROWED = ("log", "manual_backward", "optimizers", "lr_schedulers")


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A module in evaluation mode for a while; each part then returns to the mode that it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


class ClientHost(LightningModule):
    """Owns the client module and passes on to it what the Trainer asks of a LightningModule outside training.

    While a fit or an evaluation lasts, the module's ``self.log`` collects per client in training and logs as usual
    otherwise, and its ``self.optimizers()`` are the local ones.

    Args:
        client: the LightningModule to own.
    """

    _run: LocalRun | None = None  # the client that trains at the moment
    _flat: FlatParameters
    seed: int
    rounds_done: int
    _spares: list[Spare] | None = None

    def __init__(self, client: LightningModule) -> None:
        super().__init__()
        self.client = client
        if is_overridden("configure_model", client):  # else Lightning's weight averaging warns of sharded layers
            self.configure_model = client.configure_model  # type: ignore[method-assign]

    @property
    def params(self) -> Tensor:
        """(P,) the global model's trainable parameters, live (a client's, while it trains)."""
        return self._flat.vector

    def split(self, vector: Tensor) -> list[Tensor]:
        """A (P,) vector cut into the shapes of the trainable parameters; shares its memory."""
        return self._flat.views(vector)

    @contextlib.contextmanager
    def at(self, params: Tensor, buffers: Sequence[Tensor] | None = None) -> Iterator[None]:
        """The client module at other parameters (P,) for a while, and with other buffers where they are given."""
        before, buffers_before = self.params.clone(), copy_buffers(self.client) if buffers else []
        try:
            self.params.copy_(params)
            if buffers:
                set_buffers(self.client, buffers)
            yield
        finally:
            self.params.copy_(before)
            if buffers:
                set_buffers(self.client, buffers_before)

    def loss_and_gradient(self, params: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        """The client module's training loss at some parameters, for rules that learn on the proxy set.

        Args:
            params: (P,); the global model's own are left as they are, buffers move as in training.
            batch: of the proxy set, as its loader gives it.

        Returns:
            The loss, a scalar without graph, and its gradient (P,).

        Raises:
            ConfigurationError: the module's ``training_step`` returns no loss.
        """
        with self.at(params):
            return self.differentiate(lambda: self.training_loss(self.prepare_batch(batch)))

    def training_loss(self, batch: Any) -> Tensor:
        """The client module's own loss of a batch, with its graph, at its present parameters.

        Args:
            batch: as its ``training_step`` takes it.

        Raises:
            ConfigurationError: ``training_step`` returns no loss.
        """
        outputs: Any = self.client.training_step(batch, *((0,) if self._takes_index else ()))
        value = outputs["loss"] if isinstance(outputs, dict) else outputs
        if not isinstance(value, Tensor):
            raise ConfigurationError(
                f"a rule needs the loss that {type(self.client).__name__}.training_step returns, got "
                f"{type(value).__name__}: return it"
            )
        return value

    def differentiate(self, loss: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """A loss of the client module at its present parameters: a scalar without graph, and its gradient (P,)."""
        with self.trainer.precision_plugin.train_step_context(), torch.enable_grad():
            value = loss()
        parts = torch.autograd.grad(value, self._flat.parameters, materialize_grads=True)
        return value.detach(), torch.cat([part.reshape(-1) for part in parts])

    @contextlib.contextmanager
    def server_side(self, purpose: str) -> Iterator[None]:
        """For work with the client module on the server: seeded by the round, logs dropped, buffers restored."""
        buffers = copy_buffers(self.client)
        with isolated(self.device):
            seed_globals(derive(self.seed, purpose, self.rounds_done + 1), self.device)
            try:
                yield
            finally:
                set_buffers(self.client, buffers)

    def evaluate(self, batches: Iterable[Any]) -> dict[str, float]:
        """What the client module's ``validation_step`` logs of some batches, at its present parameters and buffers.

        The Trainer's own validation, and the torchmetrics objects that it uses, are left alone.

        Args:
            batches: as a client's are, before the transfer hooks.

        Returns:
            Each name with its mean over the examples, on this device (a torchmetrics object's own result).
        """
        logged: dict[str, list[tuple[Any, float]]] = {}
        step, size = self.client.validation_step, 1
        indexed = is_param_in_hook_signature(step, "batch_idx", min_args=2)

        def log(name: str, value: Any, *_: Any, batch_size: int | None = None, **__: Any) -> None:
            logged.setdefault(name, []).append((kept(value), batch_size or size))

        self._spares = self._spares or spare_metrics(self.client)
        usual, self.client.log = self.client.log, log  # type: ignore[method-assign]
        try:
            with in_use(self._spares), evaluating(self.client), torch.no_grad():
                for index, batch in enumerate(map(self.prepare_batch, batches)):
                    size = extract_batch_size(batch)
                    with self.trainer.precision_plugin.val_step_context():
                        step(batch, *([index] if indexed else ()))
                return means(logged)
        finally:
            self.client.log = usual  # type: ignore[method-assign]

    def setup(self, stage: str) -> None:
        """Lightning's hook."""
        self.client.log = self._client_log  # type: ignore[method-assign]
        self.client.manual_backward = self._client_backward  # type: ignore[method-assign]
        self.client.optimizers = self._client_optimizers  # type: ignore[method-assign]
        self.client.lr_schedulers = self._client_schedulers  # type: ignore[method-assign]
        for hook in (*EVALUATION_HOOKS, *TRANSFER_HOOKS):
            if is_overridden(hook, self.client) and not is_overridden(hook, self):
                setattr(self, hook, getattr(self.client, hook))
        for step in EVALUATION_STEPS:
            if is_overridden(step, self.client, LightningModule):
                setattr(self, step, getattr(self.client, step))  # with its own signature, which Lightning goes by
        self._spares = None
        self.client.setup(stage)

    def teardown(self, stage: str) -> None:
        """Lightning's hook."""
        self.client.teardown(stage)
        for name in BORROWED:
            self.client.__dict__.pop(name, None)
        for hook in (*EVALUATION_HOOKS, *EVALUATION_STEPS, *TRANSFER_HOOKS):
            self.__dict__.pop(hook, None)

    def configure_callbacks(self) -> Any:
        """Lightning's hook."""
        callbacks: Callback | list[Callback] = self.client.configure_callbacks()  # type: ignore[assignment]
        return callbacks

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The client module's output under the global model."""
        return self.client(*args, **kwargs)

    def validation_step(self, *args: Any) -> Any:
        """The client module's, under the global model."""
        return self.client.validation_step(*args)

    def test_step(self, *args: Any) -> Any:
        """The client module's, under the global model."""
        return self.client.test_step(*args)

    def predict_step(self, *args: Any) -> Any:
        """The client module's, under the global model."""
        return self.client.predict_step(*args)

    def prepare_batch(self, batch: Any) -> Any:
        """A batch as the client's ``training_step`` takes it: on the device, through the transfer hooks."""
        if self._batches_ready:
            return batch
        batch = self.trainer.precision_plugin.convert_input(batch)
        batch = super()._on_before_batch_transfer(batch)
        return super()._apply_batch_transfer_handler(batch, self.device)

    def on_fit_start(self) -> None:
        """Lightning's hook: tell whether batches need nothing done to them, which saves a tiny client half its time."""
        self._takes_index = is_param_in_hook_signature(self.client.training_step, "batch_idx", min_args=2)
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        hooked = any(
            is_overridden(hook, self, DataHooks) or (data and is_overridden(hook, data, DataHooks))
            for hook in TRANSFER_HOOKS
        )
        converted = type(self.trainer.precision_plugin).convert_input is not Precision.convert_input
        self._batches_ready = self.device.type == "cpu" and not hooked and not converted
        self.client.on_fit_start()

    def on_fit_end(self) -> None:
        """Lightning's hook."""
        self.client.on_fit_end()

    # Client ids are no data: the user's transfer hooks must not see them.

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        return batch if isinstance(batch, ClientIds) else super()._on_before_batch_transfer(batch, dataloader_idx)

    def _apply_batch_transfer_handler(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        if isinstance(batch, ClientIds):
            return batch
        return super()._apply_batch_transfer_handler(batch, device, dataloader_idx)

    def _client_log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if self._run is not None:
            self._run.log(name, value)
        elif not self.trainer.training:  # else the server trains on its proxy set: not the clients' losses
            self.log(name, value, *args, **kwargs)

    def _client_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self._run is not None:
            self._run.backward(loss, *args, **kwargs)

    def _client_optimizers(self, use_pl_optimizer: bool = True) -> Any:
        optimizers = self._run.optimizers if self._run else []
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def _client_schedulers(self) -> Any:
        schedulers = self._run.schedulers if self._run else []
        return schedulers[0] if len(schedulers) == 1 else schedulers or None
