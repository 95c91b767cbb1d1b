"""Which run of W&B goes on, and where a key is found."""

import os
from pathlib import Path

import pytest
from wandb_files import without_key

from fl_lightning.runs.wandb import continue_wandb, has_wandb_key


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_key(tmp_path, monkeypatch)


@pytest.mark.parametrize(("rounds", "continued"), [(3, True), (None, True), (2, False)])
def test_wandb_takes_no_rounds_back(
    folder: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    rounds: int | None,
    continued: bool,
) -> None:
    """Round 3 was trained to its end, round 4 not: after 3 it is the same run, and so in a test; after 2, another."""
    monkeypatch.setenv("WANDB_RUN_ID", "")
    del os.environ["WANDB_RUN_ID"]
    Path("environment.yaml").write_text("wandb: {id: abc}")
    Path("metrics.csv").write_text("round,lr-SGD\n1,1\n2,1\n3,1\n4,1\n")
    Path("timings.csv").write_text("round,seconds\n1,1\n2,1\n3,1\n")
    continue_wandb(Path(), rounds)
    assert os.environ.get("WANDB_RUN_ID") == ("abc" if continued else None)
    assert ("round 3 is there already" in capsys.readouterr().out) != continued


@pytest.mark.parametrize("file", [None, "data: 0123456789abcdef"])
def test_a_folder_that_names_no_run_of_wandb(folder: None, file: str | None) -> None:
    if file:
        Path("environment.yaml").write_text(file)
    continue_wandb(Path(), 1)
    assert "WANDB_RUN_ID" not in os.environ


def test_a_key_is_found_where_wandb_login_puts_it(folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_wandb_key()
    Path(".netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123\n")
    assert has_wandb_key()
    Path(".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    assert has_wandb_key()


# Fingerprints
