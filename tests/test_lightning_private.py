"""Lightning's private names: each does what lightning_private says of it, and few other modules use any."""

import ast
import inspect
import pkgutil
from datetime import timedelta
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from lib.toy import Net, trainer
from lightning.pytorch.callbacks import ModelCheckpoint

import fl_lightning
from fl_lightning import lightning_private as private

LIGHTNING = {  # its private names that a module uses or overrides itself; all others use lightning_private.py
    "engine/rules/server.py": {"_apply_batch_transfer_handler", "_on_before_batch_transfer"},
    "fit/command.py": {
        "_add_arguments",
        "_add_instantiators",
        "_get",
        "_parse_ckpt_path",
        "_parser",
        "_prepare_subcommand_parser",
        "_run_subcommand",
        "_set_seed",
        "_subcommand_method_arguments",
    },
    "engine/devices/forks.py": {"_SubprocessScriptLauncher", "_call_children_scripts", "_check_can_spawn_children"},
    "fit/read_config.py": {"_parser"},
    "fit/stop_signals.py": {"_accelerator_connector"},
    "network/command.py": {"_parse_ckpt_path"},
    "runs/folder/checkpoints.py": {"_logger_connector", "_save_topk_checkpoint"},
    "runs/loggers/mlflow.py": {"_run_id"},
}
OTHERS = {  # private names of other libraries
    "callbacks/adapters/low_rank.py": {"_forward_hooks", "_forward_pre_hooks", "_parameters"},  # torch
    "callbacks/privacy/by_example.py": {  # torch
        "_backward_hooks",
        "_backward_pre_hooks",
        "_base",
        "_forward_hooks",
        "_forward_pre_hooks",
    },
    "callbacks/privacy/example_dp.py": {"_backward_hooks", "_post_accumulate_grad_hooks"},  # torch
    "cli.py": {"_exit"},  # os, where it is public
    "engine/devices/strategy.py": {"_configure_launcher", "_get_default_store", "_start_method"},  # Lightning's; torch
    "engine/training/in_lockstep/obstacles.py": {  # torch
        "_backward_hooks",
        "_backward_pre_hooks",
        "_optimizer_step_pre_hooks",
        "_optimizer_step_post_hooks",
        "_post_accumulate_grad_hooks",
    },
    "engine/hosting/saving.py": {"_metadata"},  # torch
    "engine/hosting/shared_evaluation.py": {"_forward_hooks", "_forward_pre_hooks", "_version"},  # torch
    "engine/module/logged.py": {"_computed"},  # torchmetrics
    "engine/validation.py": {"_enable_compute_groups", "_modules"},  # torchmetrics; torch
    "engine/devices/ranks.py": {"_exit"},  # os, where it is public
    "engine/federation/batches.py": {"_version"},  # torch
    "engine/module/params.py": {"_version"},  # torch
    "engine/module/state.py": {"_buffers"},  # torch
    "engine/rules/hooks.py": {"_version"},  # torch
    "engine/states/sealed.py": {"_version"},  # torch
    "engine/training/one_by_one.py": {"_version"},  # torch
    "engine/updates/buffers.py": {"_forward_pre_hooks"},  # torch
    "fit/helps/page.py": {"_HelpAction", "_get_formatter", "_group_actions"},  # argparse
    "fit/parser.py": {"_actions", "_get_init_args"},  # argparse
    "reproduce/jobs.py": {"_run_exitfuncs"},  # atexit
    "reproduce/workers.py": {"_exit"},  # os, where it is public
    "report/dashboard.py": {"_to_model"},  # wandb_workspaces
    "models/group_norm.py": {"_BatchNorm"},  # torch
    "datamodules/changes/augmentation.py": {  # torchvision
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


def test_saves_by_time() -> None:
    assert not private.saves_by_time(ModelCheckpoint(every_n_epochs=2))
    assert private.saves_by_time(ModelCheckpoint(train_time_interval=timedelta(seconds=1)))


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


class Logs(Net):
    """Logs the epoch twice an epoch; ``again`` where it can."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        for name in ("usual", "again"):
            value = torch.tensor(float(self.current_epoch + batch_idx))
            if name == "usual" or not private.log_again(self, name, value):
                self.log(name, value, on_step=False, on_epoch=True, batch_size=1)
        return super().training_step(batch, batch_idx)


def test_log_again() -> None:
    """In each epoch the mean over its two batches, whatever the epochs before logged."""
    module, loader = Logs(), torch.utils.data.DataLoader([BATCHES] * 2, batch_size=None)
    trainer(rounds=3).fit(module, loader)
    assert module.trainer.callback_metrics["again"] == module.trainer.callback_metrics["usual"] == 2.5
    assert not private.log_again(module, "again", torch.tensor(0.0)), "outside of a hook"


def test_logging_hook() -> None:
    class Asks(Net):
        hooks: tuple[Any, ...] = ()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.hooks += (private.logging_hook(self),)
            return super().training_step(batch, batch_idx)

        def on_train_epoch_end(self) -> None:
            self.hooks += (private.logging_hook(self),)

    module = Asks()
    trainer().fit(module, torch.utils.data.DataLoader([BATCHES], batch_size=None))
    assert module.hooks == ("training_step", "on_train_epoch_end")
    assert private.logging_hook(module) is None


def test_saved_hyper_parameters() -> None:
    class Whole(Net):
        def __init__(self, *given: Any, hparams: dict[str, int] | None = None) -> None:
            super().__init__()
            self.save_hyperparameters(*given)

    assert private.saved_hyper_parameters(Net()) == (None, {})
    assert private.saved_hyper_parameters(Whole(hparams={"a": 1})) == ("kwargs", {"hparams": {"a": 1}})
    assert private.saved_hyper_parameters(Whole({"a": 1}, hparams={"a": 1})) == ("hparams", {"a": 1})
