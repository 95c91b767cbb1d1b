"""MLflow: open the store, continue a run, and add to a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import MLFlowLogger

from fl_lightning.errors import ConfigurationError

STORE = "sqlite:///mlflow.db"  # MLflow's own default; MLflow refuses folders, the default of Lightning's logger
TAGS = ("method", "settings", "seed")
RUN_NAME = "mlflow.runName"  # the tag that names a run


def mlflow_loggers(trainer: Trainer) -> list[MLFlowLogger]:
    """Return the Trainer's loggers for MLflow; empty on all devices but the first."""
    if not trainer.is_global_zero:
        return []
    return [logger for logger in trainer.loggers if isinstance(logger, MLFlowLogger)]


def mlflow_facts(trainer: Trainer) -> dict[str, Any]:
    """Return the id and the store of the MLflow run, for environment.yaml; empty without MLflow."""
    for logger in mlflow_loggers(trainer):
        return {"mlflow": {"id": logger.run_id, "store": logger.experiment.tracking_uri}}
    return {}


def log_params(logger: MLFlowLogger, settings: Mapping[str, Any]) -> None:
    """Log settings as params of an MLflow run; method, settings and seed as tags, too.

    MLflow changes no param, so a continued run keeps its first params. Tags can change. Unless the user names the run,
    the name is the method and the seed: MLflow would draw the same name for all runs with the same seed.
    """
    known = logger.experiment.get_run(logger.run_id).data.params
    logger.log_hyperparams({name: value for name, value in settings.items() if name not in known})
    tags = {name: settings[name] for name in TAGS}
    if not known and RUN_NAME not in (logger.tags or {}):
        tags[RUN_NAME] = f"{settings['method']}, seed {settings['seed']}"
    for name, value in tags.items():
        logger.experiment.set_tag(logger.run_id, name, value)


def log_file(trainer: Trainer, path: Path) -> None:
    """Add a file to the artifacts of the MLflow run, in place of an earlier file of the same name."""
    for logger in mlflow_loggers(trainer):
        logger.experiment.log_artifact(logger.run_id, str(path))


def open_store(loggers: Any, run_id: str | None) -> str | None:
    """Open the store of an MLFlowLogger; the default store is ``mlflow.db`` in the working directory.

    Args:
        loggers: ``trainer.logger`` of a config; an MLFlowLogger without ``tracking_uri`` gets the default.
        run_id: id of the run to continue, if any.

    Returns:
        The id; None if the store has no such run.

    Raises:
        ConfigurationError: MLflow is not installed, or the store cannot be used.
    """
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        if "MLFlowLogger" not in str(getattr(logger, "class_path", None)):
            continue
        if find_spec("mlflow") is None:
            raise ConfigurationError("MLFlowLogger needs mlflow: pip install 'fl-lightning[mlflow]'")
        arguments = logger.init_args
        arguments.tracking_uri = arguments.tracking_uri or STORE
        with _alone(arguments.tracking_uri):
            known = _open(arguments.tracking_uri, arguments.experiment_name, arguments.artifact_location, run_id)
        if not known:
            print(f"MLflow: run {run_id} is not in {arguments.tracking_uri}: this run is a new one there")
            run_id = None
    return run_id


def continue_mlflow(logger: MLFlowLogger, run_id: str) -> None:
    """Let a logger that has not begun a run of MLflow continue a run, unless its arguments name another run."""
    logger._run_id = logger._run_id or run_id


def _open(store: str, experiment: str, artifacts: str | None, run_id: str | None) -> bool:
    """Make the store and the experiment if they are missing; return whether the store has a run (True for None)."""
    from mlflow import MlflowClient, MlflowException  # here, because the import is slow, and few runs need it

    try:
        client = MlflowClient(store)
        if client.get_experiment_by_name(experiment) is None:
            client.create_experiment(experiment, artifacts)
    except (MlflowException, ImportError) as error:  # ImportError: the driver of a database
        raise ConfigurationError(f"MLFlowLogger: {store} cannot be used: {error}") from None
    try:
        return run_id is None or client.get_run(run_id) is not None
    except MlflowException:
        return False


def _alone(store: str) -> AbstractContextManager[Any]:
    """Keep other processes from opening a database file at the same time: each would make the same tables."""
    file = store.removeprefix("sqlite:///")
    return FileLock(f"{file}.lock") if file != store else nullcontext()
