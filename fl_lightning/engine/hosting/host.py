"""ClientHost: the part of the orchestrator that connects the client module with the Trainer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric
from typing_extensions import override

from fl_lightning.engine.federation.data import LOADERS, TRANSFER_HOOKS, ClientIds, FederatedDataModule
from fl_lightning.engine.hosting.saving import PREFIX, check_state, own_names, own_view, plain_in, renamed
from fl_lightning.engine.hosting.shown_trainer import ClientTrainer
from fl_lightning.engine.module.inference import leave_inference_mode
from fl_lightning.engine.module.state import make_room
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.rules.work import LocalSettings
from fl_lightning.lightning_private import saved_hyper_parameters

EVALUATION_HOOKS = tuple(
    f"on_{stage}_{when}"
    for stage in ("validation", "test", "predict")
    for when in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end", "model_eval", "model_train")
)
EVALUATION_STEPS = ("validation_step", "test_step", "predict_step")
# Methods of the client module that are replaced while hosted: Lightning's versions would act on the server's loop.
BORROWED = ("log", "manual_backward", "optimizers", "lr_schedulers")


class ClientHost(Server):
    """Owns the client module: forwards to it what the Trainer calls outside of training, and saves it in checkpoints.

    While a client trains, the module's ``self.log`` collects the client's metrics, and ``self.optimizers()`` returns
    the client's optimizers. In an evaluation, ``self.log`` logs as usual.

    The module's own ``state_dict``, ``load_state_dict``, ``strict_loading``, ``on_save_checkpoint`` and
    ``on_load_checkpoint`` decide what a checkpoint holds and what must be in there; all of them see the module's own
    names. The hyper-parameters that the module and the data module have saved enter the checkpoint, too, as far as they
    are plain values: others could not be loaded with ``weights_only=True``.

    Args:
        client: the LightningModule to own.
        seed: the seed of local randomness and of rules that draw random numbers.
    """

    settings: LocalSettings  # the local work of every client
    _shown: ClientTrainer  # the Trainer as the client module sees it
    _idle_optimizers: Sequence[Optimizer] = ()  # those that the module gets while no client trains
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
        self._spares, self._idle_optimizers = None, ()
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
        self._lone_metrics, self._idle_optimizers = [], ()
        self.client.trainer = self.trainer
        for name in ("_state", "_shown"):  # these refer to the Trainer
            self.__dict__.pop(name, None)
        for hook in (*EVALUATION_HOOKS, *EVALUATION_STEPS, *TRANSFER_HOOKS, *LOADERS):
            self.__dict__.pop(hook, None)
        self._lend_loaders(None)

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
        self.batches_ready = self.device.type == "cpu" and not hooked and not converted
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

    # Checkpoints

    @property
    @override
    def strict_loading(self) -> bool:
        """Whether a checkpoint must hold exactly the client module's tensors."""
        return self.client.strict_loading

    @strict_loading.setter
    def strict_loading(self, strict_loading: bool) -> None:
        self.client.strict_loading = strict_loading

    @override
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if not is_overridden("state_dict", self.client, LightningModule):
            return super().state_dict(*args, **kwargs)
        found = kwargs.get("destination")
        found = OrderedDict() if found is None else found
        found.update(renamed(self.client.state_dict(), lambda name: kwargs.get("prefix", "") + PREFIX + name))
        return found

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        if not is_overridden("load_state_dict", self.client, LightningModule):
            return super().load_state_dict(state_dict, strict, assign)
        return self.client.load_state_dict(own_names(state_dict), strict=strict)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        argument, saved = saved_hyper_parameters(self.client)
        for key in {self.CHECKPOINT_HYPER_PARAMS_KEY, LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY} & set(
            checkpoint
        ):
            checkpoint[key] = plain_in(checkpoint[key])  # of the orchestrator and of the data module
        if plain := plain_in(saved):
            checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY] = plain
            checkpoint[self.CHECKPOINT_HYPER_PARAMS_NAME] = argument
        with own_view(checkpoint):
            self.client.on_save_checkpoint(checkpoint)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        with own_view(checkpoint):
            self.client.on_load_checkpoint(checkpoint)
            if not is_overridden("load_state_dict", self.client, LightningModule):  # which may rename
                make_room(self.client, checkpoint["state_dict"])
                check_state(nn.Module.state_dict(self.client), checkpoint["state_dict"], self.strict_loading)

    # Replacements for the client module's own methods

    def _client_log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if self._shown.run is not None:
            self._shown.logs.log(name, value, *args, **kwargs)
        elif not self.trainer.training:  # else the server trains on its proxy set; such losses are dropped
            self.log(name, value, *args, **kwargs)
            if kwargs.get("on_step"):  # the step that Lightning gives to such a value is the batch's number
                self.log("round", float(self.rounds_done), on_step=True, on_epoch=False, batch_size=1)

    def _client_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self._shown.run is not None:
            self._shown.run.backward(loss, *args, **kwargs)

    def _client_optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the client's optimizers; while no client trains, optimizers that show the round's learning rates."""
        run = self._shown.run
        optimizers: Sequence[Any] = run.optimizers if run else self._idle_optimizers
        if run and use_pl_optimizer and run.hooked:
            optimizers = run.hooked
        return optimizers[0] if len(optimizers) == 1 else list(optimizers)

    def _client_schedulers(self) -> Any:
        schedulers = self._shown.run.schedulers if self._shown.run else []
        return schedulers[0] if len(schedulers) == 1 else schedulers or None


def _alone() -> bool:
    """Tell a torchmetrics object that there are no other devices."""
    return False
