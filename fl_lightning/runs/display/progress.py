"""The live display of a run, and of many runs: bars with times in a terminal, or else plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text
from typing_extensions import override

from fl_lightning.commands import duration, shows_bars
from fl_lightning.engine.rules.server import Server
from fl_lightning.runs.catalogue import corrected
from fl_lightning.runs.display.timer import RoundTimer
from fl_lightning.runs.folder.run_folder import RunFolder
from fl_lightning.runs.loggers.wandb import dashboard_hints

SHOWN_FIRST = ("val/top1", "conflict/ratio", "train/loss")  # the most important first
HIDDEN = ("v_num",)
GAP = "  "
SHOWN_METRICS = 3  # validation metrics that are shown if the module has chosen none by prog_bar
SOON_S = 2.0  # seconds of training below which the first clients, which warm up, foretell nothing
LONG_S = 600.0  # seconds of a run without a GPU above which the options that make it shorter are named
TENTH_S = 30.0  # seconds of a tenth of a round above which a pipe gets a line for each tenth
# Begin the line that foretells how long a round and the run take, and its advice.
ESTIMATE, ADVICE = "estimate: ", "make it shorter by "


def time_left(pace: float, done: float, total: int, since: float) -> float:
    """Estimate the time until the last round ends.

    Rounds of 40 s, of which the third is half done: 7.5 rounds are left. Ten seconds later it is 10 s less; much later,
    the third round cannot be over yet, and the seven rounds after it are still to come:

    >>> time_left(40.0, 2.5, 10, 0.0), time_left(40.0, 2.5, 10, 10.0), time_left(40.0, 2.5, 10, 500.0)
    (300.0, 290.0, 280.0)

    Args:
        pace: seconds per round.
        done: number of finished rounds, plus the finished share of the current round.
        total: number of all rounds.
        since: seconds since ``done`` last changed.

    Returns:
        Seconds; at least the time of the rounds after the current one.
    """
    return max(pace * (total - done) - since, pace * (total - 1 - int(done)), 0.0)


@dataclass(frozen=True)
class Fitting:
    """Shows as many texts as fit on one line of the terminal.

    Attributes:
        texts: the texts, the most important first.
    """

    texts: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Make the line for a terminal of this width."""
        line = ""
        for text in self.texts:
            longer = f"{line}{GAP}{text}" if line else text
            if len(longer) > options.max_width:
                break
            line = longer
        yield Text(line, no_wrap=True, overflow="ellipsis")


class Time(ProgressColumn):
    """Shows a time of a task, such as "0:00:20 left".

    Rich's own estimate of the time left needs steps that are less than 30 s apart.

    Args:
        field: name of the task's field with a function that returns seconds, or None for an unknown time. A task
            without the field shows nothing.
    """

    def __init__(self, field: str) -> None:
        super().__init__(Column(no_wrap=True))
        self.field = field

    @override
    def render(self, task: Task) -> Text:
        if self.field not in task.fields:
            return Text()
        seconds = task.fields[self.field]()
        shown = "-:--:--" if seconds is None else timedelta(seconds=round(seconds))
        return Text(f"{shown} {self.field}", "progress.remaining" if self.field == "left" else "progress.elapsed")


class Display(Progress):
    """Shows progress bars with times, and other lines below the bars, if the output is a terminal.

    The descriptions of the tasks say how much is done. A narrow terminal shows shorter bars; a narrower one leaves out
    the elapsed time, then the bars.

    Args:
        stderr: whether the display is on standard error in place of standard output.
        transient: whether the display disappears at the end.

    Attributes:
        below: lines below the bars.
        disable: whether there is no terminal; then all that is said goes to standard output, line by line.
    """

    below: RenderableType = ""

    def __init__(self, stderr: bool = False, transient: bool = False) -> None:
        watched = shows_bars(sys.stderr if stderr else sys.stdout)  # a console is one also if FORCE_COLOR is set
        self._console = console = Console(stderr=stderr, force_terminal=watched)
        words, bar = TextColumn("{task.description}"), BarColumn(None, table_column=Column(max_width=40))
        # Columns, each with the width that the terminal needs to show it.
        self._choices = ((words, 0), (bar, 40), (Time("left"), 0), (Time("elapsed"), 60))
        super().__init__(console=console, transient=transient, disable=not console.is_terminal)

    def say(self, words: str, style: str | None = None) -> None:
        """Print a line, above the display if there is one."""
        if self.disable:
            print(words, flush=True)
        else:
            self.console.print(words, style=style, highlight=False, markup=False)

    @override
    def stop(self) -> None:
        if not self.disable:  # rich would print an empty line
            super().stop()

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        self.columns = tuple(column for column, width in self._choices if self._console.width >= width)
        yield from super().get_renderables()
        yield self.below


