"""Runs as jobs of SLURM, by submitit, where there is SLURM."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from lib.command import HANG, TINY, process, run

SWEEP = ("sweep", "--config", "tiny.yaml", "--grid", "data.num_clients=2,3", "--seeds", 3, "--jobs", 2)
SLURM = pytest.mark.skipif(
    shutil.which("sbatch") is None or "SLURM_CONF" not in os.environ, reason="needs SLURM, with SLURM_CONF"
)
PARAMETERS = "timeout_min: 10\ncpus_per_task: 1\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory holds tiny.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


def refusal() -> str:
    """The one line of the refused sweep, in a process of its own: importing submitit sets all loggers anew."""
    ended = process(*SWEEP, "--on", "on.yaml")
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("\n") == 1
    return ended.stderr.removeprefix("fl-lightning: error: ").removesuffix("\n")


def start(*args: object) -> subprocess.Popen[bytes]:
    """``fl-lightning ARGS`` as a process that goes on."""
    return subprocess.Popen([str(Path(sys.executable).with_name("fl-lightning")), *map(str, args)])


def results() -> pd.DataFrame:
    return pd.read_csv("runs/sweep/tiny/results.csv").drop(columns=["folder", "seconds"])


def results_here(*options: object) -> pd.DataFrame:
    """The results of the same sweep in processes of this machine."""
    assert run(*SWEEP, *options, "--out", "here").status == 0
    return pd.read_csv("here/tiny/results.csv").drop(columns=["folder", "seconds"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "on.yaml: expected submitit's parameters, as in timeout_min: 60, got"),
        ("slurm_array_parallelism: 3", "on.yaml: slurm_array_parallelism is what --jobs says: leave it out"),
        ("cluster: local", "on.yaml: expected cluster: slurm, got local: leave --on out to train on this machine"),
    ],
)
def test_a_file_that_submitit_does_not_take(text: str, message: str) -> None:
    Path("on.yaml").write_text(text)
    assert re.match(message, refusal())


def test_no_such_file() -> None:
    assert refusal() == "--on on.yaml: No such file or directory"


@SLURM
def test_a_parameter_that_submitit_does_not_know() -> None:
    Path("on.yaml").write_text("timeout: 5")
    assert re.match("on.yaml: .*timeout", refusal())


@SLURM
@pytest.mark.slow
def test_slurm_trains_the_same_runs() -> None:
    Path("on.yaml").write_text(PARAMETERS)
    ended = process(*SWEEP, "--on", "on.yaml")
    assert ended.returncode == 0, ended.stderr
    assert "the runs are jobs of SLURM, 2 at a time" in ended.stdout
    pd.testing.assert_frame_equal(results(), results_here())


@SLURM
@pytest.mark.slow
def test_ctrl_c_ends_the_runs_and_the_same_command_goes_on() -> None:
    Path("on.yaml").write_text(PARAMETERS)
    longer = (*SWEEP, "--seeds", 1, "--rounds", 40, "--on", "on.yaml")
    running = start(*longer)
    deadline = time.monotonic() + HANG
    while not [*Path("runs").rglob("last.ckpt")]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    assert running.wait(HANG) == 130
    held = [*Path("runs/sweep/runs").rglob("lock")]
    while any(lock.is_file() for lock in held):  # a run ends after the client that trains
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert process(*longer).returncode == 0
    assert len(results()) == 2


@SLURM
@pytest.mark.slow
def test_a_killed_job_is_trained_again_by_the_same_command() -> None:
    Path("on.yaml").write_text(PARAMETERS)
    longer = ("--seeds", 1, "--rounds", 60)
    running = start(*SWEEP, *longer, "--on", "on.yaml")
    deadline = time.monotonic() + HANG
    while not (started := [*Path("runs").rglob("last.ckpt")]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    task = Path(started[0].parents[3], "submitted.txt").read_text()
    subprocess.run(["scancel", "--signal=KILL", "--full", task], check=True)
    assert running.wait(HANG) == 1
    assert process(*SWEEP, *longer, "--on", "on.yaml").returncode == 0
    pd.testing.assert_frame_equal(results(), results_here(*longer))
