"""What holds for all tests of one run: a working directory with a config, and a run to copy into it."""

import shutil
from contextlib import chdir
from pathlib import Path

import pytest
from lib.command import TINY, fit


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with tiny.yaml, whose modules are found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("tiny.yaml").write_text(TINY)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two rounds in runs/tiny/version_0; copy it."""
    with chdir(folder := tmp_path_factory.mktemp("trained")):
        Path("tiny.yaml").write_text(TINY)
        fit()
    return folder


@pytest.fixture
def last(_tiny: None, trained: Path) -> Path:
    """The last.ckpt of a copy of the run of two rounds in the working directory."""
    shutil.copytree(trained / "runs", "runs")
    return Path("runs", "tiny", "version_0", "checkpoints", "last.ckpt")
