"""Two processes never write into one folder; the lock of a dead process does not count."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lib.command import HANG, TINY, contents, fit, fit_on, process, refused, run

from fl_lightning import ConfigurationError
from fl_lightning.runs.folder.lock import Holds, held
from fl_lightning.runs.folder.run_folder import RunFolder

HOLD = """
import sys, time
from pathlib import Path
from fl_lightning.runs.folder.lock import held

with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(3600)
"""


@contextmanager
def holding(folder: Path) -> Iterator[int]:
    """Let another process hold a folder until it is killed, at the end of the ``with`` block; its number."""
    running = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "held\n"
    try:
        yield running.pid
    finally:
        running.kill()
        running.wait()


def test_a_folder_is_held_by_one_process(tmp_path: Path) -> None:
    """Its number and host are named; once it is killed, the folder is free, and no file is left."""
    with holding(folder := tmp_path / "run") as number:
        pattern = rf"^process {number} on \S+ is at work in {re.escape(str(folder))}: wait until the process ends; "
        with pytest.raises(ConfigurationError, match=pattern), held(folder):
            pass
    assert (folder / "lock").exists()
    with held(folder):
        assert (folder / "lock").read_text().startswith(f"{os.getpid()}\n")
    assert not list(folder.iterdir())


def test_the_lock_of_another_host_stays(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("17\nelsewhere\n")
    with (
        pytest.raises(ConfigurationError, match=r"^process 17 on elsewhere is at work in .*, delete .*/lock$"),
        held(tmp_path),
    ):
        pass
    assert (tmp_path / "lock").read_text() == "17\nelsewhere\n"


def test_a_run_folder_is_held_once_its_version_is_known(tmp_path: Path) -> None:
    with Holds() as holds:
        folder = RunFolder(tmp_path, "e", holds=holds)
        assert not (tmp_path / "e").exists()
        assert folder.version == "version_0"
        assert (tmp_path / "e/version_0/lock").exists()
    assert not (tmp_path / "e/version_0/lock").exists()
    RunFolder(tmp_path, "e", "version_0")
    assert not (tmp_path / "e/version_0/lock").exists()


def test_a_run_in_training_cannot_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    fit("--trainer.max_epochs", 1)
    go_on, folder = ("fit", "--config", "tiny.yaml", "--ckpt_path", "last"), Path("runs/tiny/version_0")
    with holding(folder) as number:
        before = contents(folder)
        assert refused(*go_on).startswith(f"process {number} on ")
        assert contents(folder) == before
    assert run(*go_on).status == 0
    assert not (folder / "lock").exists()


def test_forked_ranks_leave_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank, which takes the version, is a process of its own then, and ends without its parent's farewell."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    fit_on(2, "--trainer.max_epochs", 1)
    assert Path("runs/tiny/version_0/metrics.csv").exists()
    assert not Path("runs/tiny/version_0/lock").exists()


@pytest.mark.slow
def test_two_sweeps_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is refused while the first one trains; after a kill, a third one goes on at once."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    arguments = ("sweep", "--config", "tiny.yaml", "--seeds", 1, "--rounds", 300)
    command = [str(Path(sys.executable).with_name("fl-lightning")), *map(str, arguments)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + HANG
    while not list(Path("runs/sweep/runs").glob("*/*/run/*/metrics.csv")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = process(*arguments)
    assert second.returncode == 2
    assert second.stderr.startswith(f"fl-lightning: error: process {first.pid} on ")
    assert second.stderr.count("\n") == 1
    first.send_signal(signal.SIGKILL)
    first.wait()
    third = process(*arguments)
    assert third.returncode == 0, third.stderr
    assert not list(Path("runs/sweep").rglob("lock"))


LOCK_OF_ANOTHER_NODE = "4711\nnode7\n"


def test_a_job_that_slurm_requeued_takes_its_lock_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ran on another node before, where it was killed; another task of the same start waits."""
    (tmp_path / "lock").write_text(LOCK_OF_ANOTHER_NODE)
    (tmp_path / "lock.job").write_text(f"5.0\n{LOCK_OF_ANOTHER_NODE}")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    with pytest.raises(ConfigurationError, match="process 4711 on node7 is at work"), held(tmp_path):
        pass
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with held(tmp_path):
        assert (tmp_path / "lock.job").read_text().startswith("5.1\n")
    assert not [*tmp_path.iterdir()]


def test_a_lock_that_another_process_has_taken_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").write_text("4712\nnode8\n")
    (tmp_path / "lock.job").write_text(f"5.0\n{LOCK_OF_ANOTHER_NODE}")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with pytest.raises(ConfigurationError, match="process 4712 on node8 is at work"), held(tmp_path):
        pass


@pytest.mark.skipif("SLURM_CONF" not in os.environ, reason="needs SLURM")
@pytest.mark.slow
def test_the_lock_of_a_job_that_slurm_has_ended_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(LOCK_OF_ANOTHER_NODE)
    answer = subprocess.run(["sbatch", "--parsable", "--wrap", "sleep 5"], check=True, capture_output=True, text=True)
    (tmp_path / "lock.job").write_text(f"{answer.stdout.strip()}.0\n{LOCK_OF_ANOTHER_NODE}")
    with pytest.raises(ConfigurationError, match="process 4711 on node7 is at work"), held(tmp_path):
        pass
    subprocess.run(["scancel", answer.stdout.strip()], check=True)
    time.sleep(3)
    with held(tmp_path):
        pass
