"""fl-lightning: the command line. The one place that imports the algorithms, so that YAML finds their short names."""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import Logger

import fl_lightning.callbacks
import fl_lightning.datamodules
import fl_lightning.models  # noqa: F401
from fl_lightning import overview
from fl_lightning.checks import check_once, check_trainer
from fl_lightning.data import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.experiments import KEYS, bases, resolve_configs
from fl_lightning.messages import ParsingError, mistake_in
from fl_lightning.orchestrator import FederatedOrchestrator
from fl_lightning.progress import RoundProgress
from fl_lightning.reproduce.runs import fingerprint
from fl_lightning.runs import BestCheckpoint, LastCheckpoint, RunFolder, last_checkpoint
from fl_lightning.timing import RoundTimer
from fl_lightning.tracking import RunTracking, continue_wandb, offline_without_key, tell_wandb

# Commands about many runs, or about runs that are over: each module's ``command`` takes the arguments.
COMMANDS = {
    "reproduce": "reproduce.command",
    "sweep": "reproduce.command",
    "report": "report.command",
    "dashboard": "dashboard",
}
EPILOG = f"On many runs, or on runs that are over: fl-lightning {' --help, '.join(COMMANDS)} --help"

TRAINER_DEFAULTS = {
    "default_root_dir": "runs",
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
    "enable_model_summary": False,
}


