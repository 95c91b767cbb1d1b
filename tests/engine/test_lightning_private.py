"""Lightning's private names: each does what lightning_private says of it, and few other modules use any."""

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
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader, TensorDataset
from toy import Net, trainer

import fl_lightning
from fl_lightning import lightning_private as private

LIGHTNING = {  # its private names that a module uses or overrides itself; all others use lightning_private.py
    "engine/rules/server.py": {"_apply_batch_transfer_handler", "_on_before_batch_transfer"},
    "fit/command.py": {
        "_add_arguments",
        "_add_instantiators",
        "_get",
        "_parse_ckpt_path",
        "_prepare_subcommand_parser",
        "_run_subcommand",
        "_set_seed",
        "_subcommand_method_arguments",
    },
    "fit/stopping.py": {"_accelerator_connector"},
    "runs/checkpoints.py": {"_logger_connector", "_save_topk_checkpoint"},
    "runs/mlflow.py": {"_run_id"},
}
OTHERS = {  # private names of other libraries
    "engine/devices/strategy.py": {"_get_default_store"},  # torch
    "engine/training/in_lockstep/obstacles.py": {  # torch
        "_backward_hooks",
        "_backward_pre_hooks",
        "_optimizer_step_pre_hooks",
        "_optimizer_step_post_hooks",
        "_post_accumulate_grad_hooks",
    },
    "engine/hosting/saving.py": {"_metadata"},  # torch
    "engine/module/logged.py": {"_enable_compute_groups", "_modules"},  # torchmetrics; torch
    "engine/devices/ranks.py": {"_exit"},  # os, where it is public
    "engine/federation/batches.py": {"_version"},  # torch
    "engine/module/state.py": {"_buffers", "_parameters"},  # torch
    "engine/module/params.py": {"_modules", "_parameters"},  # torch
    "engine/states/sealed.py": {"_version"},  # torch
    "fit/help.py": {"_HelpAction", "_get_formatter", "_group_actions"},  # argparse
    "fit/parser.py": {"_actions", "_get_init_args"},  # argparse
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


def overridden() -> dict[str, set[str]]:
    """Lightning's private methods that classes of ours override, by file."""
    found: dict[str, set[str]] = {}
    for cls in (each for module in modules() for each in vars(module).values() if inspect.isclass(each)):
        theirs = {name for base in cls.__mro__ if base.__module__.startswith("lightning.") for name in vars(base)}
        names = {name for name in theirs & vars(cls).keys() if is_private(name)} - {"_abc_impl"}
        if cls.__module__.startswith("fl_lightning.") and names:
            found.setdefault(file_of(cls.__module__), set()).update(names)
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def file_of(module: str) -> str:
    return module.removeprefix("fl_lightning.").replace(".", "/") + ".py"


def test_private_names_of_others_stand_only_where_the_tables_say() -> None:
    """A name with an underscore that nothing of ours defines, or that overrides Lightning's, is somebody else's."""
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
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
                (own if of_self and isinstance(node.ctx, ast.Store) else found).add(node.attr)
        used[file_of(module.__name__)] = found
    theirs = overridden()
    own -= set().union(*theirs.values())
    foreign = {file: (names - own) | theirs.get(file, set()) for file, names in used.items()}
    assert foreign.pop("lightning_private.py")
    assert {file: names for file, names in foreign.items() if names} == LIGHTNING | OTHERS


def test_synchronizes_batchnorm() -> None:
    assert not private.synchronizes_batchnorm(trainer())
    assert private.synchronizes_batchnorm(trainer(devices=2, sync_batchnorm=True))


def test_keep_samplers() -> None:
    run = trainer(devices=2)
    assert run._accelerator_connector.use_distributed_sampler
    private.keep_samplers(run)
    assert not run._accelerator_connector.use_distributed_sampler


def test_set_step() -> None:
    """The step that a logger is given with what is logged next."""
    run = trainer()
    private.set_step(run, 7)
    assert run.fit_loop.epoch_loop._batches_that_stepped == 7


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


def test_transfer() -> None:
    """The three hooks, in their order; without a Trainer, the module's own."""

    class Hooked(LightningModule):
        def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [*batch, "before"]

        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
            return [*batch, str(device)]

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [*batch, "after"]

    assert private.transfer(Hooked(), ["batch"]) == ["batch", "before", "cpu", "after"]


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
