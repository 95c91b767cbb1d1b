"""FederatedOrchestrator: runs the rounds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.compile import from_compiled
from torch._dynamo import OptimizedModule
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning import lightning_private
from fl_lightning.engine.aggregation import Aggregation
from fl_lightning.engine.checks import (
    check_callbacks,
    check_client,
    check_data,
    check_evaluation,
    check_rules,
    check_settings,
    check_trainer,
    warn_of_hidden_state,
    warn_of_slow_precision,
)
from fl_lightning.engine.defaults import picklable_defaults
from fl_lightning.engine.devices.strategy import busy, waits
from fl_lightning.engine.federation.data import PADDING, ClientIds
from fl_lightning.engine.federation.draws import Dealing
from fl_lightning.engine.hosting.checkpoint_checks import check_orders
from fl_lightning.engine.hosting.evaluation import SeededEvaluation
from fl_lightning.engine.hosting.initial import start_from
from fl_lightning.engine.hosting.interruption import Interruption
from fl_lightning.engine.module.exact import default_dtype
from fl_lightning.engine.module.params import FlatParameters, is_finite
from fl_lightning.engine.module.state import ModuleState
from fl_lightning.engine.rules.callback import sealed_states
from fl_lightning.engine.rules.server_optimizer import Settings, go_on, make_schedulers, settings_of
from fl_lightning.engine.rules.work import LocalSettings
from fl_lightning.engine.same_start import start_alike
from fl_lightning.engine.states.disk import FOLDER, DiskState
from fl_lightning.engine.training.in_lockstep.comparison import compare_group
from fl_lightning.engine.training.local_training import LocalTraining
from fl_lightning.engine.updates.store import bytes_in, usual_limit
from fl_lightning.errors import ConfigurationError, values_of
from fl_lightning.files import seal_checkpoints
from fl_lightning.inside import within
from fl_lightning.seeding import isolated


@picklable_defaults
class FederatedOrchestrator(Aggregation):
    """Federated training of any LightningModule by the plain Trainer: an epoch is a round, a batch is a client.

    Each ``training_step`` trains the clients of one batch, from the global model. The last ``training_step`` of an
    epoch aggregates the updates of all clients and steps the server optimizer; the Trainer then validates, logs and
    saves the new global model. Algorithms are the Trainer's callbacks: see :class:`FederatedCallback`.

    Args:
        client: the unmodified LightningModule that every client trains; between clients, the module holds the global
            model.
        local_epochs: passes over a client's data per round, 1 unless ``local_steps`` is given; 0.5 is half a pass.
        local_steps: batches per client and round, in place of ``local_epochs``.
        local_lr_decay: factor on the clients' learning rates, per round (0.99 in FedLAW, 0.998 in FedSMOO).
        local_lr_scheduler: schedule of the clients' learning rates over the rounds: any torch scheduler, stepped after
            each round (``local_lr_decay`` is ExponentialLR).
        stragglers: share of clients, drawn by the seed, that do less work in a round: from 1 to ``local_epochs`` epochs
            (or ``local_steps`` steps) each (FedProx, Li et al., 2020, Section 5.2).
        server_optimizer: optimizer of the global parameters, whose gradient is -update; SGD(1.0) is FedAvg.
        server_scheduler: schedule of the server optimizer's learning rate, stepped after each round.
        accumulate_grad_batches: number of a client's batches per optimizer step.
        gradient_clip_val: largest local gradient norm or value.
        gradient_clip_algorithm: quantity that is clipped, "norm" or "value".
        cohort_memory: the most memory that a device uses for a round's updates (K clients × P parameters), such as
            "4GiB", with a unit of KiB, MiB, GiB or TiB. Larger updates are summed as they arrive, if no callback reads
            single updates, and otherwise, on a CPU, kept in a file in the run folder. Neither changes a result. By
            default half of the machine's memory, divided among the processes of a run.
        client_states: place of the tensors that rules keep for single clients (control variates, …): "memory" (and the
            checkpoint), or "disk" (files in the run folder) for many clients or large models.
        on_bad_update: treatment of a client that raises, or whose update or buffers are not finite: "skip" leaves the
            client out with a warning that names it, "raise" stops the run.
        max_update_norm: largest norm of an update, as a multiple of the median norm of the cohort's updates; at least
            1. A larger update is treated like an update that is not finite. None for no limit.
        init_from: source of the initial global model in place of the module's own initial values: a Lightning
            checkpoint of the module, a state_dict file (``.pt``, ``.pth``, ``.safetensors``), a checkpoint of a
            federated run, or ``timm:`` and the name of a pretrained model of timm. A resumed run goes on from its
            ``ckpt_path``, which is loaded later.
        seed: seed of local randomness (batch order, dropout) and of rules that draw random numbers.
        clients_at_once: number of clients that train in lock-step, as the rows of one matrix, which saves small models
            most of their time; "auto" chooses the number: 1 where training in lock-step saves no time. Results differ
            by rounding from those of clients that train one after another.
        compile_clients: whether ``torch.compile`` compiles the local steps of clients that train at once, which takes
            some seconds at the first step and saves tiny models part of each later one. It needs a C++ compiler.
            Results differ by rounding.
        local_graph: must be False; a captured graph of a local step would keep the numbers that the step read.
        channels_last: whether images and the weights of convolutions lie in memory with the channels last, in which
            most convolutions are faster. Results differ by rounding from those of the usual order.

    Attributes:
        arguments: all arguments but ``client``, as given, by name.

    Raises:
        ConfigurationError: both ``local_epochs`` and ``local_steps`` are given, or a value is out of range.
    """

    def __init__(
        self,
        client: LightningModule,
        local_epochs: int | float | None = None,
        local_steps: int | None = None,
        local_lr_decay: float = 1.0,
        local_lr_scheduler: LRSchedulerCallable | None = None,
        stragglers: float = 0.0,
        server_optimizer: OptimizerCallable = lambda params: torch.optim.SGD(params, lr=1.0),
        server_scheduler: LRSchedulerCallable | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Literal["norm", "value"] = "norm",
        client_states: Literal["memory", "disk"] = "memory",
        on_bad_update: Literal["skip", "raise"] = "skip",
        max_update_norm: float | None = None,
        init_from: str | None = None,
        seed: int = 0,
        clients_at_once: int | Literal["auto"] = 1,
        compile_clients: bool = False,
        channels_last: bool = False,
        cohort_memory: str | None = None,
        local_graph: bool = False,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "client", "__class__")}
        super().__init__(from_compiled(client) if isinstance(client, OptimizedModule) else client, seed)
        self.arguments = given
        check_settings(client_states, on_bad_update, max_update_norm, clients_at_once, compile_clients, local_graph)
        self.client_states = client_states
        self.automatic_optimization = False
        self.settings = LocalSettings(
            epochs=1 if local_epochs is None and local_steps is None else local_epochs,
            steps=local_steps,
            stragglers=stragglers,
            lr_decay=local_lr_decay,
            accumulate=accumulate_grad_batches,
            clip=gradient_clip_val,
            clip_algorithm=gradient_clip_algorithm,
        )
        if local_lr_scheduler and local_lr_decay != 1:
            raise ConfigurationError(
                f"give local_lr_scheduler or local_lr_decay, got both, local_lr_decay={local_lr_decay}: leave one out"
            )
        self.local_lr_scheduler = local_lr_scheduler
        self.server_optimizer, self.server_scheduler = server_optimizer, server_scheduler
        self.on_bad_update, self.max_update_norm = on_bad_update, max_update_norm
        self.init_from, self._started = init_from, False
        self.clients_at_once, self.compile_clients = clients_at_once, compile_clients
        self.channels_last = channels_last
        self.cohort_memory = None if cohort_memory is None else bytes_in(cohort_memory)

    # Hooks that the Trainer calls

    @override
    def configure_callbacks(self) -> Any:
        # This is the first hook with a Trainer: check the Trainer's flags before Lightning's own checks.
        check_trainer(self.trainer)
        seal_checkpoints(self.trainer)
        check_evaluation(self.trainer, self.client)
        added = super().configure_callbacks() or []
        added = list(added) if isinstance(added, Sequence) else [added]
        check_callbacks(added)
        known: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]  # set outside Trainer.__init__
        if not any(isinstance(each, Interruption) and each.orchestrator is self for each in known):
            added += [Interruption(self), SeededEvaluation(self)]
        return added

    @override
    def setup(self, stage: str) -> None:
        super().setup(stage)
        self._saved_settings: Settings | None = None
        self._saved_orders: Sequence[list[int] | None] | None = None
        self._way_before = None
        self._order_memory()
        if self.init_from is not None and not self._started:
            start_from(self.client, self.init_from)
        self._started = True  # a second fit goes on from the first
        if stage == "fit":
            self.rounds_done = self.trainer.current_epoch  # the Trainer counts the rounds, unless a checkpoint does
            self.data.dealing = Dealing(self.num_steps, self.trainer.global_rank, self.trainer.world_size)
            check_rules(self.callbacks, self.data)
            check_data(self.data, self.trainer.max_epochs)

    def _order_memory(self) -> None:
        if self.channels_last:
            self.client.to(memory_format=torch.channels_last)

    @override
    def configure_optimizers(self) -> Any:
        # This is the first hook after the module has been moved to its device: flatten the parameters here.
        self._order_memory()  # for layers that configure_model has made
        start_alike(self)
        self._flat = FlatParameters(self.client)
        self._receiver = None
        with values_of("model.server_optimizer"):
            optimizer = self.server_optimizer(self._flat.parameters)
        with values_of("model.server_scheduler"):
            schedulers = make_schedulers(self.server_scheduler, optimizer)
        self._server_settings = settings_of(optimizer)
        return [optimizer], schedulers

    @override
    def on_fit_start(self) -> None:
        super().on_fit_start()
        check_client(self.client, self.settings, self.trainer.precision_plugin, self.callbacks)
        warn_of_slow_precision(self.trainer.precision_plugin, self.device)
        self._training = LocalTraining(self.client, self._flat, self.settings, self._shown, self.callbacks)
        self._usual_dtype = torch.get_default_dtype()
        self._state, self._told, self._skipped = ModuleState(self.client), set[str](), 0
        self._quarantined = []
        warn_of_hidden_state(self._state.beyond)
        self.make_rates()
        self.make_room()
        self.choose_group_size()
        self._folder = Path(self.trainer.log_dir or self.trainer.default_root_dir)  # log_dir is a collective call
        self.memory_limit = self.cohort_memory or usual_limit(self.trainer.num_devices)
        self.choose_memory()
        self.data.dealing = replace(self.data.dealing, group_size=self.group_size, in_order=self.streams)
        self._open_states()
        if not is_finite(self.params):
            raise ConfigurationError(
                "training would start from a model with infinite or nan parameters: give another checkpoint, or mend "
                "the module's initial values"
            )

    @override
    def on_train_start(self) -> None:
        # On resume, the settings of this run win over the server optimizer's settings in the checkpoint.
        schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        check_orders(self._flat.orders, self._saved_orders)
        optimizer = self.trainer.optimizers[0]
        go_on(optimizer, schedulers, self._server_settings, self._saved_settings, self.rounds_done)
        self.set_step(self.round)

    def made_optimizers(self) -> dict[str, list[tuple[type[Optimizer], Settings]]]:
        """Return class and settings of the optimizers of a ``client`` and of the ``server``, as when the fit began."""
        client = [(type(each), settings_of(each)) for each in self._training.shown]
        return {"client": client, "server": [(type(self.trainer.optimizers[0]), self._server_settings)]}

    def _open_states(self) -> None:
        """Find the files of the clients' states, before the run writes any file."""
        if self.client_states == "disk":
            for callback in self.callbacks:
                if isinstance(callback.state, DiskState):
                    folder = within(self._folder, FOLDER, quote(callback.state_key, safe=""))
                    callback.state.open(folder, lambda: self.round)

    @override
    def on_fit_end(self) -> None:
        super().on_fit_end()
        self.tell_quarantined()
        # The Trainer has moved the module to the CPU: leave nothing of the rounds in the device's memory.
        self._flat.vector  # noqa: B018  # moves
        for name in ("_receiver", "_summed", "_anchor", "_resident"):
            self.__dict__.pop(name, None)

    @override
    def on_train_epoch_start(self) -> None:
        waits(self.trainer)  # Lightning lets the devices meet before every batch

    @override
    def on_train_epoch_end(self) -> None:
        if self.trainer.is_global_zero:
            busy(self.trainer, f"the checkpoints after round {self.rounds_done}")
        else:
            waits(self.trainer)

    @override
    def on_batch_passed_on(self) -> None:
        self.set_step(self.round)  # before callbacks log anything of this batch

    @override
    def training_step(self, batch: ClientIds, batch_idx: int) -> None:
        """Train the clients of one batch; the epoch's last batch ends the round."""
        # The Trainer's precision is for the clients' forward passes alone: no autocast, no other default dtype.
        with torch.autocast(self.device.type, enabled=False):
            if batch_idx == 0:
                self.start_round()
            with isolated(self.device), default_dtype(self._usual_dtype), sealed_states(self.callbacks):
                compare_group(self)
                self.train_clients([client for client in batch if client != PADDING])
            waits(self.trainer)
            self.sum_up(batch_idx + 1)
            if batch_idx + 1 == self.trainer.num_training_batches:
                self.end_round()
                busy(self.trainer, f"the evaluation after round {self.rounds_done}")

    # Metrics that are logged after a round have the round as their step

    @override
    def on_validation_epoch_end(self) -> None:
        self.client.on_validation_epoch_end()
        self.log_round_number(self.rounds_done)

    @override
    def on_test_epoch_end(self) -> None:
        self.client.on_test_epoch_end()
        self.log_round_number(self.rounds_done)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rounds_done"] = self.rounds_done
        checkpoint["clients_at_once"] = [self.clients_at_once, self._stacked is not None]
        if self._run is not None:  # saved on a signal, while the module holds a client's model
            with self.at(self._anchor, self._state.buffers):
                checkpoint["state_dict"] = copy.deepcopy(self.state_dict())
        if self.trainer.optimizers:
            checkpoint["server_settings"] = self._server_settings
            checkpoint["memory_orders"] = self._flat.orders
        super().on_save_checkpoint(checkpoint)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.rounds_done, self._way_before = checkpoint["rounds_done"], checkpoint.get("clients_at_once")
        if "loops" in checkpoint:  # continue with the first client of the next round
            lightning_private.begin_epoch(checkpoint["loops"]["fit_loop"], self.rounds_done)
        self._saved_settings = checkpoint.get("server_settings")
        self._saved_orders = checkpoint.get("memory_orders")
        checkpoint["lr_schedulers"] = []  # on_train_start sets the run's own schedule to the round
