"""What ``--ckpt_path`` stands for, which runs of W&B and MLflow go on, and where a key for W&B is found."""

import os
import shutil
from pathlib import Path

import lightning
import pytest
import torch
from jsonargparse import Namespace
from lib.wandb_files import without_key

from fl_lightning.runs.config.resuming import Resumed, tracked_run
from fl_lightning.runs.loggers.wandb import continue_wandb, has_wandb_key


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_key(tmp_path, monkeypatch)


EXPERIMENT = Path("runs/mine")


@pytest.fixture
def last() -> Path:
    """The last.ckpt of a run of three rounds, with what a run needs to go on."""
    path = EXPERIMENT / "version_0/checkpoints/last.ckpt"
    path.parent.mkdir(parents=True)
    (EXPERIMENT / "version_0/config.yaml").touch()
    state = {name: {"a": 1} for name in ("state_dict", "loops", "optimizer_states", "callbacks")}
    torch.save({**state, "rounds_done": 3, "epoch": 2, "pytorch-lightning_version": lightning.__version__}, path)
    return path


def test_without_ckpt_path_nothing_is_resumed() -> None:
    assert Resumed.of(Namespace(), EXPERIMENT, trains=True) is None
    assert Resumed.of(Namespace(ckpt_path=None), EXPERIMENT, trains=True) is None


@pytest.mark.parametrize("named", [True, False])
def test_last_and_the_path_of_a_checkpoint_stand_for_the_run_around_it(last: Path, named: bool) -> None:
    config = Namespace(ckpt_path=str(last) if named else "last")
    folder = last.parents[1].resolve()
    assert Resumed.of(config, EXPERIMENT, trains=True) == Resumed(last, 3, folder, trains=True)


def test_a_checkpoint_elsewhere_has_no_run_folder(last: Path) -> None:
    shutil.copy(last, "copy.ckpt")
    found = Resumed.of(Namespace(ckpt_path="copy.ckpt"), EXPERIMENT, trains=True)
    assert found == Resumed(Path("copy.ckpt"), 3, None, trains=True)


def test_a_test_of_the_model_drops_no_rounds() -> None:
    """Of a run folder whose metrics.csv has more rounds than the checkpoint."""
    assert Resumed(Path("last.ckpt"), 3, None, trains=True).rounds_to_keep == 3
    assert Resumed(Path("last.ckpt"), 3, None, trains=False).rounds_to_keep is None


@pytest.mark.parametrize(("tracker", "name"), [("wandb", "W&B"), ("mlflow", "MLflow")])
@pytest.mark.parametrize(("rounds", "continued"), [(3, True), (None, True), (2, False)])
def test_no_tracker_takes_rounds_back(
    capsys: pytest.CaptureFixture[str], tracker: str, name: str, rounds: int | None, continued: bool
) -> None:
    """Round 3 was trained to its end, round 4 not: after 3 it is the same run, and so in a test; after 2, another."""
    Path("environment.yaml").write_text("wandb: {id: abc}\nmlflow: {id: abc}")
    Path("metrics.csv").write_text("round,lr-SGD\n1,1\n2,1\n3,1\n4,1\n")
    Path("timings.csv").write_text("round,seconds\n1,1\n2,1\n3,1\n")
    assert tracked_run(Path(), rounds, tracker) == ("abc" if continued else None)
    assert (f"{name}: round 3 is there already" in capsys.readouterr().out) != continued


@pytest.mark.parametrize("file", [None, "data: 0123456789abcdef"])
def test_a_folder_that_names_no_run(file: str | None) -> None:
    if file:
        Path("environment.yaml").write_text(file)
    assert tracked_run(Path(), 1, "wandb") is None


def test_wandb_is_told_which_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder that names one; an id that the user gives wins."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    continue_wandb(Path(), 3)
    assert "WANDB_RUN_ID" not in os.environ
    Path("environment.yaml").write_text("wandb: {id: abc}")
    continue_wandb(Path(), 3)
    assert os.environ["WANDB_RUN_ID"] == "abc"
    os.environ["WANDB_RUN_ID"] = "mine"
    continue_wandb(Path(), 3)
    assert os.environ["WANDB_RUN_ID"] == "mine"


def test_a_key_is_found_where_wandb_login_puts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_wandb_key()
    Path(".netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123\n")
    assert has_wandb_key()
    Path(".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    assert has_wandb_key()
