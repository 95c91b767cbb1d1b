"""Without the packages of the extras: training works, and what needs one says which to install."""

import os
import re
import subprocess
import sys
from pathlib import Path

from fl_lightning.fit.messages import mistake_in

MISSING = ["wandb", "wandb_workspaces", "tensorboard", "tensorboardX", "plotly", "pycocotools", "faster_coco_eval"]
MISSING += ["pyarrow", "datasets", "mlflow", "dp_accounting"]
SCRIPT = f"""
import sys
for name in {MISSING!r}:
    sys.modules[name] = None  # cannot be imported
from fl_lightning.cli import main
for line in sys.argv[1:]:
    print(main(line.split()), file=sys.stderr)
"""


def test_a_module_of_the_users_that_is_missing_is_no_extra() -> None:
    for error in (ModuleNotFoundError("No module named 'my_wandb_rules'", name="my_wandb_rules"), ImportError("wandb")):
        assert mistake_in(error) is None
    told = mistake_in(ModuleNotFoundError("Neither `tensorboard` nor `tensorboardX` is available."))
    assert told == "tensorboard is not installed: pip install 'fl-lightning[tensorboard]'"


FIT = "fit --config tiny.yaml --trainer.max_epochs 1 --trainer.enable_progress_bar false"
LINES = {  # command lines, and the package and the extra that each lacks
    FIT: None,
    f"{FIT} --trainer.callbacks+=ClientDP --trainer.callbacks.noise_multiplier 1": ("dp_accounting", "privacy"),
    "report runs": ("plotly", "report"),
    "dashboard --project mine": ("wandb", "wandb"),
    f"{FIT} --trainer.logger WandbLogger": ("wandb", "wandb"),
    f"{FIT} --trainer.logger TensorBoardLogger --trainer.logger.save_dir logs": ("tensorboard", "tensorboard"),
}


def test_training_needs_no_extra_and_what_needs_one_names_it() -> None:
    environment = {**os.environ, "WANDB_MODE": "offline"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *LINES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path("runs/tiny/version_0/metrics.csv").is_file()
    told = [line for line in done.stderr.splitlines() if re.match(r"fl-lightning: error: |\d$", line)]
    expected = ["0"]
    for package, extra in filter(None, LINES.values()):
        expected += [f"fl-lightning: error: {package} is not installed: pip install 'fl-lightning[{extra}]'", "2"]
    assert told == expected
