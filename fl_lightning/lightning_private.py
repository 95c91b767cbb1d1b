"""Lightning's private names (with a leading underscore) that this project needs, each behind a public name.

Lightning may change its private names in any release. They are used in this module only, and each has a test, so that
an upgrade fails in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from traceback import walk_stack
from types import FrameType, SimpleNamespace
from typing import Any, ClassVar

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.core.optimizer import (
    LightningOptimizer,
    _configure_optimizers,
    _configure_schedulers_automatic_opt,
    _configure_schedulers_manual_opt,
)
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.utilities import parsing
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

# The Trainer


def synchronizes_batchnorm(trainer: Trainer) -> bool:
    """Tell whether the Trainer was asked for ``sync_batchnorm``."""
    return trainer._accelerator_connector._layer_sync is not None


def requeues(trainer: Trainer) -> bool:
    """Tell whether the Trainer answers SLURM's signals by requeueing its job."""
    environment = trainer._accelerator_connector.cluster_environment
    return isinstance(environment, SLURMEnvironment) and environment.auto_requeue


def keep_samplers(trainer: Trainer) -> None:
    """Keep the Trainer from replacing the loaders' samplers by distributed samplers."""
    trainer._accelerator_connector.use_distributed_sampler = False


def set_step(trainer: Trainer, step: int) -> None:
    """Set the step number that the Trainer gives to its loggers."""
    trainer.fit_loop.epoch_loop._batches_that_stepped = step


def metrics_to_log(trainer: Trainer) -> dict[str, Any]:
    """Return the metrics that the Trainer gives to its loggers at the end of the current epoch."""
    return trainer._logger_connector.metrics["log"]


def begin_epoch(progress: dict[str, Any], done: int) -> None:
    """Change the saved progress of a fit loop, in place, so that training continues with the first batch of an epoch.

    Args:
        progress: the saved progress, as in ``checkpoint["loops"]["fit_loop"]``.
        done: number of complete epochs.
    """
    epochs, batches = progress["epoch_progress"], progress["epoch_loop.batch_progress"]
    before = batches["total"]["ready"] - batches["current"]["ready"]
    counts = ((epochs["total"], done), (epochs["current"], done), (batches["total"], before), (batches["current"], 0))
    for each, count in counts:
        each.update(dict.fromkeys(each, count))
    batches["is_last_batch"] = False


# LightningModule


