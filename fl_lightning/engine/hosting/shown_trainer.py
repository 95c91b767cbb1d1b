"""ClientTrainer: the Trainer as the client module sees it through ``self.trainer``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.enums import GradClipAlgorithmType

from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.rules.work import LocalSettings, Work
from fl_lightning.errors import ConfigurationError

#: The Trainer's attributes that describe the client's own training, while there is one.
LOCAL: dict[str, Callable[[Work, LocalRun | None], Any]] = {
    "current_epoch": lambda work, run: run.epoch if run else 0,
    "global_step": lambda work, run: run.global_step if run else 0,
    "is_last_batch": lambda work, run: run.is_last_batch if run else False,
    "should_stop": lambda work, run: run.should_stop if run else False,
    "optimizers": lambda work, run: list(run.optimizers) if run else [],
    "lr_scheduler_configs": lambda work, run: list(run.schedules) if run else [],
    "run": lambda work, run: run,
    "max_epochs": lambda work, run: work.max_epochs,
    "max_steps": lambda work, run: work.max_steps,
    "num_training_batches": lambda work, run: work.num_batches,
    "estimated_stepping_batches": lambda work, run: work.optimizer_steps,
    "accumulate_grad_batches": lambda work, run: work.settings.accumulate,
    "gradient_clip_val": lambda work, run: work.settings.clip,
    "gradient_clip_algorithm": lambda work, run: (
        None if work.settings.clip is None else GradClipAlgorithmType(work.settings.clip_algorithm)
    ),
    "train_dataloader": lambda work, run: work.loader(),
    **dict.fromkeys(("min_epochs", "min_steps"), lambda work, run: None),
    **dict.fromkeys(("world_size", "num_devices", "num_nodes"), lambda work, run: 1),
    **dict.fromkeys(("global_rank", "local_rank", "node_rank"), lambda work, run: 0),
}

#: The Trainer's metrics so far. A module sees those of the rounds before a stop, too; callbacks such as EarlyStopping
#: do not, since nothing may log them any more.
METRICS = ("callback_metrics", "logged_metrics", "progress_bar_metrics")

#: The Trainer's attributes that count clients while no client trains, which a client module does not expect.
ONLY_LOCAL = ("num_training_batches", "estimated_stepping_batches", "train_dataloader")


class ClientTrainer:
    """Shows a client module its own training: sizes, progress and optimizers are the client's, all else is the run's.

    While a client trains, and while the module is set up for a fit, the attributes in ``LOCAL`` describe the client's
    training in this round, as if ``Trainer.fit`` trained this client alone. In evaluation, they describe the run.

    Args:
        trainer: the run's Trainer.
        settings: the local work of every client.

    Attributes:
        asked: names of the attributes in ``LOCAL`` that the module has asked for.
        current: the client that trains at the moment, if any.
        logs: takes what the module logs while a client trains, or several do at once.
        earlier: the metrics of the rounds before a stop, by the names in ``METRICS``.
    """

    asked: set[str]
    current: LocalRun | None
    logs: Any
    earlier: dict[str, Any]

    def __init__(self, trainer: Trainer, settings: LocalSettings) -> None:
        vars(self).update(_trainer=trainer, _settings=settings, asked=set[str](), earlier={})
        self.end()

    @property  # type: ignore[misc]  # a module may ask isinstance(self.trainer, Trainer)
    def __class__(self) -> type:
        return Trainer

    def begin(self, run: LocalRun | None = None, logs: Any = None) -> None:
        """Show a client's training; without a run, that of any client: sizes of a client's data are then refused.

        Args:
            run: the client's run.
            logs: takes what the module logs, in place of the run.
        """
        work = run.work if run else vars(self)["_settings"].work()
        vars(self).update(_work=work, current=run, logs=logs or run)

    def end(self) -> None:
        """Show the run."""
        vars(self).update(_work=None, current=None, logs=None)

    @contextmanager
    def showing_run(self) -> Iterator[None]:
        """Show the run inside a ``with`` block, also while a client trains."""
        before = {name: vars(self)[name] for name in ("_work", "current", "logs")}
        self.end()
        try:
            yield
        finally:
            vars(self).update(before)

    def __getattr__(self, name: str) -> Any:
        if "_trainer" not in vars(self):  # a copy that is being made
            raise AttributeError(name)
        work = vars(self)["_work"]
        if name == "fit_loop" or (name in ONLY_LOCAL and work is None):
            raise ConfigurationError(
                f"self.trainer.{name} would count clients, not batches: in configure_optimizers or a training hook, "
                "ask for self.trainer.num_training_batches, estimated_stepping_batches or max_epochs, which are the "
                "client's own"
            )
        if name in LOCAL and (work is not None or name == "run"):
            vars(self)["asked"].add(name)
            return LOCAL[name](work, self.current)
        value = getattr(vars(self)["_trainer"], name)
        return {**self.earlier.get(name, {}), **value} if name in METRICS else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "should_stop" and self.current is not None:
            self.current.should_stop = value
        else:
            setattr(vars(self)["_trainer"], name, value)
