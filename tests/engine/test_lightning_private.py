"""Lightning's private names: each does what lightning_private says of it, and none stands anywhere else."""

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning
import pytest
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import MLFlowLogger
from torch.utils.data import DataLoader, TensorDataset
from toy import Net, Quadratic, ToyData, trainer

import fl_lightning
from fl_lightning import FederatedOrchestrator
from fl_lightning import lightning_private as private

ROOT = Path(__file__).parents[2]
FOREIGN = {  # private names of other libraries
    "engine/devices/strategy.py": {"_get_default_store"},  # torch
    "engine/training/in_lockstep/obstacles.py": {  # torch
        "_backward_hooks",
        "_backward_pre_hooks",
        "_optimizer_step_pre_hooks",
        "_optimizer_step_post_hooks",
        "_post_accumulate_grad_hooks",
    },
    "engine/module/logged.py": {"_modules"},  # torch
    "engine/devices/ranks.py": {"_exit"},  # os, where it is public
    "engine/federation/batches.py": {"_version"},  # torch
    "engine/module/state.py": {"_buffers", "_parameters"},  # torch
    "engine/module/params.py": {"_modules", "_parameters"},  # torch
    "engine/states/sealed.py": {"_version"},  # torch
    "fit/help.py": {"_HelpAction", "_get_formatter", "_group_actions"},  # argparse
    "fit/parser.py": {"_actions"},  # argparse
    "reproduce/jobs.py": {"_run_exitfuncs", "_exit"},  # atexit; os, where it is public
    "report/dashboard.py": {"_to_model"},  # wandb_workspaces
    "models/group_norm.py": {"_BatchNorm"},  # torch
    "datamodules/augmentation.py": {  # torchvision
        "_policies",
        "_fill",
        "_apply_image_or_video_transform",
        "_AUGMENTATION_SPACE",
    },
}
BATCHES = [torch.ones(2, 4), torch.zeros(2, dtype=torch.int64)]


def modules() -> list[ModuleType]:
    names = [info.name for info in pkgutil.walk_packages(fl_lightning.__path__[:1], "fl_lightning.")]
    return [import_module(name) for name in names if "deprecated" not in name]


def test_no_private_name_of_lightning_stands_elsewhere() -> None:
    """A name with an underscore that nothing of ours defines is somebody else's."""
    own, used = set(), {}
    for module in modules():
        found = set()
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                found |= {alias.name for alias in node.names if alias.name.startswith("_")}
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                found.add(node.attr)
        used[module.__name__.removeprefix("fl_lightning.").replace(".", "/") + ".py"] = found
    foreign = {file: names - own for file, names in used.items() if names - own}
    assert foreign.pop("lightning_private.py")
    assert foreign == FOREIGN


def test_no_private_method_of_lightning_is_overridden_elsewhere() -> None:
    overridden = {
        f"{cls.__module__}.{cls.__name__}.{name}"
        for module in modules()
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__.startswith("fl_lightning.") and cls.__module__ != private.__name__
        for name in vars(cls)
        if name.startswith("_") and not name.startswith("__")
        for base in cls.__mro__
        if base.__module__.startswith("lightning.") and name in vars(base)
    }
    assert not overridden - {name for name in overridden if name.endswith("._abc_impl")}


def test_synchronizes_batchnorm() -> None:
    assert not private.synchronizes_batchnorm(trainer())
    assert private.synchronizes_batchnorm(trainer(devices=2, sync_batchnorm=True))


def test_keep_samplers() -> None:
    run = trainer(devices=2)
    assert run._accelerator_connector.use_distributed_sampler
    private.keep_samplers(run)
    assert not run._accelerator_connector.use_distributed_sampler


def test_requeues() -> None:
    assert not private.requeues(trainer())
    for requeue in (True, False):
        assert private.requeues(trainer(plugins=[SLURMEnvironment(auto_requeue=requeue)])) is requeue


def test_set_step() -> None:
    """The step that a logger is given with what is logged next."""
    run = trainer()
    private.set_step(run, 7)
    assert run.fit_loop.epoch_loop._batches_that_stepped == 7


def test_metrics_to_log() -> None:
    class Look(lightning.pytorch.Callback):
        seen: dict[str, Any]

        def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: LightningModule) -> None:
            self.seen = private.metrics_to_log(trainer)

    run = trainer(look := Look())
    run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    assert look.seen["round"] == 1
    assert look.seen["train/loss"] == run.callback_metrics["train/loss"]


@pytest.mark.parametrize("steps", [-1, 9])
@pytest.mark.parametrize(("batch", "done", "seen"), [(0, 1, [(1, 0), (1, 1)]), (1, 2, [])])
def test_begin_epoch(tmp_path: Path, steps: int, batch: int, done: int, seen: list[Any]) -> None:
    """Two epochs of two batches, saved after a batch of the second: it begins again, or is over, however it was."""

    class Stop(lightning.pytorch.Callback):
        def on_train_batch_end(self, trainer: lightning.Trainer, _: Any, __: Any, ___: Any, batch_idx: int) -> None:
            if trainer.current_epoch == 1 and batch_idx == batch:
                trainer.save_checkpoint(tmp_path / "part.ckpt")

    class Counting(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.seen.append((self.current_epoch, batch_idx))

    loader = DataLoader(TensorDataset(torch.randn(4, 4), torch.zeros(4, dtype=torch.int64)), batch_size=2)
    trainer(Stop(), rounds=2).fit(Counting(), loader)
    checkpoint = torch.load(tmp_path / "part.ckpt", weights_only=False)
    private.begin_epoch(checkpoint["loops"]["fit_loop"], done)
    torch.save(checkpoint, tmp_path / "whole.ckpt")
    trainer(rounds=2, max_steps=steps).fit(module := Counting(), loader, ckpt_path=tmp_path / "whole.ckpt")
    assert module.seen == seen


def test_transferring_module() -> None:
    """Batches that are no data pass untouched, and are announced; all others go through the module's own hooks."""

    class Doubling(private.TransferringModule):
        def is_data(self, batch: Any) -> bool:
            return isinstance(batch, torch.Tensor)

        def on_batch_passed_on(self) -> None:
            seen.append("next")

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return 2 * batch

        def training_step(self, batch: Any, batch_idx: int) -> None:
            seen.append(batch)

        def configure_optimizers(self) -> None: ...

    seen: list[Any] = []
    run = trainer()
    run.fit(module := Doubling(), DataLoader([[3], [4]], batch_size=None))  # type: ignore[arg-type]  # a list is a dataset
    assert seen == ["next", [3], "next", [4]]
    assert module.transfer(torch.ones(2)).tolist() == [2, 2]


class Made(LightningDataModule):
    def __init__(self, size: int = 1, width: int = 2) -> None:
        super().__init__()
        self.save_hyperparameters()


class Base(LightningDataModule):
    def __init__(self, size: int, depth: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()


class Making(Base):
    def __init__(self, size: int) -> None:
        self.made = Made(width=3)
        super().__init__(size)


def test_own_hyperparameters() -> None:
    """The outer module's size, 5, is none of the inner one's; its base class's depth is its own."""
    with private.own_hyperparameters():
        outer = Making(5)
    assert dict(outer.made.hparams) == {"size": 1, "width": 3}
    assert dict(outer.hparams) == {"size": 5, "depth": 4}
    assert Making(5).made.hparams["size"] == 5, "Lightning's own: else the function above has no use"


def test_saved_hyper_parameters() -> None:
    class Whole(Net):
        def __init__(self, *given: Any, hparams: dict[str, int] | None = None) -> None:
            super().__init__()
            self.save_hyperparameters(*given)

    assert private.saved_hyper_parameters(Net()) == (None, {})
    assert private.saved_hyper_parameters(Whole(hparams={"a": 1})) == ("kwargs", {"hparams": {"a": 1}})
    assert private.saved_hyper_parameters(Whole({"a": 1}, hparams={"a": 1})) == ("hparams", {"a": 1})


@pytest.mark.parametrize("automatic", [True, False])
def test_configured(automatic: bool) -> None:
    """A dict with a schedule, as configure_optimizers may return it."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    made = {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}
    optimizers, schedules = private.configured(made, automatic)
    assert optimizers == [optimizer]
    assert [config.scheduler for config in schedules] == [made["lr_scheduler"]]
    assert [config.interval for config in schedules] == ["epoch"]


@pytest.mark.parametrize(("monitor", "saved"), [("val/top1", False), ("train/loss", True)])
def test_optional_monitor_checkpoint(tmp_path: Path, monitor: str, saved: bool) -> None:
    """Lightning's own ends the run where nobody logs what it monitors."""
    callback = private.OptionalMonitorCheckpoint(tmp_path, "best", monitor=monitor, save_on_train_epoch_end=True)
    run = trainer(callback, enable_checkpointing=True)
    run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    assert (tmp_path / "best.ckpt").exists() == saved


@pytest.mark.parametrize(("own", "continued"), [(None, "known"), ("mine", "mine")])
def test_continue_mlflow(tmp_path: Path, own: str | None, continued: str) -> None:
    """The id that the logger asks the store for when it is first used."""
    logger = MLFlowLogger(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", run_id=own)
    private.continue_mlflow(logger, "known")
    with pytest.raises(Exception, match=f"Run with id={continued} not found"):
        _ = logger.experiment


def test_open_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hook is called where Lightning calls its private method; a subcommand of one's own gets its arguments."""

    class Command(lightning.Trainer):
        def show(self, model: Any, colour: str) -> None:
            """Show it."""

    class CLI(private.OpenCLI):
        own_subcommands = frozenset({"show"})
        calls: list[str]

        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {"show": {"model"}}

        def add_own_arguments(self, subcommand: str, parser: LightningArgumentParser) -> list[str]:
            self.calls = [f"arguments of {subcommand}"]
            parser.add_argument("--colour", default="red")
            return ["colour"]

        def find_checkpoint(self) -> None:
            self.calls.append("checkpoint")

        def set_seed(self) -> None:
            self.calls.append("seed")

        def instantiate_classes(self) -> None:
            self.calls.append("classes")

        def run_subcommand(self, subcommand: str) -> None:
            self.calls.append(f"run {subcommand}")

    monkeypatch.setattr("sys.argv", ["program"])
    cli = CLI(Quadratic, trainer_class=Command, args=["show", "--colour", "blue"], save_config_callback=None)
    assert cli.calls == ["arguments of show", "checkpoint", "seed", "classes", "run show"]
    assert cli.setting(cli.config, "colour") == "blue"
    assert "--colour" in cli.parser_of("show").format_help()