class TransferringModule(LightningModule):
    """A LightningModule that chooses which of the Trainer's batches go through the transfer hooks."""

    def is_data(self, batch: Any) -> bool:
        """Whether a batch goes through the transfer hooks and to the device; other batches are passed on unchanged."""
        return True

    def on_batch_passed_on(self) -> None:
        """Do nothing until overridden; called when the Trainer has passed on a batch, before its callbacks get it."""

    def transfer(self, batch: Any) -> Any:
        """Bring a batch to the device, through the transfer hooks of the data module and of this module."""
        return super()._apply_batch_transfer_handler(super()._on_before_batch_transfer(batch), self.device)

    @override
    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        if self.is_data(batch):
            return super()._on_before_batch_transfer(batch, dataloader_idx)
        self.on_batch_passed_on()
        return batch

    @override
    def _apply_batch_transfer_handler(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        if not self.is_data(batch):
            return batch
        return super()._apply_batch_transfer_handler(batch, device, dataloader_idx)


def saved_hyper_parameters(module: LightningModule) -> tuple[str | None, dict[str, Any]]:
    """Return the hyper-parameters that a module saved.

    Returns:
        The name of the constructor's argument that held the hyper-parameters ("kwargs" for all arguments, None if
        unknown), and the values by name.
    """
    return getattr(module, "_hparams_name", None), dict(module.hparams)


def configured(made: Any, automatic: bool) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
    """Extract optimizers and schedules from a return value of ``configure_optimizers``, in any form Lightning accepts.

    Args:
        made: the return value, neither None nor a bare optimizer.
        automatic: whether the module uses automatic optimization.
    """
    optimizers, schedules, monitor = _configure_optimizers(made)
    if automatic:
        return optimizers, _configure_schedulers_automatic_opt(schedules, monitor)
    return optimizers, _configure_schedulers_manual_opt(schedules)


def hooked(optimizer: Optimizer, module: LightningModule, step: Callable[..., Any]) -> LightningOptimizer:
    """Wrap an optimizer as Lightning does for a module, so that ``step(optimizer, closure)`` takes its steps."""
    wrapped = LightningOptimizer(optimizer)
    wrapped._strategy = SimpleNamespace(lightning_module=module, optimizer_step=step)  # type: ignore[assignment]  # all that the wrapper needs of a strategy
    return wrapped


@contextmanager
def own_hyperparameters() -> Iterator[None]:
    """Let ``save_hyperparameters`` save the arguments of a module's own constructors.

    Lightning adds, and lets win, those of a module in whose constructor the module is made.
    """
    collect = parsing.collect_init_args

    def collect_own(frame: FrameType, path_args: Any, inside: bool = False, classes: Any = ()) -> list[dict[str, Any]]:
        constructors = (parsing._get_init_args(each) for each, _ in walk_stack(frame))
        first = next((each for each in constructors if isinstance(each[0], classes)), None)
        return (
            [first[1], *(args for _, args in takewhile(lambda each: each[0] is first[0], constructors))]
            if first
            else []
        )

    parsing.collect_init_args = collect_own
    try:
        yield
    finally:
        parsing.collect_init_args = collect


# ModelCheckpoint


class OptionalMonitorCheckpoint(ModelCheckpoint):
    """A ModelCheckpoint that saves nothing, instead of failing, while the monitored metric is not logged."""

    @override
    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        if self.monitor in monitor_candidates:
            super()._save_topk_checkpoint(trainer, monitor_candidates)


# MLFlowLogger


def continue_mlflow(logger: MLFlowLogger, run_id: str) -> None:
    """Let a logger that has not begun a run of MLflow continue a run, unless its arguments name another run."""
    logger._run_id = logger._run_id or run_id


# LightningCLI


class OpenCLI(LightningCLI):
    """A LightningCLI that offers its private methods as public hooks."""

    #: Subcommands beside the Trainer's own; they do not take the arguments of a Trainer method.
    own_subcommands: ClassVar[frozenset[str]] = frozenset()

    def add_own_arguments(self, subcommand: str, parser: LightningArgumentParser) -> list[str]:
        """Add the arguments that a subcommand takes beside those of a run and of the Trainer's method.

        Returns:
            The names of those that the method of one of ``own_subcommands`` takes.
        """
        return []

    def find_checkpoint(self) -> None:
        """Set ``ckpt_path`` in ``self.config`` after the command line is parsed; does nothing until overridden."""

    def set_seed(self) -> None:
        """Seed the global random number generators."""
        super()._set_seed()

    def run_subcommand(self, subcommand: str) -> None:
        """Run a subcommand."""
        super()._run_subcommand(subcommand)

    def parser_of(self, subcommand: str) -> LightningArgumentParser:
        """Return the parser of a subcommand's arguments."""
        return self._parser(subcommand)

    def setting(self, config: Any, name: str) -> Any:
        """Return a setting of the current subcommand; ``config`` is ``self.config`` or ``self.config_init``."""
        return self._get(config, name)

    @override
    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        if subcommand not in self.own_subcommands:
            parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
            self.add_own_arguments(subcommand, parser)
            return parser
        parser = self.init_parser(**kwargs)
        self._add_arguments(parser)
        self._subcommand_method_arguments[subcommand] = self.add_own_arguments(subcommand, parser)
        return parser

    @override
    def _add_instantiators(self) -> None:
        """Do nothing: Lightning would give the data module's arguments to the modules that its constructor makes."""

    @override
    def _parse_ckpt_path(self) -> None:
        self.find_checkpoint()

    @override
    def _set_seed(self) -> None:
        self.set_seed()

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        self.run_subcommand(subcommand)
