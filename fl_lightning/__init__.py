"""fl-lightning: federated learning as plain Lightning. An epoch is a round, a batch is a client."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
LINKS = [
    f"fl_lightning/{name}" for name in ("callbacks", "configs", "datamodules", "models")
]  # plain folders in a wheel

# Where symbolic links are not permitted, as often on Windows, git and unpacking programs write text files instead.
if unlinked := " ".join(link for link in LINKS if not (HERE.parent / link).is_dir()):
    raise ImportError(
        "expected links to folders, found none: run `git config core.symlinks true`, then "
        f"`git checkout -- {unlinked}` (on Windows in developer mode), or install the wheel"
    )

if TYPE_CHECKING:  # otherwise imported on first use, by __getattr__
    __version__: str

    from fl_lightning.datamodules import FederatedDataModule, PartitionedData
    from fl_lightning.datamodules.cohorts.arrivals import ArrivalSampler
    from fl_lightning.datamodules.cohorts.availability import Availability, AvailabilityTrace, Diurnal
    from fl_lightning.datamodules.cohorts.sampling import (
        FixedSchedule,
        PoissonSampler,
        RoundRobinSampler,
        SizeSampler,
        UniformSampler,
    )
    from fl_lightning.engine.federation.batches import TrainingBatch
    from fl_lightning.engine.federation.cohorts import ClientSampler
    from fl_lightning.engine.orchestrator import FederatedOrchestrator
    from fl_lightning.engine.rules.callback import FederatedCallback, Monitor
    from fl_lightning.engine.rules.run import LocalRun
    from fl_lightning.engine.rules.server import Server
    from fl_lightning.engine.updates.cohort import ClientResult, Cohort
    from fl_lightning.engine.updates.gram import (
        angle,
        conflict_ratio,
        cosines,
        norms,
        pairs,
        partners,
        project_conflicts,
        share_removed,
    )
    from fl_lightning.errors import ClientFailure, ConfigurationError
    from fl_lightning.report.python import compare, load_runs, write_report
    from fl_lightning.runs.display.timer import RoundTimer
    from fl_lightning.runs.display.traffic import TrafficMonitor
    from fl_lightning.runs.export import export
    from fl_lightning.runs.folder.run_folder import RunFolder
    from fl_lightning.runs.loggers.round_values import is_due, log_each, log_figure, save_arrays
    from fl_lightning.runs.record.environment import RunTracking
    from fl_lightning.runs.record.run_callbacks import run_callbacks
else:
    REPORT = ("load_runs", "compare", "write_report")  # need pandas, which training does without, and no torch
    HOMES = (
        "errors",
        *("engine.federation.batches", "engine.federation.cohorts"),
        *("engine.updates.cohort", "engine.updates.gram"),
        *("engine.rules.callback", "engine.rules.run", "engine.rules.server"),
        *("runs.record.environment", "runs.record.run_callbacks", "runs.export", "runs.folder.run_folder"),
        *("runs.loggers.round_values", "runs.display.timer", "runs.display.traffic"),
        *("engine.orchestrator", "datamodules", "datamodules.cohorts.availability", "datamodules.cohorts.sampling"),
        "datamodules.cohorts.arrivals",
    )

    def __getattr__(name: str) -> Any:
        """Import a public name on its first use: torch and Lightning take seconds, which the command line announces."""
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            with suppress(PackageNotFoundError):  # a checkout that is on the path, but not installed
                return version("fl-lightning")
        for home in ["report.python"] if name in REPORT else HOMES if name in __all__ else []:
            if hasattr(module := import_module(f"fl_lightning.{home}"), name):
                return getattr(module, name)
        raise AttributeError(f"module 'fl_lightning' has no attribute '{name}'")


__all__ = [  # noqa: RUF022  # grouped by topic
    # a run
    "FederatedOrchestrator",
    "FederatedDataModule",
    "PartitionedData",
    "TrainingBatch",
    "RunFolder",
    "run_callbacks",
    "RunTracking",
    "RoundTimer",
    "TrafficMonitor",
    "ConfigurationError",
    "ClientFailure",
    "export",
    # finished runs
    "load_runs",
    "compare",
    "write_report",
    # base classes of rules and monitors, and the arguments of their hooks
    "FederatedCallback",
    "Monitor",
    "Server",
    "LocalRun",
    "Cohort",
    "ClientResult",
    # the algebra of updates on their K×K Gram matrix
    "cosines",
    "pairs",
    "conflict_ratio",
    "norms",
    "share_removed",
    "angle",
    "partners",
    "project_conflicts",
    # logging and saving in hooks
    "is_due",
    "log_each",
    "log_figure",
    "save_arrays",
    # samplers: which clients take part in a round
    "ClientSampler",
    "UniformSampler",
    "PoissonSampler",
    "SizeSampler",
    "RoundRobinSampler",
    "FixedSchedule",
    "ArrivalSampler",
    # availability: which clients are there, drop out or are late
    "Availability",
    "Diurnal",
    "AvailabilityTrace",
]
