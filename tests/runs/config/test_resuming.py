"""Which runs of W&B and MLflow go on, and where a key for W&B is found."""

import os
from pathlib import Path

import pytest
from lib.wandb_files import without_key

from fl_lightning.runs.config.resuming import tracked_run
from fl_lightning.runs.loggers.wandb import continue_wandb, has_wandb_key


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_key(tmp_path, monkeypatch)


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
