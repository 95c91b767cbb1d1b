"""Where a stopped run goes on."""

import os
from pathlib import Path

import pytest

from fl_lightning import ConfigurationError
from fl_lightning.runs.checkpoints import last_of_experiment


def test_last_checkpoint_is_the_one_written_last(tmp_path: Path) -> None:
    """By time, not by number; best.ckpt does not count."""
    for number, time in ((0, 100), (1, 300), (2, 200), (10, 50)):
        file = tmp_path / "e" / f"version_{number}" / "checkpoints" / "last.ckpt"
        file.parent.mkdir(parents=True)
        for name in (file, file.with_name("best.ckpt")):
            name.touch()
            os.utime(name, (time + 1000 * (name != file), time))
    assert last_of_experiment(tmp_path / "e") == tmp_path / "e" / "version_1"


def test_without_checkpoint_the_message_says_where_it_looked(tmp_path: Path) -> None:
    (tmp_path / "e" / "version_0").mkdir(parents=True)
    with pytest.raises(
        ConfigurationError, match=r"looks for .*/e/\*/checkpoints/last\.ckpt, but there is no such file: start"
    ):
        last_of_experiment(tmp_path / "e")
