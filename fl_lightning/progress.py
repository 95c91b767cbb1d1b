"""RoundProgress: what a run shows while it runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fl_lightning.data import PADDING
from fl_lightning.timing import RoundTimer

SHOWN = ("val/top1", "conflict/ratio", "train/loss")  # first; what else a module logs with prog_bar=True follows
HIDDEN = ("v_num",)


class RoundProgress(ProgressBar):
    """Rounds, clients within the round, accuracy, conflict ratio, where the time goes and how much is left.

    Plain lines, one a round, where nobody watches.

    Args:
        timer: the run's own; it comes before this one among the Trainer's callbacks.
    """

    def __init__(self, timer: RoundTimer) -> None:
        super().__init__()
        self.timer = timer
        self._progress: Progress | None = None
        self._enabled = True

    def disable(self) -> None:
        """Lightning's hook, on all devices but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Lightning's hook."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's hook."""
        if not self._enabled:
            return
        console = Console()
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[metrics]}"),
                console=console,
            )
            total = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
            self._rounds = self._progress.add_task("rounds ", total=total, completed=trainer.current_epoch, metrics="")
            self._clients = self._progress.add_task("clients", metrics="")
            self._progress.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's hook."""
        if self._progress:
            self._progress.reset(self._clients, total=self._cohort_size(trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook."""
        if self._progress:
            done = sum(client != PADDING for client in batch) * trainer.world_size
            self._progress.advance(self._clients, done)
            if batch_idx + 1 < int(trainer.num_training_batches):
                self._progress.advance(self._rounds, done / self._cohort_size(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's hook."""
        if self._progress:
            metrics = f"{self._metrics(trainer, pl_module)}  {self.timer.spoken}"
            self._progress.update(self._rounds, completed=trainer.current_epoch + 1, metrics=metrics)
        elif self._enabled:
            done, last = trainer.current_epoch + 1, max(trainer.max_epochs or 0, 0)
            line = f"round {done}{f'/{last}' if last else ''}  {self._metrics(trainer, pl_module)}  {self.timer.spoken}"
            left = timedelta(seconds=round(self.timer.mean * (last - done)))
            print(f"{line}  {left} left" if last > done else line, flush=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's hook."""
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Lightning's hook."""
        self._stop()

    def _stop(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None

    def _cohort_size(self, trainer: Trainer) -> int:
        return int(trainer.datamodule.cohort_size)  # type: ignore[attr-defined]

    def _metrics(self, trainer: Trainer, pl_module: LightningModule) -> str:
        metrics = self.get_metrics(trainer, pl_module)
        names = [n for n in SHOWN if n in metrics] + [n for n in metrics if n not in (*SHOWN, *HIDDEN)]
        return "  ".join(f"{name} {float(metrics[name]):.4f}" for name in names)  # type: ignore[arg-type]
