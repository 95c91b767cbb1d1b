"""ClientHost: the part of the orchestrator that connects the client module with the Trainer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric
from typing_extensions import override

from fl_lightning.engine.federation.clients import LOADERS, TRANSFER_HOOKS
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.hosting.inference import leave_inference_mode
from fl_lightning.engine.hosting.saving import (
    PREFIX,
    Elsewhere,
    check_state,
    fill_in,
    own_names,
    own_view,
    plain_values,
    rename_entries,
)
from fl_lightning.engine.hosting.shown_trainer import ClientTrainer
from fl_lightning.engine.module.state import make_room
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.rules.work import LocalSettings
from fl_lightning.lightning_private import logging_hook, saved_hyper_parameters

STAGES = ("validation", "test", "predict")
MOMENTS = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end", "model_eval", "model_train")
# What the Trainer asks the orchestrator for, and the client module may define.
FORWARDED = (
    *LOADERS,
    *TRANSFER_HOOKS,
    *(f"{stage}_step" for stage in STAGES),
    *(f"on_{stage}_{moment}" for stage in STAGES for moment in MOMENTS),
)
# Methods of the client module that have a stand-in, ``_client_log`` and so on, while the module is hosted: Lightning's
# own would act on the server's loop.
BORROWED = ("log", "manual_backward", "optimizers", "lr_schedulers")


class ClientHost(Server):
    """Owns the client module: forwards to it what the Trainer calls outside of training, and saves it in checkpoints.

    While a client trains, the module's ``self.log`` collects the client's metrics, and ``self.optimizers()`` returns
    the client's optimizers. In an evaluation, ``self.log`` logs as usual.

    The module's own ``state_dict``, ``load_state_dict``, ``strict_loading``, ``on_save_checkpoint`` and
    ``on_load_checkpoint`` decide what a checkpoint holds and what must be in there; all of them see the module's own
    names. Frozen parameters that come from elsewhere, by ``init_from`` or named by the module's ``from_elsewhere``, do
    not enter a checkpoint while they are unchanged; who loads it must have the same. The hyper-parameters that the
    module and the data module have saved enter the checkpoint, too, as far as they are plain values: others could not
    be loaded with ``weights_only=True``.

    Args:
        client: the LightningModule to own.
        seed: the seed of local randomness and of rules that draw random numbers.
    """

    settings: LocalSettings  # the local work of every client

    def __init__(self, client: LightningModule, seed: int) -> None:
        super().__init__(client, seed)
        self._forward(("configure_model", "prepare_data"))
        self.prepare_data_per_node = client.prepare_data_per_node
        self.elsewhere = Elsewhere()
        self._shown: ClientTrainer | None = None
        self._idle_optimizers: Sequence[Optimizer] = ()  # those that the module gets while no client trains
        # The module's torchmetrics objects, each with its own function that says whether there are other devices
        self._lone_metrics: Sequence[tuple[Metric, Any]] = ()

    @property
    def shown(self) -> ClientTrainer:
        """The Trainer as the client module sees it, from ``setup`` to ``teardown``."""
        assert self._shown is not None
        return self._shown

    @override
    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name.startswith("_") or name == "client" or not hasattr(self.client, name):
                raise
            raise AttributeError(f"{error}, but its client module has: pl_module.client.{name}") from None

    @override
    def _showing_run(self) -> AbstractContextManager[None]:
        return self.shown.showing_run()

    def _forward(self, names: Iterable[str]) -> None:
        """Let the client module answer for the orchestrator, as far as the module defines what is asked for.

        Methods of the module itself stand in: Lightning reads their signatures, and whether there are any at all.
        """
        for name in names:
            if is_overridden(name, self.client, LightningModule) and not is_overridden(name, self):
                setattr(self, name, getattr(self.client, name))

    @override
    def configure_callbacks(self) -> Any:
        # This is the first hook with a Trainer; afterwards Lightning asks who defines loaders and steps.
        self._forward(FORWARDED)
        self._lend_loaders(self.client)
        callbacks: Callback | list[Callback] = self.client.configure_callbacks()  # type: ignore[assignment]
        return callbacks

    @override
    def setup(self, stage: str) -> None:
        for name in BORROWED:
            setattr(self.client, name, getattr(self, f"_client_{name}"))
        metrics = [part for part in self.client.modules() if isinstance(part, Metric)]
        self._lone_metrics = [(metric, metric.distributed_available_fn) for metric in metrics]
        for metric in metrics:  # each device evaluates everything, and trains other clients
            metric.distributed_available_fn = bool  # bool() is False
        self._shown = ClientTrainer(self.trainer, self.settings)
        self.client.trainer = self._shown  # type: ignore[assignment]  # stands for a Trainer
        if stage == "fit":
            leave_inference_mode(self.client)
            self.shown.begin()
        self.client.setup(stage)

    @override
    def teardown(self, stage: str) -> None:
        self.client.teardown(stage)
        self.release_client()

    def release_client(self) -> None:
        """Give the client module back its own methods, and forget what belongs to the Trainer."""
        for name in BORROWED:
            vars(self.client).pop(name, None)
        for metric, available in self._lone_metrics:
            metric.distributed_available_fn = available
        self._lone_metrics = ()
        self._idle_optimizers = ()
        self._shown = None
        self.client.trainer = self.trainer
        for name in FORWARDED:
            vars(self).pop(name, None)
        self.forget_fit()
        self._lend_loaders(None)

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.client(*args, **kwargs)

    @override
    def on_fit_start(self) -> None:
        self.elsewhere.remember(self.client)
        self.client.on_fit_start()
        self.shown.end()

    @override
    def on_fit_end(self) -> None:
        self.client.on_fit_end()

    def _lend_loaders(self, module: LightningModule | None) -> None:
        if isinstance(data := self.trainer.datamodule, FederatedData):  # type: ignore[attr-defined]  # as above
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
        prefix = kwargs.get("prefix", "") + PREFIX
        destination = kwargs.get("destination")
        if destination is None:
            destination = OrderedDict()
        destination.update(rename_entries(self.client.state_dict(), lambda name: prefix + name))
        return destination

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        if not is_overridden("load_state_dict", self.client, LightningModule):
            return super().load_state_dict(state_dict, strict, assign)
        return self.client.load_state_dict(own_names(state_dict), strict=strict)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        argument, saved = saved_hyper_parameters(self.client)
        for key in (self.CHECKPOINT_HYPER_PARAMS_KEY, LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY):
            if key in checkpoint:
                checkpoint[key] = plain_values(checkpoint[key])
        plain = plain_values(saved)
        if plain:
            checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY] = plain
            checkpoint[self.CHECKPOINT_HYPER_PARAMS_NAME] = argument
        with own_view(checkpoint):
            self.client.on_save_checkpoint(checkpoint)
            self.elsewhere.leave_out(checkpoint)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        with own_view(checkpoint):
            self.elsewhere.remember(self.client)
            fill_in(checkpoint, self.client)
            self.client.on_load_checkpoint(checkpoint)
            if not is_overridden("load_state_dict", self.client, LightningModule):  # which may rename
                make_room(self.client, checkpoint["state_dict"])
                check_state(nn.Module.state_dict(self.client), checkpoint["state_dict"], self.strict_loading)

    # Replacements for the client module's own methods

    def _client_log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self.note_better(name, value, **kwargs)
        if self.shown.current is not None:
            self.shown.logs.log(name, value, *args, **kwargs)
        elif not self.trainer.training:  # else the server trains on its proxy set; such losses are dropped
            self.log(name, value, *args, **kwargs)
            hook = logging_hook(self)
            if self.trainer.validating and hook is not None and hook != "validation_step":
                self.validation.note_elsewhere(name, hook)
            if kwargs.get("on_step"):  # the step that Lightning gives to such a value is the batch's number
                self.log("round", float(self.rounds_done), on_step=True, on_epoch=False, batch_size=1)

    def _client_manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self.shown.current is not None:
            self.shown.current.backward(loss, *args, **kwargs)

    def _client_optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the client's optimizers; while no client trains, optimizers that show the round's learning rates."""
        run = self.shown.current
        optimizers: Sequence[Any] = self._idle_optimizers
        if run is not None:
            optimizers = run.lightning_optimizers if use_pl_optimizer and run.lightning_optimizers else run.optimizers
        return optimizers[0] if len(optimizers) == 1 else list(optimizers)

    def _client_lr_schedulers(self) -> Any:
        run = self.shown.current
        schedulers = [config.scheduler for config in run.schedules] if run else []
        return schedulers[0] if len(schedulers) == 1 else schedulers or None
