"""Which run of W&B goes on, and where a key is found."""

import os
from pathlib import Path

import pytest
from wandb_files import without_key

from fl_lightning.runs.wandb import continue_wandb, has_wandb_key


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_key(tmp_path, monkeypatch)


def test_wandb_is_told_which_run_goes_on(folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_key_is_found_where_wandb_login_puts_it(folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_wandb_key()
    Path(".netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123\n")
    assert has_wandb_key()
    Path(".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    assert has_wandb_key()
