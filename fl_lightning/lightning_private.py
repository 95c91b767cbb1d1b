"""Lightning's private names (with a leading underscore) that the engine needs, each behind a public name.

Lightning may change its private names in any release. Each has a test, so that an upgrade fails there.
tests/test_lightning_private.py lists the few other modules that use or override such names.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.core.optimizer import (
    LightningOptimizer,
    _configure_optimizers,
    _configure_schedulers_automatic_opt,
    _configure_schedulers_manual_opt,
)
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

# The Trainer


def synchronizes_batchnorm(trainer: Trainer) -> bool:
    """Tell whether the Trainer was asked for ``sync_batchnorm``."""
    return trainer._accelerator_connector._layer_sync is not None


def started_from_outside(trainer: Trainer) -> bool:
    """Tell whether another program, such as SLURM or torchrun, has started this process as one of a run's."""
    return trainer._accelerator_connector.cluster_environment.creates_processes_externally


def keep_samplers(trainer: Trainer) -> None:
    """Keep the Trainer from replacing the loaders' samplers by distributed samplers."""
    trainer._accelerator_connector.use_distributed_sampler = False


def saves_by_time(callback: ModelCheckpoint) -> bool:
    """Tell whether a ModelCheckpoint was asked to save after a time."""
    return callback._train_time_interval is not None


def set_step(trainer: Trainer, step: int) -> None:
    """Set the step number that the Trainer gives to its loggers."""
    trainer.fit_loop.epoch_loop._batches_that_stepped = step


def begin_epoch(progress: dict[str, Any], done: int) -> None:
    """Change the saved progress of a fit loop, in place, so that training continues with the first batch of an epoch.

    Args:
        progress: the saved progress, as in ``checkpoint["loops"]["fit_loop"]``.
        done: number of complete epochs.
    """
    epochs = progress["epoch_progress"]
    batches = progress["epoch_loop.batch_progress"]
    before = batches["total"]["ready"] - batches["current"]["ready"]
    _set_all(epochs["total"], done)
    _set_all(epochs["current"], done)
    _set_all(batches["total"], before)
    _set_all(batches["current"], 0)
    batches["is_last_batch"] = False


def _set_all(counts: dict[str, int], count: int) -> None:
    """Set what Lightning counts of epochs or batches: ready, started, processed, completed."""
    counts.update(dict.fromkeys(counts, count))


# LightningModule


def transfer(module: LightningModule, batch: Any) -> Any:
    """Bring a batch to a module's device, through the transfer hooks of its data module and of the module itself."""
    batch = LightningModule._on_before_batch_transfer(module, batch)
    return LightningModule._apply_batch_transfer_handler(module, batch, module.device)


def log_again(module: LightningModule, name: str, value: Tensor) -> bool:
    """Log a scalar as ``module.log(name, value, batch_size=1)``, if the same hook has logged the name in this fit.

    ``log`` takes five times as long, since it moves the metric's state to the device of the value each time.

    Returns:
        Whether the hook has logged the name before; if not, nothing is logged.
    """
    hook = module._current_fx_name
    results = module.trainer._results
    if hook is None or results is None or results.dataloader_idx is not None or f"{hook}.{name}" not in results:
        return False
    connector = module.trainer._logger_connector
    if connector.should_reset_tensors(hook):
        results.reset(metrics=False, fx=hook)
    results.update_metrics(f"{hook}.{name}", value, 1)
    connector._current_fx = hook
    return True


def logging_hook(module: LightningModule) -> str | None:
    """Return the name of the hook that the Trainer calls at the moment, in which the module may log."""
    return module._current_fx_name


def saved_hyper_parameters(module: LightningModule) -> tuple[str | None, dict[str, Any]]:
    """Return the hyper-parameters that a module saved.

    Returns:
        The name of the constructor's argument that held the hyper-parameters ("kwargs" for all arguments, None if
        unknown), and the values by name.
    """
    return getattr(module, "_hparams_name", None), dict(module.hparams)


def optimizers_and_schedules(made: Any, automatic: bool) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
    """Extract optimizers and schedules from a return value of ``configure_optimizers``, in any form Lightning accepts.

    Args:
        made: the return value, neither None nor a bare optimizer.
        automatic: whether the module uses automatic optimization.
    """
    optimizers, schedules, monitor = _configure_optimizers(made)
    if automatic:
        return optimizers, _configure_schedulers_automatic_opt(schedules, monitor)
    return optimizers, _configure_schedulers_manual_opt(schedules)


def wrap_optimizer(optimizer: Optimizer, module: LightningModule, step: Callable[..., Any]) -> LightningOptimizer:
    """Wrap an optimizer as Lightning does for a module, so that ``step(optimizer, closure)`` takes its steps."""
    wrapped = LightningOptimizer(optimizer)
    wrapped._strategy = SimpleNamespace(lightning_module=module, optimizer_step=step)  # type: ignore[assignment]  # all that the wrapper needs of a strategy
    return wrapped
