"""The tests of FlowerDatasets, in an environment that has flwr_datasets: the project's own need not have it."""

import importlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from lib.command import HANG

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.slow
def test_flower_datasets_in_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY)
    environments: Any = importlib.import_module("benchmarks.environments")
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    try:
        interpreter = environments.python("flower-datasets", install=True)
    except environments.UnavailableError as error:
        pytest.skip(f"flwr-datasets is {error}")
    file = REPOSITORY / "tests" / "datamodules" / "tables" / "test_flower_datasets.py"
    command = [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout
