"""Which run of W&B goes on, and where a key is found."""

import os
from pathlib import Path

import pytest
from wandb_files import without_key

from fl_lightning.runs.wandb import continue_wandb, has_wandb_key


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_key(tmp_path, monkeypatch)


@pytest.mark.parametrize("given", [None, "mine"])
def test_wandb_is_told_which_run_goes_on(folder: None, monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """An id that the user gives wins."""
    monkeypatch.setenv("WANDB_RUN_ID", given or "")
    if given is None:
        del os.environ["WANDB_RUN_ID"]
    Path("environment.yaml").write_text("wandb: {id: abc}")
    continue_wandb(Path(), 3)
    assert os.environ["WANDB_RUN_ID"] == (given or "abc")


def test_a_folder_that_names_no_run_of_wandb(folder: None) -> None:
    continue_wandb(Path(), 1)
    assert "WANDB_RUN_ID" not in os.environ


def test_a_key_is_found_where_wandb_login_puts_it(folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_wandb_key()
    Path(".netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123\n")
    assert has_wandb_key()
    Path(".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    assert has_wandb_key()
