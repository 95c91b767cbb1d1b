"""Tell every logger which run it records: the method, the settings, the seed, the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

from fl_lightning.engine.rules.callback import rules_of
from fl_lightning.runs.config.settings import (
    RULES,
    method_name,
    named_settings,
    rule_arguments,
    seed_of,
    settings_fingerprint,
)
from fl_lightning.runs.loggers.mlflow import log_file, log_params


def log_settings(trainer: Trainer, config: Mapping[str, Any], file: Path) -> None:
    """Log a run's settings to all loggers: ``method``, ``settings`` (their hash), ``seed``, and each setting.

    TensorBoard and MLflow get the settings that affect the result, by dotted names such as ``FedProx.mu``, as
    hyper-parameters and as params. W&B and all other loggers get the whole config with its nesting, and the arguments
    of the rules as ``rules.FedProx.mu``. MLflow gets the file as an artifact.

    Args:
        trainer: the Trainer, on its first device.
        config: the config of the run.
        file: the file with the config.
    """
    rules = [type(rule).__name__ for rule in rules_of(trainer)]
    run = {
        "method": method_name(config, rules),
        "settings": settings_fingerprint(config),
        "seed": seed_of(config),
    }
    settings = named_settings(config, rules)
    del settings[RULES]  # which "method" tells
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            _log_hyperparameters(logger, run | settings)
        elif isinstance(logger, MLFlowLogger):
            log_params(logger, run | settings)
        else:
            logger.log_hyperparams({**config, **run, RULES: rule_arguments(config, rules)})
    log_file(trainer, file)


def log_environment(trainer: Trainer, facts: Mapping[str, Any], file: Path) -> None:
    """Add the environment of a run to W&B's config, and the file that holds it to MLflow's artifacts."""
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            logger.log_hyperparams({"environment": dict(facts)})
    log_file(trainer, file)


def _log_hyperparameters(logger: TensorBoardLogger, settings: Mapping[str, Any]) -> None:
    """Log the settings for TensorBoard's tab HPARAMS, without the list of columns that Lightning's logger would add.

    TensorBoard would take the columns of all runs from the first list that it finds; without a list, from all runs.
    """
    from torch.utils.tensorboard.summary import hparams  # imported here: the import is slow, and few runs need it

    plain = {}
    for name, value in settings.items():
        if value is not None:
            plain[name] = value if type(value) in (int, float) else str(value)
    _, session, _ = hparams(plain, {})  # type: ignore[no-untyped-call]  # it has no types
    logger.experiment.file_writer.add_summary(session)
