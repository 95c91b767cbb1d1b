"""FederatedOrchestrator: runs the rounds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.compile import from_compiled
from lightning.pytorch.utilities.types import LRSchedulerConfig
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch._dynamo import OptimizedModule
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning import lightning_private
from fl_lightning.arguments import picklable_defaults
from fl_lightning.engine import checks
from fl_lightning.engine.aggregation import aggregate, share_loss_scale, step_alone, step_server
from fl_lightning.engine.devices.strategy import busy, waits
from fl_lightning.engine.federation.data import PADDING, ClientIds, Dealing
from fl_lightning.engine.hosting.guard import Guard
from fl_lightning.engine.hosting.host import ClientHost
from fl_lightning.engine.hosting.initial import start_from
from fl_lightning.engine.hosting.saving import check_orders
from fl_lightning.engine.hosting.shared_evaluation import SharedEvaluation
from fl_lightning.engine.hosting.shown_trainer import METRICS
from fl_lightning.engine.module.exact import default_dtype
from fl_lightning.engine.module.params import FlatParameters, is_finite
from fl_lightning.engine.module.state import Buffers, ModuleState
from fl_lightning.engine.policy import Policy
from fl_lightning.engine.round import Outgoing, Round
from fl_lightning.engine.rules.callback import START_HOOKS, FederatedCallback, federated, sealed_states
from fl_lightning.engine.rules.hooks import Hooks
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.server import NO_FIT
from fl_lightning.engine.rules.server_optimizer import Settings, go_on, make_schedulers, settings_of, step_schedules
from fl_lightning.engine.rules.work import LocalSettings
from fl_lightning.engine.same_start import check_start, start_alike
from fl_lightning.engine.sites.elsewhere import Elsewhere
from fl_lightning.engine.sites.messages import Incoming
from fl_lightning.engine.sites.secure.summed import SummedElsewhere
from fl_lightning.engine.sites.secure.sums import check_secure, has_scaler
from fl_lightning.engine.sites.site import Outbox, Site
from fl_lightning.engine.sites.sites import Sites
from fl_lightning.engine.states.disk import FOLDER, DiskState, client_bytes
from fl_lightning.engine.states.sent import SentState
from fl_lightning.engine.training.in_lockstep.trainer import choose_training
from fl_lightning.engine.training.local_data import LocalData
from fl_lightning.engine.training.local_training import LocalTraining
from fl_lightning.engine.training.one_by_one import ClientTraining, Model, OneByOne, Visit
from fl_lightning.engine.training.optimizers import RoundRates
from fl_lightning.engine.training.repetition import OnHiddenState, Repetition
from fl_lightning.engine.updates.store import bytes_in, usual_limit
from fl_lightning.errors import ConfigurationError, values_of
from fl_lightning.files import seal_checkpoints
from fl_lightning.inside import within
from fl_lightning.seeding import derive, isolated, seed_globals

# Entries of a checkpoint that a resumed fit reads
SAVED = ("clients_at_once", "server_settings", "memory_orders", "trainer_metrics")


@dataclass
class Fit:
    """Holds what the orchestrator needs while a fit lasts.

    Attributes:
        hooks: the callbacks' hooks.
        data: the clients' batches, and the work that a client does in a round.
        rates: the clients' learning rates, round by round.
        training: trains the clients of a batch, one after another or in lock-step.
        repetition: trains the first client of the fit a second time.
        visits: trains new clients, which no monitor sees.
        policy: where the updates lie, and which are left out.
        dtype: torch's default dtype when the fit began.
        round: the current round; None between two rounds.
        skipped: number of rounds without an update, since the last round that had one.
        quarantined: number of clients left out, of each round so far.
    """

    hooks: Hooks
    data: LocalData
    rates: RoundRates
    training: ClientTraining
    repetition: Repetition
    visits: OneByOne
    policy: Policy
    dtype: torch.dtype
    round: Round | None = None
    skipped: int = 0
    quarantined: list[int] = field(default_factory=list)


@picklable_defaults
class FederatedOrchestrator(ClientHost):
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
            most of their time; "auto" chooses the number: 1 where training in lock-step saves no time, as two rounds
            show. Results differ by rounding from those of clients that train one after another.
        compile_clients: whether ``torch.compile`` compiles the local steps of clients that train at once, which takes
            up to 20 s at the first step and saves small models most of each later one. It needs a C++ compiler. Results
            differ by rounding.
        on_hidden_state: treatment of a fit whose first client, trained again after the others of its round, ends in
            other bits: "warn" says what survives from client to client beside parameters and buffers, "raise" stops the
            run, "off" trains no client again.
        channels_last: whether images and the weights of convolutions lie in memory with the channels last, in which
            most convolutions are faster. Results differ by rounding from those of the usual order.

    Attributes:
        arguments: all arguments but ``client``, as given, by name.
        sites: the clients' sites, if they train on other machines; set it before a fit.

    Raises:
        ConfigurationError: both ``local_epochs`` and ``local_steps`` are given, or a value is out of range.
    """

    sites: Sites | None = None

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
        on_hidden_state: OnHiddenState = "warn",
        channels_last: bool = False,
        cohort_memory: str | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "client", "__class__")}
        super().__init__(from_compiled(client) if isinstance(client, OptimizedModule) else client, seed)
        self.arguments = arguments
        checks.check_settings(arguments)
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
        self.local_lr_scheduler = local_lr_scheduler
        self.server_optimizer = server_optimizer
        self.server_scheduler = server_scheduler
        self.client_states = client_states
        self.on_bad_update = on_bad_update
        self.max_update_norm = max_update_norm
        self.init_from = init_from
        self.clients_at_once = clients_at_once
        self.compile_clients = compile_clients
        self.channels_last = channels_last
        self.cohort_memory = None if cohort_memory is None else bytes_in(cohort_memory)
        self._fit: Fit | None = None
        self._started = False  # whether the model is no longer the initial one
        self._saved: dict[str, Any] = {}  # entries of the checkpoint from which a run resumes
        self._server_settings: Settings = []  # of the server optimizer, as given
        self._way: tuple[Any, ...] = (False, False)  # how clients trained in the last round, see ClientTraining

    # A fit begins

    @override
    def configure_callbacks(self) -> Any:
        # This is the first hook with a Trainer: check the Trainer's flags before Lightning's own checks.
        checks.check_trainer(self.trainer)
        seal_checkpoints(self.trainer)
        checks.check_evaluation(self.trainer, self.client)
        added = super().configure_callbacks() or []
        added = list(added) if isinstance(added, Sequence) else [added]
        checks.check_callbacks(added)
        known: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]  # set outside Trainer.__init__
        if not any(isinstance(callback, Guard) and callback.orchestrator is self for callback in known):
            added.append(Guard(self, self._drop_round))
            if self.trainer.world_size > 1 and isinstance(self.trainer.accelerator, CPUAccelerator):
                added.append(SharedEvaluation(self))
        return added

    @override
    def setup(self, stage: str) -> None:
        super().setup(stage)
        self._saved = {}
        self._order_memory()
        if self.init_from is not None and not self._started:
            self.elsewhere.names = start_from(self.client, self.init_from)
        self._started = True  # a second fit goes on from the first
        if stage == "fit":
            self.rounds_before += max(0, self.rounds_done - self.trainer.current_epoch)
            self.rounds_done = self.trainer.current_epoch  # the Trainer counts the rounds, unless a checkpoint does
            checks.check_chain(federated(self.trainer))
            if not self._at_site:
                checks.check_proxy(federated(self.trainer), self.data)
            self.data.dealing = Dealing(self.num_steps, self.trainer.global_rank, self.trainer.world_size)
            checks.check_data(self.data, self.trainer.max_epochs)
            if self.sites is not None:
                checks.check_at_sites(federated(self.trainer), self.trainer.world_size, self.clients_at_once)
                if self.sites.fit:
                    check_secure(federated(self.trainer), self.arguments, self.sites.clients, has_scaler(self.trainer))

    def _order_memory(self) -> None:
        if self.channels_last:
            self.client.to(memory_format=torch.channels_last)

    @override
    def configure_optimizers(self) -> Any:
        # This is the first hook after the module has been moved to its device: flatten the parameters here.
        self._order_memory()  # for layers that configure_model has made
        start_alike(self)
        self.flat = FlatParameters(self.client)
        with values_of("model.server_optimizer"):
            optimizer = self.server_optimizer(self.flat.parameters)
        make = self.server_scheduler
        schedulers = make_schedulers("model.server_scheduler", make, [optimizer]) if make else []
        self._server_settings = settings_of(optimizer)
        return [optimizer], schedulers

    @override
    def on_fit_start(self) -> None:
        super().on_fit_start()
        dtype = torch.get_default_dtype()
        hooks = Hooks(self, federated(self.trainer))
        hooks.at_site = self._at_site
        precision = self.trainer.precision_plugin
        self.flat.local = hooks.local
        checks.check_client(self.client, self.settings, precision, hooks.callbacks)
        checks.warn_of_slow_precision(precision, self.device)
        self._state = ModuleState(self.client)
        data = LocalData(self, self.settings)
        local = LocalTraining(self.client, self.flat, self.settings, self.shown, hooks.callbacks)
        rates = self._make_rates(local, data, self._state)
        alone = OneByOne(self, local, data, hooks)
        repetition = Repetition(alone, self.arguments["on_hidden_state"])
        saved_way = self._saved.get("clients_at_once")
        training: ClientTraining
        if self.sites is not None:
            training = SummedElsewhere(self, self.sites) if self.sites.fit else Elsewhere(self, self.sites)
        elif hooks.at_site:
            training = alone
        else:
            training = choose_training(alone, self.clients_at_once, self.compile_clients, saved_way)
        self._way = training.kept_way
        folder = Path(self.trainer.log_dir or self.trainer.default_root_dir)  # log_dir is a collective call
        policy = Policy(
            orchestrator=self,
            callbacks=hooks.callbacks,
            group_size=training.group_size,
            limit=self.cohort_memory or usual_limit(self.trainer.num_devices),
            folder=folder,
            on_bad_update=self.on_bad_update,
            max_update_norm=self.max_update_norm,
        )
        self.data.dealing = replace(
            self.data.dealing, group_size=training.group_size, in_order=policy.sums_after is not None
        )
        self._train_again = alone.train_again
        self._fit = Fit(hooks, data, rates, training, repetition, alone.without_monitors(), policy, dtype)
        self._open_states(folder)
        if not is_finite(self.params):
            raise ConfigurationError(
                "training would start from a model with infinite or nan parameters: give another checkpoint, or mend "
                "the module's initial values"
            )

    @property
    def _at_site(self) -> bool:
        """Whether clients train here for a server elsewhere."""
        return any(isinstance(callback, Site) for callback in self.trainer.callbacks)  # type: ignore[attr-defined]  # as above

    def _make_rates(self, local: LocalTraining, data: LocalData, state: ModuleState) -> RoundRates:
        """Make the clients' optimizers once, for the schedule of their rates and for LearningRateMonitor to show."""
        first = int(self.data.sizes.argmax())
        is_here = self.data.has_examples(first)
        work = data.work(first, self.round) if is_here else data.counted_work(first, self.round)
        run = LocalRun(self.client, self.flat, state, self.data, first, self.round, self.params, work)
        with isolated(self.device):
            seed_globals(derive(self.seed, "rates"), self.device)
            try:
                made = local.make_first(run)
            finally:
                state.restore()
        checks.check_optimizers(self.client, made)
        rates = RoundRates(made, self.local_lr_scheduler, self.settings.lr_decay)
        single = len(rates.schedulers) == 1
        for number, scheduler in enumerate(rates.schedulers, start=1):
            name = "lr-client" if single else f"lr-client-{number}"
            self.trainer.lr_scheduler_configs.append(LRSchedulerConfig(scheduler, name=name))
        self._idle_optimizers = rates.optimizers
        check_start(self, made)
        return rates

    def _open_states(self, folder: Path) -> None:
        """Find the files of the clients' states, before the run writes any file."""
        if self.client_states != "disk":
            return
        for callback in self._fit_now.hooks.callbacks:
            if isinstance(callback.state, DiskState):
                own = within(folder, FOLDER, quote(callback.state_key, safe=""))
                callback.state.open(own, lambda: self.round)

    @override
    def on_train_start(self) -> None:
        # On resume, the settings of this run win over the server optimizer's settings in the checkpoint.
        schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        check_orders(self.flat.orders, self._saved.get("memory_orders"))
        optimizer = self.trainer.optimizers[0]
        go_on(optimizer, schedulers, self._server_settings, self._saved.get("server_settings"), self.rounds_done)
        self.shown.earlier.update(self._saved.get("trainer_metrics") or {})
        self.set_step(self.round)

    def made_optimizers(self) -> dict[str, list[tuple[type[Optimizer], Settings]]]:
        """Return class and settings of the optimizers of a ``client`` and of the ``server``, as when the fit began."""
        client = [(type(optimizer), settings_of(optimizer)) for optimizer in self._fit_now.rates.optimizers]
        return {"client": client, "server": [(type(self.trainer.optimizers[0]), self._server_settings)]}

    def num_steps(self, client: int, round: int) -> int:
        """Return the number of batches that a client trains on in a round, as the data module counts batches."""
        data = LocalData(self, self.settings) if self._fit is None else self._fit.data
        return int(data.counted_work(client, round).total_batches)

    # While a fit lasts

    @property
    def _fit_now(self) -> Fit:
        if self._fit is None:
            raise ConfigurationError(NO_FIT)
        return self._fit

    @property
    def client_training(self) -> ClientTraining:
        """Trains the clients of a batch, one after another or in lock-step, while a fit lasts.

        Raises:
            ConfigurationError: no fit is going on.
        """
        return self._fit_now.training

    @property
    def policy(self) -> Policy:
        """Where the updates of a round lie, and how they count, while a fit lasts.

        Raises:
            ConfigurationError: no fit is going on.
        """
        return self._fit_now.policy

    @property
    @override
    def personal_model(self) -> Callable[[int], tuple[Tensor, Buffers]] | None:
        if self._fit is None or not self._fit.hooks.defines(*START_HOOKS, "personal"):
            return None
        return self._fit.hooks.personal

    @override
    def train_new(self, client: int, epochs: int) -> tuple[Model, Model] | None:
        fit = self._fit_now
        state = ModuleState(self.client, self._state)
        visit = Visit(self.round, self.params.clone(), state, fit.rates.factors(self.round))
        with isolated(self.device), default_dtype(fit.dtype):
            return fit.visits.train_new(visit, client, epochs)

    # A round

    @override
    def on_batch_passed_on(self) -> None:
        self.set_step(self.round)  # before callbacks log anything of this batch

    @override
    def training_step(self, batch: ClientIds, batch_idx: int) -> None:
        """Train the clients of one batch; the epoch's last batch ends the round."""
        # The Trainer's precision is for the clients' forward passes alone: no autocast, no other default dtype.
        with torch.autocast(self.device.type, enabled=False):
            fit = self._fit_now
            if batch_idx == 0:
                fit.round = self._begin_round(fit)
            round = fit.round
            assert round is not None
            clients = [client for client in batch if client != PADDING]
            done = batch_idx + 1
            ends = done == self.trainer.num_training_batches
            with isolated(self.device), default_dtype(fit.dtype), sealed_states(fit.hooks.callbacks):
                fit.training.train(round, clients)
                if ends:
                    fit.repetition.check(round)
            waits(self.trainer)
            if ends:
                self._end_round(fit, round)
                busy(self.trainer, f"the evaluation after round {self.rounds_done}")
            elif fit.policy.sums_after and done % fit.policy.sums_after == 0:
                round.sum_up()

    def _begin_round(self, fit: Fit) -> Round:
        """Remember the global model, from which all clients of the round start."""
        self._state = ModuleState(self.client, self._state)
        checks.check_trainable(self.client, self.flat.parameters, self._state.trainable, self.round)
        return Round(
            number=self.round,
            anchor=self.params.clone(),
            state=self._state,
            factors=fit.rates.factors(self.round),
            turnout=self.data.turnout(self.round),
            policy=fit.policy,
            hooks=fit.hooks,
        )

    def train_at_site(self, outgoing: Outgoing) -> Incoming:
        """Train a client of a round that a server elsewhere runs, from what the server has sent."""
        fit = self._fit_now
        assert isinstance(fit.training, OneByOne)
        self.rounds_done = outgoing.number - 1
        self.params.copy_(outgoing.params)
        self.write_buffers(outgoing.buffers)
        self._state = ModuleState(self.client, self._state)
        share_loss_scale(self, [outgoing.loss_scale])
        for callback in fit.hooks.callbacks:
            sent = outgoing.states.get(callback.state_key, {})
            callback.state = SentState(sent, type(callback).__name__, callback.broadcasts, outgoing.client)
        outbox = Outbox(outgoing.number, self.params.clone(), self._state, outgoing.factors)
        with (
            torch.autocast(self.device.type, enabled=False),
            isolated(self.device),
            default_dtype(fit.dtype),
            sealed_states(fit.hooks.callbacks),
        ):
            fit.training.train(outbox, [outgoing.client])
        assert outbox.incoming is not None
        return outbox.incoming

    def _end_round(self, fit: Fit, round: Round) -> None:
        """Aggregate the updates of the round's clients, step the server optimizer and log the round."""
        cohort = round.cohort()
        self._log_turnout(fit, round, len(cohort.clients) if cohort else 0)
        busy(self.trainer, f"the server's part of round {round.number}")
        if cohort:
            round.tell_failures()
            aggregate(self, fit.hooks, cohort)
            fit.skipped = 0
            self._log_states(fit.hooks.callbacks)
        else:
            self._skip(fit, round)
        step_schedules([config.scheduler for config in self.trainer.lr_scheduler_configs])
        self.log_round_number(round.number)
        self.rounds_done += 1
        self._way = fit.training.kept_way
        fit.round = None
        round.failures.clear()  # an error refers to the frames that it passed, and these to the round

    def _log_turnout(self, fit: Fit, round: Round, kept: int) -> None:
        """Log how many clients the round lost, and why.

        Args:
            fit: the fit.
            round: the round.
            kept: number of clients whose updates are aggregated.
        """
        quarantined = len(round.turnout.arrived) - kept
        if self.trainer.fast_dev_run:  # type: ignore[attr-defined]  # set outside Trainer.__init__
            quarantined = len(round.failures)  # only some of those that have arrived are trained
        fit.quarantined.append(quarantined)
        counts = dict(round.turnout.counts) if self.data.availability else {}
        counts["quarantined"] = quarantined
        if round.late or "clients/late" in self.trainer.callback_metrics:
            counts["late"] = counts.get("late", 0) + round.late
        for name, count in counts.items():
            self.log_round(f"clients/{name}", float(count))

    def _skip(self, fit: Fit, round: Round) -> None:
        """Leave the global model as it is after a round without an update."""
        counts = round.turnout.counts
        reason = "its only client is left out"
        if round.skipped and fit.skipped + 1 < self.data.num_with_data:
            reason = round.skipped
            fit.skipped += 1
        elif not counts["arrived"]:
            reason = "no update arrives ({selected} selected, {dropped} dropped out, {late} late)".format(**counts)
        elif counts["arrived"] > 1 or fit.skipped + 1 >= self.data.num_with_data:
            raise round.without_update()
        else:
            fit.skipped += 1
        round.tell_failures()
        if any(rule.steps_alone for rule in fit.hooks.rules):
            step_alone(self, fit.hooks, round.number)
        else:
            rank_zero_warn(f"round {round.number} is skipped: {reason}")
            step_server(self, None)

    def _log_states(self, callbacks: Sequence[FederatedCallback]) -> None:
        """Log the size of the clients' states; states on disk can be read by all devices after this call."""
        if held := sum(client_bytes(callback.state) for callback in callbacks):
            self.log_round("clients/state_bytes", float(held))
        if self.client_states == "disk":
            self.trainer.strategy.barrier()

    def _drop_round(self) -> int | None:
        """Drop the current round; return how many of its clients were done, or None if there is no current round."""
        if self._fit is None or self._fit.round is None:
            return None
        round = self._fit.round
        self._fit.round = None
        round.tell_failures()
        return round.trained

    # Between rounds, and when a fit ends

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
    def on_fit_end(self) -> None:
        super().on_fit_end()
        quarantined = self._fit_now.quarantined
        if times := sum(quarantined):
            rounds = sum(count > 0 for count in quarantined)
            rank_zero_warn(
                f"updates left out in this fit: {times}, in {rounds} of {len(quarantined)} rounds "
                "(see clients/quarantined)"
            )
        self.flat.vector  # noqa: B018  # moves to the CPU, as the Trainer has moved the module

    @override
    def release_client(self) -> None:
        super().release_client()
        self._fit = None  # which refers to the Trainer, too

    # Metrics that are logged after a round have the round as their step

    def log_round_number(self, round: int) -> None:
        """Log a round's number, as the metric ``round`` and as the step of the metrics logged with it."""
        self.set_step(round)
        self.log_round("round", float(round))

    def set_step(self, round: int) -> None:
        """Make the round the step of the loggers: Lightning would count batches, which are clients here."""
        lightning_private.set_step(self.trainer, round)

    @override
    def on_validation_epoch_end(self) -> None:
        self.client.on_validation_epoch_end()
        self.log_round_number(self.rounds_done)

    @override
    def on_test_epoch_end(self) -> None:
        self.client.on_test_epoch_end()
        self.log_round_number(self.rounds_done)

    # Checkpoints

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rounds_done"], checkpoint["rounds_before"] = self.rounds_done, self.rounds_before
        checkpoint["clients_at_once"] = [self.clients_at_once, *self._way]
        trainer = self.trainer if self._shown is None else self._shown  # which has the metrics before a stop, too
        metrics = {kind: dict(getattr(trainer, kind)) for kind in METRICS}
        checkpoint["trainer_metrics"] = apply_to_collection(metrics, Tensor, lambda value: value.detach().cpu())
        round = None if self._fit is None else self._fit.round
        if (
            round is not None and self.shown.current is not None
        ):  # saved on a signal, while the module holds a client's model
            with self.at(round.anchor, round.state.buffers):
                checkpoint["state_dict"] = copy.deepcopy(self.state_dict())
        if self.trainer.optimizers:
            checkpoint["server_settings"] = self._server_settings
            checkpoint["memory_orders"] = self.flat.orders
        super().on_save_checkpoint(checkpoint)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.rounds_done, self.rounds_before = checkpoint["rounds_done"], checkpoint.get("rounds_before", 0)
        self._saved = {name: checkpoint.get(name) for name in SAVED}
        if "loops" in checkpoint:  # continue with the first client of the next round
            lightning_private.begin_epoch(checkpoint["loops"]["fit_loop"], self.rounds_done)
        checkpoint["lr_schedulers"] = []  # on_train_start sets the run's own schedule to the round
