"""RoundProgress: the progress display of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from typing_extensions import override

from fl_lightning.engine.data import PADDING
from fl_lightning.engine.server import Server
from fl_lightning.runs.catalogue import PROGRESS
from fl_lightning.runs.timer import RoundTimer

HIDDEN = ("v_num",)
GAP = "  "


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


class Display(Progress):
    """Progress bars, with a line of metrics below."""

    metrics: Sequence[str] = ()

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Fitting(self.metrics)


class RoundProgress(ProgressBar):
    """Shows the rounds, the round's clients and the time left, with a line of metrics and timings below.

    A narrow terminal shows fewer metrics. Prints one line per round when the output is not a terminal.

    Args:
        timer: the run's timer, which must come before RoundProgress among the Trainer's callbacks.
    """

    def __init__(self, timer: RoundTimer) -> None:
        super().__init__()
        self.timer = timer
        self._progress: Display | None = None
        self._enabled = True

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
        console = Console()
        if console.is_terminal:
            self._progress = Display(
                TextColumn("{task.description}"),
                BarColumn(bar_width=max(4, min(24, console.width - 40))),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
            total = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
            self._rounds = self._progress.add_task("rounds ", total=total, completed=trainer.current_epoch)
            self._clients = self._progress.add_task("clients")
            self._progress.start()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._progress:
            self._progress.reset(self._clients, total=self._cohort_size(trainer))

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._progress:
            done = sum(client != PADDING for client in batch) * trainer.world_size
            self._progress.advance(self._clients, done)
            if batch_idx + 1 < int(trainer.num_training_batches):
                self._progress.advance(self._rounds, done / self._cohort_size(trainer))

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done, last = cast(Server, pl_module).rounds_done, max(trainer.max_epochs or 0, 0)
        if done <= trainer.current_epoch:
            return  # the round was stopped half-way
        if self._progress:
            self._progress.metrics = [*self._metrics(trainer, pl_module), self.timer.spoken]
            self._progress.update(self._rounds, completed=done)
        elif self._enabled:
            words = [f"round {done}{f'/{last}' if last else ''}", *self._metrics(trainer, pl_module), self.timer.spoken]
            left = timedelta(seconds=round(self.timer.mean * (last - done)))
            print(GAP.join([*words, f"{left} left"] if last > done else words), flush=True)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None

    def _cohort_size(self, trainer: Trainer) -> int:
        return int(trainer.datamodule.cohort_size)  # type: ignore[attr-defined]

    def _metrics(self, trainer: Trainer, pl_module: LightningModule) -> list[str]:
        metrics = self.get_metrics(trainer, pl_module)
        names = [n for n in PROGRESS if n in metrics] + [n for n in metrics if n not in (*PROGRESS, *HIDDEN)]
        return [f"{name} {float(metrics[name]):.4f}" for name in names]  # type: ignore[arg-type]
