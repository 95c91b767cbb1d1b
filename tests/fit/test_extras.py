"""Without the packages of the extras: training works, and what needs one says which to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import TINY

from fl_lightning.fit.messages import mistake_in

MISSING = ["wandb", "wandb_workspaces", "tensorboard", "tensorboardX", "plotly", "pycocotools", "faster_coco_eval"]
MISSING += ["pyarrow", "datasets", "mlflow"]
SCRIPT = f"""
import sys
for name in {MISSING!r}:
    sys.modules[name] = None  # cannot be imported
from fl_lightning.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run(folder: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    (folder / "tiny.yaml").write_text(TINY)
    (metrics := folder / "runs/old/version_0/metrics.csv").parent.mkdir(parents=True)
    metrics.write_text("round,val/top1\n1,0.5\n")
    environment = {**os.environ, "WANDB_MODE": "offline"}
    command = [sys.executable, "-c", SCRIPT, *args]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_training_needs_no_extra(tmp_path: Path) -> None:
    done = run(tmp_path, "fit", "--config", "tiny.yaml", "--trainer.max_epochs", "1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/tiny/version_0/metrics.csv").is_file()


def test_a_module_of_the_users_that_is_missing_is_no_extra() -> None:
    for error in (ModuleNotFoundError("No module named 'my_wandb_rules'", name="my_wandb_rules"), ImportError("wandb")):
        assert mistake_in(error) is None
    told = mistake_in(ModuleNotFoundError("Neither `tensorboard` nor `tensorboardX` is available."))
    assert told == "tensorboard is not installed: pip install 'fl-lightning[tensorboard]'"


CASES = [
    (["report", "runs"], "plotly", "report"),
    (["dashboard", "--project", "mine"], "wandb", "wandb"),
    (["fit", "--config", "tiny.yaml", "--trainer.logger", "WandbLogger"], "wandb", "wandb"),
    (
        ["fit", "--config", "tiny.yaml", "--trainer.logger", "TensorBoardLogger", "--trainer.logger.save_dir", "logs"],
        "tensorboard",
        "tensorboard",
    ),
]


@pytest.mark.parametrize(("args", "package", "extra"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_what_needs_an_extra_names_it(args: list[str], package: str, extra: str, tmp_path: Path) -> None:
    done = run(tmp_path, *args)
    *_, last = done.stderr.splitlines()
    assert (done.returncode, last) == (
        2,
        f"fl-lightning: error: {package} is not installed: pip install 'fl-lightning[{extra}]'",
    )
