"""OneByOne: trains the clients of a round one after another; and what any training of clients looks like."""

from __future__ import annotations

import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fl_lightning.engine.devices.strategy import busy
from fl_lightning.engine.module.failures import RuleError, error_text, guard_hook
from fl_lightning.engine.module.params import has_changed
from fl_lightning.engine.module.state import Buffers, ModuleState
from fl_lightning.engine.round import ClientsRound, Round
from fl_lightning.engine.rules.callback import SENT_HOOKS, START_HOOKS, attributes_kept, sealed_states
from fl_lightning.engine.rules.hooks import Hooks
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.rules.work import Factors, Work
from fl_lightning.engine.training.local_data import LocalData
from fl_lightning.engine.training.local_training import LocalTraining
from fl_lightning.engine.updates.cohort import ClientResult
from fl_lightning.errors import ConfigurationError, is_exhaustion
from fl_lightning.seeding import derive, isolated, seed_globals

AGAIN = "again"  # names the draws of a client's second training
Model = tuple[Tensor, Buffers]


class KeptWay(NamedTuple):
    """Says how clients train, for a resumed fit to go on in the same way.

    Attributes:
        at_once: whether clients train at once.
        padded: whether batches are filled up to one size; None for undecided.
    """

    at_once: bool
    padded: bool | None = None


class ClientTraining(Protocol):
    """Trains clients of a round, each from the round's global model, and knows of no rule's work on the server.

    Attributes:
        group_size: number of clients that one call trains together.
        at_once: whether clients train in lock-step.
    """

    group_size: int
    at_once: bool

    @property
    def kept_way(self) -> KeptWay:
        """How clients train, for a resumed fit to go on in the same way."""

    def train(self, round: Round, clients: Sequence[int]) -> None:
        """Train clients; ``round.take`` or ``round.leave_out`` is called once for each."""


def stops(error: Exception) -> bool:
    """Tell whether an error ends the run whichever way clients train.

    Lack of memory or disk space is not a client's fault: the run stops, and can train the round again later.
    """
    return isinstance(error, ConfigurationError) or is_exhaustion(error)


@dataclass
class Visit:
    """Stands for the round while a new client trains, which sends nothing; see :class:`ClientsRound`."""

    number: int
    anchor: Tensor
    state: ModuleState
    factors: Factors

    def take(self, models: Tensor, results: Sequence[ClientResult], losses: Any = None, less: bool = False) -> None:
        """Take in nothing."""

    def leave_out(self, client: int, reason: str, error: Exception | None = None) -> None:
        """Say that the client's training has failed."""
        warnings.warn(f"round {self.number}: new client {client} is left out: {reason}", stacklevel=2)


