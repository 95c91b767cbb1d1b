"""FederatedCLI: ``fl-lightning fit``, ``validate``, ``test``, ``predict`` and ``data``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger, MLFlowLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.model_helpers import is_overridden
from typing_extensions import override

# Imported so that YAML finds all shipped classes by their short names.
import fl_lightning.callbacks
import fl_lightning.datamodules
import fl_lightning.models  # noqa: F401
from fl_lightning.commands import counted
from fl_lightning.datamodules import FederatedDataModule
from fl_lightning.engine.checks import check_once, check_trainer
from fl_lightning.engine.devices.forks import can_fork
from fl_lightning.engine.devices.strategy import ClientParallelStrategy, ForkedStrategy
from fl_lightning.engine.federation.batches import CPU
from fl_lightning.engine.orchestrator import FederatedOrchestrator
from fl_lightning.errors import ConfigurationError, check_at_least, values_of
from fl_lightning.fit import overview
from fl_lightning.fit.allocator import keep_freed_memory
from fl_lightning.fit.configs import KEYS, name_of, resolve_configs
from fl_lightning.fit.helps.page import GroupHelp
from fl_lightning.fit.messages import ParsingError
from fl_lightning.fit.own_data import RESET, begin_anew, fit_network, load_data, replaces_data, what_stays_behind
from fl_lightning.fit.parser import Parser, class_help
from fl_lightning.fit.processes import choose_processes, count_cores, may_be_copied
from fl_lightning.fit.stop_signals import Stopping
from fl_lightning.lightning_private import started_from_outside
from fl_lightning.runs.config.earlier import bring_up_to_date
from fl_lightning.runs.config.resuming import Resumed, changed_settings, check_unchanged, tracked_run
from fl_lightning.runs.folder.checkpoints import checkpoint_of, last_of_run
from fl_lightning.runs.folder.files import CONFIG, NOT_RECORDED, read_mapping
from fl_lightning.runs.folder.lock import Holds
from fl_lightning.runs.folder.run_folder import RunFolder, check_experiment
from fl_lightning.runs.folder.yaml_text import read_yaml
from fl_lightning.runs.loggers.mlflow import continue_mlflow, open_store
from fl_lightning.runs.loggers.wandb import continue_wandb, offline_without_key
from fl_lightning.runs.record.environment import SaveConfig
from fl_lightning.runs.record.run_callbacks import run_callbacks
from fl_lightning.seeding import isolated

TRAINER_DEFAULTS: dict[str, Any] = {
    "default_root_dir": "runs",
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
    "enable_model_summary": False,
}
PLOT = "partition.png"
STAND_IN = "lightning.pytorch.demos.boring_classes.BoringModel"  # client module of ``data`` if none is given


KEPT = (
    "several devices: what code of your own computes once and keeps (a cache of augmented examples, a global that the "
    "first batch fills) is another thing on each; the first round checks what it can see"
)


class CommandTrainer(Trainer):
    """A Trainer with the command ``data``, which Lightning's Trainer lacks."""

    def data(self, model: LightningModule, datamodule: FederatedDataModule, plot: str | None) -> None:
        """Show the clients, examples and classes of a run, without training.

        Args:
            model: the orchestrator.
            datamodule: the data module.
            plot: PNG file for the bubble plot; None for ``partition.png`` in the experiment's folder.
        """
        datamodule.prepare_data()
        datamodule.setup("fit")
        experiment = self.logger.root_dir if isinstance(self.logger, RunFolder) else self.default_root_dir
        overview.show(datamodule, Path(plot or os.path.relpath(Path(experiment, PLOT))))


