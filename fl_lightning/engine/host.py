"""ClientHost: the part of the orchestrator that makes the client module at home in the Trainer."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from typing_extensions import override

from fl_lightning.engine.data import ClientIds
from fl_lightning.engine.local_run import LocalRun
from fl_lightning.engine.local_training import LocalTraining
from fl_lightning.engine.server import Server

EVALUATION_HOOKS = tuple(
    f"on_{stage}_{when}"
    for stage in ("validation", "test", "predict")
    for when in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
)
EVALUATION_STEPS = ("validation_step", "test_step", "predict_step")
TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
# Replaced on the client module while it is hosted: Lightning's versions would return the server's.
BORROWED = ("log", "manual_backward", "optimizers", "lr_schedulers")


class ClientHost(Server):
    """Owns the client module and passes on to it what the Trainer asks of a LightningModule outside training.

    While a fit or an evaluation lasts, the module's ``self.log`` collects per client in training and logs as usual
    otherwise, and its ``self.optimizers()`` are the local ones.

    Args:
        client: the LightningModule to own.
        seed: the seed of local randomness and of rules that draw.
    """

    _run: LocalRun | None = None  # the client that trains at the moment
    _training: LocalTraining

    def __init__(self, client: LightningModule, seed: int) -> None:
        super().__init__(client, seed)
        if is_overridden("configure_model", client):  # else Lightning's weight averaging warns of sharded layers
            self.configure_model = client.configure_model  # type: ignore[method-assign]

    @override
    def setup(self, stage: str) -> None:
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

    @override
    def teardown(self, stage: str) -> None:
        self.client.teardown(stage)
        for name in BORROWED:
            self.client.__dict__.pop(name, None)
        for hook in (*EVALUATION_HOOKS, *EVALUATION_STEPS, *TRANSFER_HOOKS):
            self.__dict__.pop(hook, None)

    @override
    def configure_callbacks(self) -> Any:
        callbacks: Callback | list[Callback] = self.client.configure_callbacks()  # type: ignore[assignment]
        return callbacks

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.client(*args, **kwargs)

    # The client module's own steps, under the global model

    @override
    def validation_step(self, *args: Any) -> Any:
        return self.client.validation_step(*args)

    @override
    def test_step(self, *args: Any) -> Any:
        return self.client.test_step(*args)

    @override
    def predict_step(self, *args: Any) -> Any:
        return self.client.predict_step(*args)

    @override
    def on_fit_start(self) -> None:
        self._takes_index = is_param_in_hook_signature(self.client.training_step, "batch_idx", min_args=2)
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        hooked = any(
            is_overridden(hook, self, DataHooks) or (data and is_overridden(hook, data, DataHooks))
            for hook in TRANSFER_HOOKS
        )
        converted = type(self.trainer.precision_plugin).convert_input is not Precision.convert_input
        # Batches that need nothing done to them are left alone, which saves a tiny client half its time.
        self._batches_ready = self.device.type == "cpu" and not hooked and not converted
        self.client.on_fit_start()

    @override
    def on_fit_end(self) -> None:
        self.client.on_fit_end()

    @override
    def is_data(self, batch: Any) -> bool:
        return not isinstance(batch, ClientIds)  # the user's transfer hooks must not see client ids

    # In place of the client module's own

    def _client_log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if self._run is not None:
            self._run.log(name, value)
        elif not self.trainer.training:  # else the server trains on its proxy set: not the clients' losses
            self.log(name, value, *args, **kwargs)

    def _client_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self._run is not None:
            self._training.backward(loss, *args, **kwargs)

    def _client_optimizers(self, use_pl_optimizer: bool = True) -> Any:
        optimizers = self._run.optimizers if self._run else []
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def _client_schedulers(self) -> Any:
        schedulers = self._run.schedulers if self._run else []
        return schedulers[0] if len(schedulers) == 1 else schedulers or None
