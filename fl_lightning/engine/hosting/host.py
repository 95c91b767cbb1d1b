"""ClientHost: the part of the orchestrator that connects the client module with the Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from fl_lightning.engine.federation.data import LOADERS, TRANSFER_HOOKS, ClientIds, FederatedDataModule
from fl_lightning.engine.hosting.saving import ClientSaver
from fl_lightning.engine.hosting.shown_trainer import ClientTrainer
from fl_lightning.engine.module.inference import leave_inference_mode
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.work import LocalSettings
from fl_lightning.engine.training.local_training import LocalTraining
from fl_lightning.engine.training.optimizers import RoundRates

EVALUATION_HOOKS = tuple(
    f"on_{stage}_{when}"
    for stage in ("validation", "test", "predict")
    for when in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end", "model_eval", "model_train")
)
EVALUATION_STEPS = ("validation_step", "test_step", "predict_step")
# Methods of the client module that are replaced while hosted: Lightning's versions would act on the server's loop.
BORROWED = ("log", "manual_backward", "optimizers", "lr_schedulers")


class ClientHost(ClientSaver):
    """Owns the client module and forwards to it the hooks and steps that the Trainer calls outside of training.

    While a client trains, the module's ``self.log`` collects the client's metrics, and ``self.optimizers()`` returns
    the client's optimizers. In an evaluation, ``self.log`` logs as usual.

    Args:
        client: the LightningModule to own.
        seed: the seed of local randomness and of rules that draw random numbers.
    """

    settings: LocalSettings  # the local work of every client
    _run: LocalRun | None = None  # the client that trains at the moment, if any
    _training: LocalTraining
    _rates: RoundRates | None = None  # the clients' learning rates; made when a fit starts
    _shown: ClientTrainer  # the Trainer as the client module sees it
    _lone_metrics: Sequence[tuple[Metric, Any]] = ()  # those that do not look at other devices, and what they asked

    def __init__(self, client: LightningModule, seed: int) -> None:
        super().__init__(client, seed)
        if is_overridden("configure_model", client):  # else Lightning's weight averaging warns about sharded layers
            self.configure_model = client.configure_model  # type: ignore[method-assign]
        if is_overridden("prepare_data", client):
            self.prepare_data = client.prepare_data  # type: ignore[method-assign]
        self.prepare_data_per_node = client.prepare_data_per_node

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
                setattr(self, step, getattr(self.client, step))  # Lightning reads the signature of the module's step
        if not is_overridden("validation_step", self.client, LightningModule):
            self.validation_step = None  # type: ignore[method-assign, assignment]  # a fit then skips validation
        self._spares, self._rates = None, None
        metrics = [part for part in self.client.modules() if isinstance(part, Metric)]
        self._lone_metrics = [(metric, metric.distributed_available_fn) for metric in metrics]
        for metric in metrics:  # each device evaluates everything, and trains other clients
            metric.distributed_available_fn = _alone
        self._shown = ClientTrainer(self.trainer, self.settings)
        self.client.trainer = self._shown  # type: ignore[assignment]  # stands for a Trainer
        if stage == "fit":
            leave_inference_mode(self.client)
            self._shown.begin()
        self.client.setup(stage)

    @override
    def teardown(self, stage: str) -> None:
        self.client.teardown(stage)
        self.release_client()

    def release_client(self) -> None:
        """Give the client module back its own methods, and forget the module's evaluation hooks."""
        for name in BORROWED:
            self.client.__dict__.pop(name, None)
        for metric, available in self._lone_metrics:
            metric.distributed_available_fn = available
        self._lone_metrics, self._rates = [], None
        self.client.trainer = self.trainer
        for name in ("_state", "_shown", "_training"):  # these refer to the Trainer
            self.__dict__.pop(name, None)
        for hook in (*EVALUATION_HOOKS, *EVALUATION_STEPS, *TRANSFER_HOOKS, *LOADERS):
            self.__dict__.pop(hook, None)
        self._lend_loaders(None)

    def drop_round(self) -> int | None:
        """Drop the current round; return how many of its clients were done, or None if there is no current round."""
        raise NotImplementedError

    @override
    def configure_callbacks(self) -> Any:
        # This is the first hook with a Trainer; afterwards Lightning asks who defines loaders.
        for name in LOADERS:
            if is_overridden(name, self.client):
                setattr(self, name, getattr(self.client, name))
        self._lend_loaders(self.client)
        callbacks: Callback | list[Callback] = self.client.configure_callbacks()  # type: ignore[assignment]
        return callbacks

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.client(*args, **kwargs)

    # Evaluation steps of the client module, which then holds the global model

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
        # Batches that need no transfer, hooks or conversion skip all three, which saves a tiny client half its time.
        self._batches_ready = self.device.type == "cpu" and not hooked and not converted
        self.client.on_fit_start()
        self._shown.end()

    @override
    def on_fit_end(self) -> None:
        self.client.on_fit_end()

    @override
    def is_data(self, batch: Any) -> bool:
        return not isinstance(batch, ClientIds)  # the user's transfer hooks must not see client ids

    def _lend_loaders(self, module: LightningModule | None) -> None:
        if isinstance(data := self.trainer.datamodule, FederatedDataModule):  # type: ignore[attr-defined]  # as above
            data.borrow_loaders(module)

    # Replacements for the client module's own methods

    def _client_log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if self._run is not None:
            self._run.log(name, value, *args, **kwargs)
        elif not self.trainer.training:  # else the server trains on its proxy set; such losses are dropped
            self.log(name, value, *args, **kwargs)
            if kwargs.get("on_step"):  # the step that Lightning gives to such a value is the batch's number
                self.log("round", float(self.rounds_done), on_step=True, on_epoch=False, batch_size=1)

    def _client_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self._run is not None:
            self._training.backward(loss, *args, **kwargs)

    def _client_optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the client's optimizers; while no client trains, optimizers that show the round's learning rates."""
        if self._run is None:
            optimizers: list[Any] = self._rates.optimizers if self._rates else []
        elif use_pl_optimizer and not self.client.automatic_optimization:
            optimizers = self._training.hooked_optimizers(self._run)
        else:
            optimizers = self._run.optimizers
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def _client_schedulers(self) -> Any:
        schedulers = self._run.schedulers if self._run else []
        return schedulers[0] if len(schedulers) == 1 else schedulers or None


def _alone() -> bool:
    """Tell a torchmetrics object that there are no other devices."""
    return False