class FederatedCLI(LightningCLI):
    """A LightningCLI whose ``model:`` is the orchestrator and whose ``data:`` is a FederatedDataModule.

    One seed (``seed_everything``) governs all randomness. Every run gets a folder, checkpoints and a progress display.
    ``--ckpt_path last`` continues the experiment's last run; the command line overrides the settings of that run.

    Args:
        args: the command line, with configs given as paths.
        holds: the locks of the process, to which that of the run folder is added; None for no lock.
    """

    own_groups: Mapping[str, type] = {}  # classes whose arguments a subclass takes as further groups of options

    def __init__(self, args: Sequence[str], holds: Holds | None = None) -> None:
        self.args = args
        self.holds = holds
        self.other_data: FederatedDataModule | None = None  # data that stand in for a config's, loaded
        self.has_fetched = False  # whether the data that were missing have been fetched
        self.has_loaded = False  # whether the training set has been loaded before the Trainer does so
        self.stopping = Stopping()
        self.resumed: Resumed | None = None
        self.changed: dict[str, Any] | None = None  # settings that a resumed run may change; None if it may change none
        self.mlflow_run: str | None = None  # id of the MLflow run that goes on
        known = self.subcommands()
        if known.keys() & args[:1]:  # the parsers of the others take 0.15 s
            self.subcommands = lambda: {args[0]: known[args[0]]}  # type: ignore[method-assign]
        super().__init__(
            FederatedOrchestrator,
            FederatedDataModule,
            args=list(args),
            subclass_mode_data=True,
            parser_class=Parser,
            trainer_defaults=TRAINER_DEFAULTS,
            save_config_callback=SaveConfig,
            trainer_class=CommandTrainer,
            seed_everything_default=1,
            auto_configure_optimizers=False,
        )

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--experiment", type=str | None, default=None, help="Name of the experiment, by default the config's."
        )
        parser.add_argument(
            "--num_threads",
            type=int,
            default=int(os.environ.get("OMP_NUM_THREADS", "1")),
            help="CPU threads of each process. Several devices make better use of many cores, and change no result.",
        )
        for group in ("trainer", "model"):
            parser.add_argument(f"--{group}.help", action=GroupHelp, help=f"Show the options of the {group} and exit.")
        for key, words in KEYS.items():
            if key not in self.own_groups:
                parser.add_argument(f"--{key}", type=Any, help=f"In a config: {words}.")
        for group, options in self.own_groups.items():
            parser.add_class_arguments(options, group)
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)

    @staticmethod
    @override
    def subcommands() -> dict[str, set[str]]:
        return {**LightningCLI.subcommands(), "data": {"model", "datamodule"}}

    @override
    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        if subcommand == "data":
            # Lightning would name a group of the method's arguments "data", as the data module's group is named.
            parser = self.init_parser(**kwargs)
            self._add_arguments(parser)
            parser.set_defaults({"model.client": {"class_path": STAND_IN}})  # the data are shown without a model
            about = f"PNG file of the bubble plot, by default runs/<experiment>/{PLOT}."
            parser.add_argument("--plot", type=str | None, default=None, help=about)
            self._subcommand_method_arguments[subcommand] = ["plot"]
            return parser
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "fit":
            parser.add_argument(
                "--resume_changed",
                type=bool,
                default=False,
                help="Whether a run that goes on may change settings or data that affect its results; each change is "
                "recorded in environment.yaml.",
            )
        return parser

    def made(self, option: str) -> Any:
        """Return what an option of the config stands for."""
        return self._get(self.config_init, option)

    @override
    def _add_instantiators(self) -> None:
        """Do nothing: Lightning would give the data module's arguments to the modules that its constructor makes."""

    @override
    def _parse_ckpt_path(self) -> None:
        """Find the checkpoint and the run folder. (Lightning would let the checkpoint's hyper-parameters win here.)"""
        trains = self.config.subcommand == "fit"
        config = self.config[self.config.subcommand]
        if replaces_data(self.args):
            if config.trainer.enable_progress_bar is not False:
                rank_zero_only(print)(f"loading {config.data.class_path.rpartition('.')[2]} …", flush=True)
            self.other_data = load_data(config.data)
            if RESET in self.args:
                rank_zero_only(print)(what_stays_behind(self.args), flush=True)
            fit_network(config.model.client, self.other_data, self.args)
        root = Path(config.trainer.default_root_dir or TRAINER_DEFAULTS["default_root_dir"])
        config.experiment = config.experiment or name_of(config.get("config") or ())
        check_experiment(config.experiment)
        self.resumed = Resumed.of(config, root / config.experiment, trains)
        if self.resumed is not None:
            config.ckpt_path = str(self.resumed.checkpoint)
        if self.resumed is None or self.resumed.folder is None:
            self.folder = RunFolder(root, config.experiment, holds=self.holds, optional=not trains)
            return
        folder = self.resumed.folder
        root = Path(os.path.relpath(folder.parents[1]))
        experiment = folder.parent.name
        if trains:
            self._check_resumed(root / experiment / folder.name)
        self._continue_in_trackers(folder, self.resumed.rounds_to_keep, str(config.trainer.logger))
        config.experiment = experiment
        rounds = self.resumed.rounds_to_keep
        self.folder = RunFolder(root, experiment, folder.name, rounds, self.holds, optional=not trains)

    def _continue_in_trackers(self, folder: Path, rounds: int | None, loggers: str) -> None:
        """Let W&B and MLflow, if they are among the loggers, go on with the run that a run folder names."""
        if "WandbLogger" in loggers:
            continue_wandb(folder, rounds)
        if "MLFlowLogger" in loggers:
            self.mlflow_run = tracked_run(folder, rounds, "mlflow")

    def _check_resumed(self, folder: Path) -> None:
        """Compare the config with that of the run that goes on, both as the parser writes them.

        Raises:
            ConfigurationError: settings that affect results differ, and may not.
        """
        parser = self._parser("fit")
        config = self.config["fit"]
        before = dict(read_mapping(folder, CONFIG))
        if NOT_RECORDED in before:
            raise ConfigurationError(
                f"ckpt_path: {folder} is a run from Python: go on there, by trainer.fit(…, ckpt_path=…), or begin a "
                f"new run with its model, by --model.init_from {folder}"
            )
        taken = bring_up_to_date(before)
        with suppress(ParsingError):  # of a class or an argument that is no longer there: compared as written
            before = read_yaml(CONFIG, parser.dump(parser.parse_object(deepcopy(before)), skip_unset=False))
        changed = changed_settings(before, read_yaml(CONFIG, parser.dump(config, skip_unset=False)))
        changed |= {gone.option: [value, None] for gone, value in taken if value != gone.default}
        check_unchanged(folder, changed, config.resume_changed)
        self.changed = changed if config.resume_changed else None

    @property
    def written_config(self) -> dict[str, Any]:
        """The config of a fit, as a run folder keeps it."""
        return dict(read_yaml(CONFIG, self._parser("fit").dump(self.config["fit"], skip_unset=False)))

    @override
    def _set_seed(self) -> None:
        with values_of("seed_everything"):
            super()._set_seed()

    @override
    def instantiate_classes(self) -> None:
        with values_of("config"):
            super().instantiate_classes()
        if self.model.init_from is not None:  # the config keeps the path as given
            self.model.init_from = str(checkpoint_of(Path(self.model.init_from)))

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        self.datamodule = self.other_data or self.datamodule
        config = self._get(self.config_init, "trainer")
        callbacks = _as_list(config.callbacks)
        check_once(callbacks)
        own = self.without_folder(callbacks)
        if own is not None:
            return super().instantiate_trainer(**kwargs | own)
        callbacks = run_callbacks(
            [*callbacks, self.stopping],
            checkpoints=config.enable_checkpointing is not False,
            progress=config.enable_progress_bar is not False,
            summary=True,  # as --trainer.enable_model_summary says
            changed=self.changed,
        )
        loggers = [logger for logger in _as_list(config.logger) if isinstance(logger, Logger)]
        for logger in loggers:
            if isinstance(logger, MLFlowLogger) and self.mlflow_run:
                continue_mlflow(logger, self.mlflow_run)
        if config.strategy == "auto" and _several(config.accelerator, config.devices, config.num_nodes):
            is_on_cpu = config.accelerator == "cpu" or not torch.cuda.is_available()
            may_fork = is_on_cpu and self._may_be_copied
            if not self._may_be_copied and "LOCAL_RANK" not in os.environ:
                self._say(KEPT)
            kwargs["strategy"] = ForkedStrategy() if may_fork else ClientParallelStrategy.strategy_name
        kwargs |= {"callbacks": callbacks, "logger": [self.folder, *loggers]}
        with values_of("trainer"):
            trainer = super().instantiate_trainer(**kwargs)
        check_trainer(trainer)  # checked once, before the processes of other devices start
        processes = self._choose_processes(trainer)
        if processes == 1:
            return trainer
        sys.argv.append(f"--trainer.devices={processes}")  # for a process that starts by command
        return super().instantiate_trainer(**kwargs | {"strategy": ForkedStrategy(), "devices": processes})

    def without_folder(self, callbacks: Sequence[Callback]) -> dict[str, Any] | None:
        """Return the Trainer's arguments for a fit without a run folder; None for one that a run folder records."""
        return None

    def _leaves_processes_open(self, trainer: Trainer) -> bool:
        """Tell whether a run leaves the number of its processes open: a fit on the CPU of one machine."""
        config = self._get(self.config_init, "trainer")
        is_open = config.devices == "auto" and config.strategy == "auto" and config.num_nodes == 1
        is_on_cpu = isinstance(trainer.accelerator, CPUAccelerator)
        return self.subcommand == "fit" and is_open and is_on_cpu and not started_from_outside(trainer)

    @property
    def _may_be_copied(self) -> bool:
        """Whether nothing that the config names forbids copies of this process."""
        return may_be_copied(self.config[self.subcommand].as_dict(), self.datamodule)

    def _choose_processes(self, trainer: Trainer) -> int:
        """Choose the number of processes of a fit that leaves the number open, and say so; 1 for any other."""
        cores = count_cores(self._get(self.config, "num_threads"))
        if cores == 1 or not self._leaves_processes_open(trainer):
            return 1
        if self._may_be_copied:
            self._load(trainer)
            self._load_examples()
        if not (self._may_be_copied and can_fork()):
            self._say(f"{cores} cores: --trainer.devices {cores} trains {cores} clients at a time", trainer)
            return 1
        rounds = (trainer.max_epochs or 1) - (self.resumed.rounds if self.resumed else 0)
        processes = choose_processes(self.model, self.datamodule, rounds, cores)
        if processes > 1:
            self._say(
                f"{processes} processes train different clients at the same time, which changes no result; "
                "--trainer.devices 1 takes one",
                trainer,
            )
        return processes

    @override
    def before_instantiate_classes(self) -> None:
        threads = self._get(self.config, "num_threads")
        check_at_least(1, num_threads=threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)  # else Lightning's launcher sets a number
        torch.set_num_threads(threads)
        loggers = self._get(self.config, "trainer").logger
        if "WandbLogger" in str(loggers):
            offline_without_key()
        self.mlflow_run = open_store(loggers, self.mlflow_run)

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        """Run a subcommand; one of the Trainer says first what it loads, because that may take minutes.

        Missing data are downloaded, or reported, before other devices' processes start.
        """
        self._load(self.trainer)
        if subcommand == "fit" and isinstance(self.trainer.strategy, ForkedStrategy):
            self._load_examples()
        self.run(lambda: super(FederatedCLI, self)._run_subcommand(subcommand))

    def run(self, command: Callable[[], None]) -> None:
        """Run the Trainer's command, whose data are there; a subclass may prepare more."""
        command()

    @property
    def has_own_data(self) -> bool:
        """Whether the data module loads data on this machine."""
        return True

    def _load(self, trainer: Trainer) -> None:
        """Fetch missing data, and say what is loaded, once."""
        if self.has_fetched or not self.has_own_data:
            return
        fetch_missing(self.datamodule)
        if self.subcommand != "data" and self.other_data is None:
            self._say(f"loading {type(self.datamodule).__name__} …", trainer)
        self.has_fetched = True

    def _load_examples(self) -> None:
        """Load the training set before the Trainer does, so that forked processes share it.

        Random numbers that a user's ``setup`` draws are drawn again by the Trainer's, from the same state as without.
        """
        if self.has_loaded or self.other_data is not None:
            return
        with isolated(CPU):
            self.datamodule.prepare_data()
            self.datamodule.setup("fit")
        self.has_loaded = True

    def before_fit(self) -> None:
        """Say that nothing is left to train, if so. LightningCLI calls this before ``fit``."""
        rounds = self.resumed.rounds if self.resumed else 0
        if 0 < (self.trainer.max_epochs or 0) <= rounds:
            more = f"--trainer.max_epochs {rounds + 1} or more goes on"
            self._say(f"all {counted(rounds, 'round')} were done before, none was trained: {more}", self.trainer)

    def before_predict(self) -> None:
        """Refuse to predict on nothing. LightningCLI calls this before ``predict``."""
        owners = (self.datamodule, self.model.client)
        if not any(is_overridden("predict_dataloader", owner) for owner in owners):
            names = " and ".join(type(owner).__name__ for owner in owners)
            raise ConfigurationError(
                f"expected a predict_dataloader of the data module or the client module, and {names} have none: "
                "fl-lightning test evaluates the model on the test set, fl-lightning export writes it to a file"
            )

    def after_fit(self) -> None:
        """Say how a run that a signal has stopped goes on. LightningCLI calls this after ``fit``."""
        recorded = isinstance(self.trainer.logger, RunFolder) and self.folder.is_taken
        if recorded and self.stopping.stopped_by and self.trainer.is_global_zero:
            folder = Path(os.path.relpath(self.folder.log_dir))
            print(_how_to_go_on(self.model.rounds_done, last_of_run(folder)), file=sys.stderr)

    def _say(self, words: str, trainer: Trainer | None = None) -> None:
        """Print a text on the first device, unless the progress bar is off; without a Trainer, on this one."""
        is_first = trainer is None or trainer.is_global_zero
        if self._get(self.config, "trainer").enable_progress_bar is not False and is_first:
            print(words, flush=True)