class Parser(LightningArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """The parser's hook; it would print its usage and leave."""
        raise ParsingError(message, _options(self)) from ex

    def dump(self, cfg: Any, **kwargs: Any) -> str:
        """The parser's own, without what a config file says about other files: here all of it is together."""
        cfg = cfg.clone()
        for key in KEYS:
            cfg.pop(key, None)
        return str(super().dump(cfg, **kwargs))


def _options(parser: Any) -> list[str]:
    """The long options of a parser and its subcommands, without dashes."""
    own = [name.removeprefix("--") for action in parser._actions for name in action.option_strings]
    below = [sub for action in parser._actions if isinstance(action.choices, dict) for sub in action.choices.values()]
    return own + [option for sub in below for option in _options(sub)]


class CommandTrainer(Trainer):
    """The Trainer, with the commands that it does not have."""

    def data(self, model: LightningModule, datamodule: FederatedDataModule, plot: str) -> None:
        """Show what a run would see, without training: clients, examples, classes.

        Args:
            model: the orchestrator.
            datamodule: the data.
            plot: PNG to write the bubble plot to.
        """
        datamodule.prepare_data()
        datamodule.setup("fit")
        overview.show(datamodule, Path(plot))


class SaveConfig(SaveConfigCallback):
    """Writes the run folder's config.yaml when training begins: no run that fails before touches an earlier one's."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lightning's hook, where its own class would write."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's hook: what a new run needs to be the same, so without the checkpoint this one came from."""
        config, folder = self.config.clone(), trainer.log_dir  # known to all devices only when all ask
        config.ckpt_path = None
        if trainer.is_global_zero:
            path = Path(str(folder)) / "config.yaml"
            self.parser.save(config, path, skip_none=False, overwrite=True, multifile=False)
            saved = yaml.safe_load(path.read_text())
            tell_wandb(trainer, saved | {"settings": fingerprint(saved)})


class FederatedCLI(LightningCLI):
    """LightningCLI where ``model:`` is the orchestrator and ``data:`` a FederatedDataModule.

    One seed (``seed_everything``) governs everything; a run gets its folder, its checkpoints and its progress display;
    ``--ckpt_path last`` goes on with the experiment's last run, and the command line wins over what it was made with.
    """

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Lightning's hook."""
        parser.add_argument(
            "--experiment", type=str | None, default=None, help="Name of the run's folder; default: the config's."
        )
        parser.add_argument(
            "--num_threads",
            type=int,
            default=int(os.environ.get("OMP_NUM_THREADS", "1")),
            help="CPU threads of each process. Several devices use more cores better, and change no result.",
        )
        parser.add_argument("--base", type=Any, help="In a config: the files it builds on, relative to itself.")
        parser.add_argument("--grid", type=Any, help="In a config: what the experiment varies; no part of one run.")
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's hook: its commands and ours, with the arguments that it fills in."""
        return {**LightningCLI.subcommands(), "data": {"model", "datamodule"}}

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Lightning's hook. It would name a group of arguments as the command: ``data`` is taken."""
        if subcommand != "data":
            return super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        parser = self.init_parser(**kwargs)
        self._add_arguments(parser)
        parser.add_argument("--plot", type=str, default="partition.png", help="PNG to write the bubble plot to.")
        self._subcommand_method_arguments[subcommand] = ["plot"]
        return parser

    def _parse_ckpt_path(self) -> None:
        """Find the checkpoint and the run folder it belongs to. (Lightning would let its hyper-parameters win here.)"""
        config = self.config[self.config.subcommand]
        root = Path(config.trainer.default_root_dir)
        experiment, version, rounds = config.experiment or _config_name(config), None, None
        if config.get("ckpt_path"):
            path = last_checkpoint(root / experiment) if config.ckpt_path == "last" else Path(config.ckpt_path)
            rounds_done = check_readable(path)
            config.ckpt_path = str(path)
            folder = path.resolve().parent.parent
            if path.parent.name == "checkpoints" and (folder / "config.yaml").is_file():
                root, experiment, version = Path(os.path.relpath(folder.parents[1])), folder.parent.name, folder.name
                rounds = rounds_done if self.config.subcommand == "fit" else None
                if "WandbLogger" in str(config.trainer.logger):
                    continue_wandb(folder, rounds)
        config.experiment = experiment
        self.folder = RunFolder(root, experiment, version, rounds)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Lightning's hook: what every run has beside what its config names."""
        config = self._get(self.config_init, "trainer")
        callbacks = list(config.callbacks or ()) if isinstance(config.callbacks, list | None) else [config.callbacks]
        check_once(callbacks)
        if config.enable_checkpointing is not False:
            chosen = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
            callbacks += [LastCheckpoint()] if chosen else [LastCheckpoint(), BestCheckpoint()]
        callbacks[:0] = [timer := RoundTimer(), RunTracking()]
        if config.enable_progress_bar is not False:
            callbacks.append(RoundProgress(timer))
        loggers = config.logger if isinstance(config.logger, list) else [config.logger]
        loggers = [logger for logger in loggers if isinstance(logger, Logger)]
        if config.strategy == "auto" and _several(config.accelerator, config.devices, config.num_nodes):
            kwargs["strategy"] = "client_parallel"
        trainer = super().instantiate_trainer(callbacks=callbacks, logger=[self.folder, *loggers], **kwargs)
        check_trainer(trainer)  # here once, before other devices' processes start and say the same
        return trainer

    def before_instantiate_classes(self) -> None:
        """Lightning's hook."""
        threads = self._get(self.config, "num_threads")
        os.environ["OMP_NUM_THREADS"] = str(threads)  # Lightning's launcher would choose by the number of devices
        torch.set_num_threads(threads)
        if self.subcommand and "WandbLogger" in str(self._get(self.config, "trainer").logger):
            offline_without_key()

    def after_fit(self) -> None:
        """Lightning's hook: say where everything is, unless silence is wished for."""
        shown = self._get(self.config, "trainer").enable_progress_bar is not False
        if shown and self.trainer.is_global_zero and isinstance(self.trainer.logger, RunFolder):
            print(f"run folder: {os.path.relpath(self.folder.log_dir)}")


def _config_name(config: Any) -> str:
    """The stem of the first config that was asked for, not of those that it builds on."""
    paths = [str(path) for path in config.get("config") or ()]
    based = {base for path in paths for base in bases(path)}
    return next((Path(path).stem for path in paths if path not in based), "experiment")


def _several(accelerator: str, devices: Any, num_nodes: int) -> bool:
    """Whether a Trainer with these arguments has more than one device."""
    if num_nodes > 1:
        return True
    gpus = torch.cuda.device_count() if str(accelerator) in ("auto", "gpu", "cuda") else 0
    if devices in ("auto", -1, "-1"):
        return gpus > 1
    return (
        len(devices) > 1
        if isinstance(devices, list)
        else "," in str(devices).rstrip(",") or (str(devices).isdigit() and int(devices) > 1)
    )


def check_readable(path: Path) -> int:
    """The rounds that a checkpoint holds.

    Raises:
        ConfigurationError: the file is missing, damaged or not a federated run's; says which, and what to do.
    """
    if not path.is_file():
        raise ConfigurationError(f"ckpt_path: there is no file {path}; expected a path to a .ckpt, or 'last'")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        content = None if damaged else torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:
        content = None
    if content is None:
        raise ConfigurationError(
            f"ckpt_path: {path} cannot be read, it is damaged or no checkpoint: "
            "use another one of the run's checkpoints"
        )
    if not {"state_dict", "rounds_done"} <= set(content):
        raise ConfigurationError(
            f"ckpt_path: {path} is a checkpoint, but not of a federated run: it has no rounds_done"
        )
    return int(content["rounds_done"])


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status. 2 stands for a mistake that one line on standard error explains."""
    sys.path.insert(0, str(Path.cwd()))  # a console script's path starts at the script: classes of the user live here
    for name in ("pytorch.utilities.rank_zero", "fabric.utilities.seed"):
        logging.getLogger(f"lightning.{name}").addFilter(_no_chatter)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*loading a checkpoint outside the 'fit' stage.*")  # the average is what to test
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*")
    warnings.filterwarnings("ignore", "LightningCLI's args parameter is intended")
    warnings.filterwarnings("ignore", ".*defined a `validation_step` but have no `val_dataloader`.*")
    warnings.filterwarnings("ignore", ".*recommended to use `self.log.*sync_dist=True.*")
    warnings.filterwarnings("ignore", ".*Checkpoint directory .* exists and is not empty.*")
    args = sys.argv[1:] if args is None else args
    try:
        if args and args[0] in COMMANDS:
            module = importlib.import_module(f"fl_lightning.{COMMANDS[args[0]]}")  # only now: pandas takes a while
            return int(module.command(args))
        sys.argv[1:] = args  # as typed: other devices' processes start with them
        FederatedCLI(
            FederatedOrchestrator,
            FederatedDataModule,
            args=resolve_configs(args),
            subclass_mode_data=True,
            parser_class=Parser,
            trainer_defaults=TRAINER_DEFAULTS,
            save_config_callback=SaveConfig,
            trainer_class=CommandTrainer,
            parser_kwargs={"epilog": EPILOG},
            seed_everything_default=1,
            auto_configure_optimizers=False,
        )
    except Exception as error:
        mistake = mistake_in(error)
        if mistake is None:
            raise
        print(f"fl-lightning: error: {mistake}", file=sys.stderr)
        return 2
    return 0


def _no_chatter(record: logging.LogRecord) -> bool:
    chatter = r"Seed set to|💡|(GPU|TPU|HPU) available|.*litlogger|`Trainer.fit` stopped: `max_epochs"
    return not re.match(chatter, record.getMessage())