class OneByOne:
    """Trains clients one after another; between two clients, the module holds the global model.

    Args:
        orchestrator: the orchestrator, for the rules' hooks.
        local: trains one client.
        data: the clients' batches.
        hooks: the callbacks' hooks.

    Attributes:
        watch: is called with the run of each client that has trained, if set.
    """

    group_size = 1
    at_once = False
    kept_way = KeptWay(at_once=False)
    watch: Callable[[LocalRun], None] | None = None

    def __init__(self, orchestrator: Server, local: LocalTraining, data: LocalData, hooks: Hooks) -> None:
        self.orchestrator = orchestrator
        self.local = local
        self.data = data
        self.hooks = hooks
        self._again = LocalTraining(local.module, local.flat, local.settings, local.trainer, ())  # without any rule
        self._warned_of = set[str]()  # names of attributes that a warning has named
        self._writes = 0  # to the parameters, up to the end of the last client

    def train(self, round: ClientsRound, clients: Sequence[int]) -> None:
        """Train clients of a round, and put the global model back after each."""
        for client in clients:
            self._train(round, client)

    def without_monitors(self) -> OneByOne:
        """Return another that trains clients in the same way, and that no monitor sees."""
        other = copy(self)
        local, rules = self.local, self.hooks.rules
        other.watch = None
        other.hooks = Hooks(self.orchestrator, rules)
        other.local = LocalTraining(local.module, local.flat, local.settings, local.trainer, rules)
        return other

    def train_new(self, visit: Visit, client: int, epochs: int) -> tuple[Model, Model] | None:
        """Train a client that no round has, and forget it; see :meth:`Server.train_new`."""
        orchestrator = self.orchestrator
        rules = self.hooks.rules
        work = replace(self.data.work(client, visit.number), epochs=epochs, steps=None)
        models: tuple[Model, Model] | None = None
        train_again, orchestrator._train_again = orchestrator._train_again, self.train_again
        with attributes_kept(rules), self.leaving_out(visit, client):
            with sealed_states(rules), self.training_of(visit, client, work=work) as run:
                start = run.anchor, visit.state.buffers if run.start_buffers is None else run.start_buffers
                self.local.train(run, partial(self.data.batches, client, visit.number))
                for hook in self.hooks("on_client_end"):
                    hook(orchestrator, run)
                for part in self.hooks.parts:
                    part.keep(run, run.params - run.anchor)
                end = run.params.clone(), run.buffers
            if self.hooks.defines("personal"):
                for rule in rules:  # as they will be in the block alone
                    stays = {name: value for (key, name), value in run.stays.items() if key == rule.state_key}
                    if stays:
                        rule.state = ChainMap({f"{name}/{client}": stays[name] for name in stays}, rule.state)
                end = self.hooks.personal(client)
            models = start, end
        orchestrator._train_again = train_again
        return models

    def _train(self, round: ClientsRound, client: int) -> None:
        busy(self.orchestrator.trainer, f"client {self.data.datamodule.client_label(client)} of round {round.number}")
        with self.leaving_out(round, client), self.training_of(round, client) as run:
            self.local.train(run, partial(self.data.batches, client, round.number))
            if self.watch is not None:
                self.watch(run)
            for end in self.hooks("on_client_end"):
                end(self.orchestrator, run)
            update, result = self.collect(round, run, self.local.loss_scale())
            vector = run.params if update is None else update
            round.take(vector[None], [result], run.mean_loss[None], less=update is not None)
        self.orchestrator.tell_trained([client])

    @contextmanager
    def leaving_out(self, round: ClientsRound, client: int) -> Iterator[None]:
        """Leave a client out of the round if its part of the training, inside a ``with`` block, fails."""
        try:
            yield
        except Exception as error:
            if isinstance(error, RuleError) or stops(error):
                raise
            round.leave_out(client, error_text(error, self.orchestrator.client), error)

    def new_run(self, round: ClientsRound, client: int, work: Work | None = None) -> LocalRun:
        """Make the run of a client.

        Args:
            round: the round.
            client: the client's id.
            work: the client's work, if it is already known.
        """
        local = self.local
        work = work or self.data.work(client, round.number)
        anchor, buffers = self.hooks.start(client, round.anchor, round.state.buffers)
        run = LocalRun(local.module, local.flat, round.state, self.data.datamodule, client, round.number, anchor, work)
        if self.hooks.defines(*START_HOOKS):
            run.start_buffers = buffers
        return run

    def enter(self, run: LocalRun) -> None:
        """Give the module the model that a client starts from."""
        if run.start_buffers is not None:
            self.orchestrator.params.copy_(run.anchor)
            self.orchestrator.write_buffers(run.start_buffers)

    def collect(
        self, round: ClientsRound, run: LocalRun, loss_scale: tuple[float, int] | None = None
    ) -> tuple[Tensor | None, ClientResult]:
        """Collect the update (P,) and the values that a client sends; the hooks at the client's end have been called.

        Args:
            round: the round.
            run: the client's run.
            loss_scale: scale and growth tracker of the client's GradScaler; None without a GradScaler.

        Returns:
            The update, None if it is what the client has learned from the global model; the other values.
        """
        update: Any = run.params - run.anchor if self.hooks.defines(*SENT_HOOKS) else None
        for part in self.hooks.parts:
            part.keep(run, update)
        for upload in self.hooks("upload"):
            before = update
            version_before = update._version
            bytes_before = run.upload_bytes
            run.upload_bytes = None  # another update has its whole size, unless the hook that makes it says another
            update = upload(self.orchestrator, run, before)
            is_unchanged = update is before and update._version == version_before
            if is_unchanged and run.upload_bytes is None:
                run.upload_bytes = bytes_before
        result = run.result(loss_scale)
        for part in self.hooks.parts:
            part.hide(update, result, round.state.buffers)
        return update, result

    @contextmanager
    def training_of(
        self, round: ClientsRound, client: int, start: Tensor | None = None, work: Work | None = None
    ) -> Iterator[LocalRun]:
        """Let a client begin its training, to be continued inside a ``with`` block; then put the global model back.

        Args:
            round: the round.
            client: the client's id.
            start: (P,) parameters to start from, by default those of ``run.anchor``.
            work: the client's work, by default that of the round.
        """
        orchestrator = self.orchestrator
        run = None
        self._round = round
        if has_changed(orchestrator.params, round.anchor, self.local.flat.writes - self._writes):
            raise ConfigurationError(
                f"round {round.number}: the global model has changed before client {client} begins: a callback writes "
                "to it between two clients, such as in on_train_batch_end; change the model between rounds, or let a "
                "rule do it (refine)"
            )
        seed_globals(derive(orchestrator.seed, "client", round.number, client), orchestrator.device)
        try:
            run = self.new_run(round, client, work)
            self.enter(run)
            if start is not None:
                orchestrator.params.copy_(start)
            self.local.start(run, round.factors)
            for hook in self.hooks("on_client_start"):
                hook(orchestrator, run)
            yield run
        finally:
            self.local.end(run)
            self._warn_of(client, self.put_back(round))

    def train_again(
        self,
        run: LocalRun,
        start: Tensor,
        before_step: Callable[[LocalRun], None] | None = None,
        epochs: int | None = None,
    ) -> Tensor:
        """Train a second model of the client of a run; see :meth:`Server.train_again`."""
        orchestrator = self.orchestrator
        local = self._again
        round = self._round
        params, buffers = run.params.clone(), run.buffers  # of the first model, which is put back in the end
        local.steps.before_step_hooks = [] if before_step is None else [guard_hook(before_step)]
        work = run.work if epochs is None else replace(run.work, epochs=epochs, steps=None)
        again = self.new_run(round, run.client, work)
        try:
            round.state.restore()
            self.enter(again)
            orchestrator.params.copy_(start)
            with isolated(orchestrator.device):
                seed_globals(derive(orchestrator.seed, AGAIN, round.number, run.client), orchestrator.device)
                local.start(again, round.factors)
                local.train(again, partial(self.data.batches, run.client, round.number, purpose=AGAIN))
            return again.params.clone()
        finally:
            local.end(again)
            self.local.trainer.begin(run)
            round.state.restore()
            orchestrator.params.copy_(params)
            orchestrator.write_buffers(buffers)

    def put_back(self, round: ClientsRound) -> list[str]:
        """Put the global model back; return the names of the attributes that training has changed."""
        self.local.flat.clear_gradient()
        self.orchestrator.params.copy_(round.anchor)
        self._writes = self.local.flat.writes
        return round.state.restore()

    def _warn_of(self, client: int, changed: Sequence[str]) -> None:
        """Say once of each attribute that what a client counts or collects there does not reach the next client."""
        new = sorted(set(changed) - self._warned_of)
        if not new:
            return
        self._warned_of.update(new)
        label = self.data.datamodule.client_label(client)
        warnings.warn(
            f"client {label} changed {', '.join(new)}: every client starts from the global model's own value, so the "
            "change is dropped; register a buffer for what rounds should carry on",
            stacklevel=2,
        )
