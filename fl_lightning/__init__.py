"""fl-lightning: federated learning as plain Lightning. An epoch is a round, a batch is a client."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the one list of public names: type checkers run it, _homes reads it
    __version__: str

    # isort: off
    # a run
    from fl_lightning.engine.orchestrator import FederatedOrchestrator as FederatedOrchestrator
    from fl_lightning.datamodules import FederatedDataModule as FederatedDataModule
    from fl_lightning.datamodules import PartitionedData as PartitionedData
    from fl_lightning.engine.federation.batches import TrainingBatch as TrainingBatch
    from fl_lightning.runs.folder.run_folder import RunFolder as RunFolder
    from fl_lightning.runs.record.run_callbacks import run_callbacks as run_callbacks
    from fl_lightning.runs.record.environment import RunTracking as RunTracking
    from fl_lightning.runs.display.timer import RoundTimer as RoundTimer
    from fl_lightning.runs.display.traffic import TrafficMonitor as TrafficMonitor
    from fl_lightning.runs.export import export as export

    # finished runs
    from fl_lightning.report.python import load_runs as load_runs
    from fl_lightning.report.python import compare as compare
    from fl_lightning.report.python import write_report as write_report

    # base classes of rules and monitors, and the arguments of their hooks
    from fl_lightning.engine.rules.callback import FederatedCallback as FederatedCallback
    from fl_lightning.engine.rules.callback import Monitor as Monitor
    from fl_lightning.engine.rules.server import Server as Server
    from fl_lightning.engine.rules.run import LocalRun as LocalRun
    from fl_lightning.engine.updates.cohort import Cohort as Cohort
    from fl_lightning.engine.updates.cohort import ClientResult as ClientResult
    from fl_lightning.engine.module.state import Buffers as Buffers

    # errors, and checks of a rule's arguments
    from fl_lightning.errors import ConfigurationError as ConfigurationError
    from fl_lightning.errors import TrainingError as TrainingError
    from fl_lightning.errors import ClientFailure as ClientFailure
    from fl_lightning.errors import check_choice as check_choice
    from fl_lightning.errors import check_positive as check_positive
    from fl_lightning.errors import check_not_negative as check_not_negative
    from fl_lightning.errors import check_at_least as check_at_least
    from fl_lightning.errors import check_within as check_within
    from fl_lightning.errors import check_names as check_names

    # the other rules of a run
    from fl_lightning.engine.rules.callback import rules_of as rules_of
    from fl_lightning.engine.rules.callback import overrides as overrides

    # passes of a rule's own over data
    from fl_lightning.engine.validation import evaluating as evaluating
    from fl_lightning.seeding import isolated as isolated

    # the algebra of updates on their K×K Gram matrix
    from fl_lightning.engine.updates.gram import gram_of_mixed as gram_of_mixed
    from fl_lightning.engine.updates.gram import cosines as cosines
    from fl_lightning.engine.updates.gram import pairs as pairs
    from fl_lightning.engine.updates.gram import conflict_ratio as conflict_ratio
    from fl_lightning.engine.updates.gram import norms as norms
    from fl_lightning.engine.updates.gram import share_removed as share_removed
    from fl_lightning.engine.updates.gram import angle as angle
    from fl_lightning.engine.updates.gram import partners as partners
    from fl_lightning.engine.updates.gram import project_conflicts as project_conflicts

    # logging and saving in hooks
    from fl_lightning.runs.catalogue import Metric as Metric
    from fl_lightning.runs.loggers.round_values import is_due as is_due
    from fl_lightning.runs.loggers.round_values import log_each as log_each
    from fl_lightning.runs.loggers.round_values import log_figure as log_figure
    from fl_lightning.runs.loggers.round_values import log_table as log_table
    from fl_lightning.runs.loggers.round_values import save_arrays as save_arrays

    # samplers: which clients take part in a round
    from fl_lightning.engine.federation.cohorts import ClientSampler as ClientSampler
    from fl_lightning.datamodules.cohorts.sampling import UniformSampler as UniformSampler
    from fl_lightning.datamodules.cohorts.sampling import PoissonSampler as PoissonSampler
    from fl_lightning.datamodules.cohorts.sampling import SizeSampler as SizeSampler
    from fl_lightning.datamodules.cohorts.sampling import PowerOfChoice as PowerOfChoice
    from fl_lightning.datamodules.cohorts.sampling import RoundRobinSampler as RoundRobinSampler
    from fl_lightning.datamodules.cohorts.sampling import FixedSchedule as FixedSchedule
    from fl_lightning.datamodules.cohorts.arrivals import ArrivalSampler as ArrivalSampler
    from fl_lightning.datamodules.cohorts.arrivals import Arrivals as Arrivals

    # availability: which clients are there, drop out or are late
    from fl_lightning.datamodules.cohorts.availability import Availability as Availability
    from fl_lightning.datamodules.cohorts.availability import Diurnal as Diurnal
    from fl_lightning.datamodules.cohorts.availability import AvailabilityTrace as AvailabilityTrace
else:

    def _homes() -> dict[str, str]:
        """Return by public name the module that has it, from the text of the list above, which is not run here.

        Torch and Lightning take seconds to import: the command line answers or announces this before.
        """
        homes: dict[str, str] = {}
        for line in Path(__file__).read_text(encoding="utf-8").splitlines():
            match line.split():
                case ["from", module, "import", name, "as", _]:
                    homes[name] = module
        return homes

    HOMES = _homes()
    __all__ = list(HOMES)

    def __getattr__(name: str) -> Any:
        """Import a public name from the module that has it, on its first use."""
        if name in HOMES:
            return getattr(import_module(HOMES[name]), name)
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            with suppress(PackageNotFoundError):  # a checkout that is on the path, but not installed
                return version("fl-lightning")
        raise AttributeError(f"module 'fl_lightning' has no attribute '{name}'")