def fetch_missing(data: FederatedDataModule) -> None:
    """Download what a data module lacks; of several processes, one downloads and the others wait.

    Raises:
        ConfigurationError: data are missing, and cannot be or must not be downloaded.
    """
    if data.missing() is not None:
        data.prepare_data()
    if (message := data.missing()) is not None:
        raise ConfigurationError(message)


def _how_to_go_on(rounds: int, checkpoint: Path) -> str:
    if not checkpoint.is_file():
        return "stopped before the end of the first round: start the run again"
    return f"stopped after round {rounds}: the same command with --ckpt_path {checkpoint} continues the run"


def _as_list(value: Any) -> list[Any]:
    """Return the value of an option that takes several things, or one, or none."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _several(accelerator: str, devices: Any, num_nodes: int) -> bool:
    """Tell whether a Trainer with these arguments has more than one device."""
    if num_nodes > 1:
        return True
    gpus = torch.cuda.device_count() if str(accelerator) in ("auto", "gpu", "cuda") else 0
    if devices in ("auto", -1, "-1"):
        return gpus > 1
    if isinstance(devices, list):
        return len(devices) > 1
    return "," in str(devices).rstrip(",") or (str(devices).isdigit() and int(devices) > 1)


def command(args: Sequence[str]) -> int:
    """Run ``fit …``, ``validate …``, ``test …``, ``predict …`` or ``data …``.

    Args:
        args: the command line as typed, without the program's name.

    Returns:
        The exit status: 0, or 128 and the number of the signal that stopped a fit.
    """
    keep_freed_memory()
    sys.argv[1:] = args  # as typed, because the processes of other devices start with these arguments
    if class_help(args):
        return 0
    with Holds() as holds:
        cli = FederatedCLI(begin_anew(resolve_configs(args)), holds)
    if cli.stopping.stopped_by and cli.trainer.is_global_zero:  # the launcher takes another rank's status for a crash
        return 128 + cli.stopping.stopped_by
    return 0