class RoundProgress(ProgressBar):
    """Shows the rounds, the round's clients and the time left, with a line of metrics and timings below.

    A narrow terminal shows fewer metrics. Prints one line per round when the output is not a terminal, and one per
    tenth of the clients in a long round. A line says once how long a round and the run take: after the first client, or
    group of clients, that ends ``SOON_S`` after the start, or else after the first round. The last names the folder.

    Args:
        timer: the run's timer, which must come before RoundProgress among the Trainer's callbacks.
    """

    def __init__(self, timer: RoundTimer) -> None:
        super().__init__()
        self.timer = timer
        self._display: Display | None = None  # while a fit is shown
        self._enabled = True
        self._told = False  # whether the estimate has been shown

    @override
    def disable(self) -> None:
        self._enabled = False  # called on all devices but the first

    @override
    def enable(self) -> None:
        self._enabled = True

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._enabled:
            return
        self._first = trainer.current_epoch
        self._last = max(trainer.max_epochs or 0, 0)
        self._began = time.perf_counter()
        self._trained = 0
        self._told = False
        self._reach(self._first)
        self._display = Display()
        self._rounds = self._display.add_task(
            "", total=self._last or None, left=self._seconds_left, elapsed=self._seconds_since_start
        )
        self._clients = self._display.add_task("")
        self._show(trainer)
        self._display.start()
        if self._display.disable:
            which = f"rounds {self._first + 1} to {self._last}" if self._last else f"from round {self._first + 1}"
            size = self._cohort_size(trainer)
            self._display.say(f"training {which}, {size} client{'' if size == 1 else 's'} each …")

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._display:
            return
        self._trained = 0
        self._steps_done = 0
        self._steps = dict[int, int]()
        if not self.timer.rounds:  # later rounds have a mean to go by
            orchestrator = cast(Any, pl_module)
            for client in trainer.datamodule.cohort(orchestrator.round):  # type: ignore[attr-defined]  # set by the Trainer
                self._steps[client] = orchestrator.num_steps(client, orchestrator.round)
        self._all_steps = sum(self._steps.values()) or self._cohort_size(trainer)
        self._show(trainer)

    def on_clients_trained(self, trainer: Trainer, pl_module: LightningModule, clients: Sequence[int]) -> None:
        """Show that clients of this device have trained; other devices are taken to be as far.

        Args:
            trainer: the Trainer.
            pl_module: the orchestrator.
            clients: the clients' ids.
        """
        if not self._display:
            return
        cohort = self._cohort_size(trainer)
        before = self._trained
        self._trained = min(before + len(clients) * trainer.world_size, cohort)
        self._steps_done += sum(self._steps.get(client, 1) for client in clients) * trainer.world_size
        if self._trained < cohort:  # otherwise the round ends after the evaluation
            self._reach(trainer.current_epoch + min(self._steps_done, self._all_steps - 1) / self._all_steps)
            if self._reached - self._began >= SOON_S:
                self._foretell(trainer, pl_module)
            tenth = 10 * self._trained // cohort > 10 * before // cohort
            if self._display.disable and tenth and (self._pace or 0) >= 10 * TENTH_S:
                done = f"round {trainer.current_epoch + 1}{self._of_all}"
                self._display.say(GAP.join([done, f"clients {self._trained}/{cohort}", *self._time_left()]))
        self._show(trainer)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done = cast(Server, pl_module).rounds_done
        if not self._display or done <= trainer.current_epoch:
            return  # the round was stopped half-way
        self._reach(done)
        if done != self._last:
            self._foretell(trainer, pl_module)
        words = [*self._metrics(trainer, pl_module), self.timer.medians]
        if self._display.disable:
            left = self._time_left() if self._last > done else []
            self._display.say(GAP.join([f"round {self._so_far}", *words, *left]))
        self._display.below = Fitting(words)
        self._show(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._display:
            self._display.stop()
            self._display = None

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._enabled:
            return
        for hint in dashboard_hints(trainer):
            print(hint, flush=True)
        for logger in trainer.loggers:
            if isinstance(logger, RunFolder) and logger.has_rounds:
                print(f"run folder: {os.path.relpath(logger.log_dir)}", flush=True)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)

    def _foretell(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say once how long a round and the run take, and which options make a long run without a GPU shorter."""
        if self._told or not self._display or not (pace := self._pace):
            return
        self._told = True
        rounds = self._last - self._first
        words = f"{ESTIMATE}{duration(pace)} a round"
        if rounds > 1:
            words += f", {duration(pace * rounds)} for {rounds} rounds"
        if not self.timer.rounds:
            words += ", without evaluation"
        if pl_module.device.type == "cpu" and pace * max(rounds, 1) > LONG_S:
            data = trainer.datamodule  # type: ignore[attr-defined]  # set by the Trainer
            fewer = " or --data.train_examples" if hasattr(data, "train_examples") else ""
            words += f"; {ADVICE}--trainer.max_epochs{fewer}"
        self._display.say(words)

    def _show(self, trainer: Trainer) -> None:
        if self._display:
            cohort = self._cohort_size(trainer)
            self._display.update(self._rounds, description=f"rounds {self._so_far}", completed=self._done)
            words = f"clients {self._trained}/{cohort}"
            self._display.update(self._clients, description=words, completed=self._trained, total=cohort)

    def _reach(self, done: float) -> None:
        self._done = done
        self._reached = time.perf_counter()

    @property
    def _so_far(self) -> str:
        return f"{int(self._done)}{self._of_all}"

    @property
    def _of_all(self) -> str:
        return f"/{self._last}" if self._last else ""

    def _seconds_since_start(self) -> float:
        return time.perf_counter() - self._began

    @property
    def _pace(self) -> float | None:
        """Seconds per round: the mean of this fit's last rounds, or those of the first clients; None before them."""
        if self.timer.rounds:
            return self.timer.mean
        if self._done <= self._first:
            return None
        return (self._reached - self._began) / (self._done - self._first)

    def _seconds_left(self) -> float | None:
        """Estimate the seconds until the last round ends; None before the first client is done, or without an end."""
        pace = self._pace
        if not pace or not self._last:
            return None
        return time_left(pace, self._done, self._last, time.perf_counter() - self._reached)

    def _time_left(self) -> list[str]:
        left = self._seconds_left()
        return [] if left is None else [f"{timedelta(seconds=round(left))} left"]

    def _cohort_size(self, trainer: Trainer) -> int:
        return int(trainer.datamodule.cohort_size)  # type: ignore[attr-defined]

    def _metrics(self, trainer: Trainer, pl_module: LightningModule) -> list[str]:
        metrics = self.get_metrics(trainer, pl_module)
        if not any(name.startswith("val") for name in metrics):  # the module logs them without prog_bar
            names = [name for name in trainer.callback_metrics if name.startswith("val")]
            metrics |= {name: float(trainer.callback_metrics[name]) for name in names[:SHOWN_METRICS]}
        ranks = {name: rank for rank, name in enumerate(SHOWN_FIRST)}
        shown = [name for name in metrics if name not in HIDDEN]
        shown.sort(key=lambda name: (not name.startswith("val"), ranks.get(name, len(ranks))))
        words = []
        for name in shown:
            before = after = f"{float(metrics[name]):.4f}"  # type: ignore[arg-type]
            if (of_corrected := corrected(name)) in trainer.callback_metrics:
                after = f"{float(trainer.callback_metrics[of_corrected]):.4f}"
            words.append(f"{name} {before}" if after == before else f"{name} {before} → {after}")
        return words
