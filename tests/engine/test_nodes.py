"""Two nodes on one machine, started as docs/how-to/cluster.md says: the bits of one process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import HANG, TINY, fit, free_port, rows
from resumed import assert_same

BIN = Path(sys.executable).parent
NODES = ["--trainer.num_nodes", "2", "--trainer.devices", "1", "--trainer.strategy", "client_parallel"]
SLURM = ["--trainer.plugins", "SLURMEnvironment", "--trainer.plugins.auto_requeue", "false"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    return tmp_path


def command(experiment: str, rounds: int) -> list[str]:
    whole = ["fit", "--config", "tiny.yaml", "--experiment", experiment, "--trainer.max_epochs", str(rounds)]
    return [str(BIN / "fl-lightning"), *whole]


def same(one: str, other: str) -> None:
    first, second = (Path("runs", name, "version_0") for name in (one, other))
    assert_same(first / "checkpoints/last.ckpt", second / "checkpoints/last.ckpt")
    assert (first / "metrics.csv").read_text() == (second / "metrics.csv").read_text()


def test_torchrun(folder: Path) -> None:
    fit("--experiment", "one", "--trainer.max_epochs", 3)
    port = free_port()
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
    nodes = [
        subprocess.Popen([str(BIN / "torchrun"), *where, "--node-rank", rank, *command("two", 3), *NODES])
        for rank in ("0", "1")
    ]
    assert [node.wait(HANG) for node in nodes] == [0, 0]
    same("one", "two")


def tasks(*args: str) -> list[subprocess.Popen[bytes]]:
    """Two tasks with the variables that srun gives them."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "two", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
    job |= {"SLURM_LOCALID": "0", "SLURM_NODELIST": "127.0.0.1", "SLURM_NTASKS_PER_NODE": "1"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [
        subprocess.Popen(
            [*command("two", 60), *NODES, *SLURM, *args],
            env={**os.environ, **job, "SLURM_PROCID": rank, "SLURM_NODEID": rank},
        )
        for rank in ("0", "1")
    ]


@pytest.mark.slow
def test_slurm_stops_and_goes_on(folder: Path) -> None:
    """SIGUSR1 to both tasks ends them after a round; srun returns the largest status."""
    fit("--experiment", "one", "--trainer.max_epochs", 60)
    started, metrics = tasks(), Path("runs/two/version_0/metrics.csv")
    deadline = time.monotonic() + HANG
    while not (metrics.exists() and len(rows(metrics)) > 2):
        assert time.monotonic() < deadline
        assert all(task.poll() is None for task in started)
        time.sleep(0.01)
    for task in started:
        task.send_signal(signal.SIGUSR1)
    assert [task.wait(HANG) for task in started] == [138, 0]
    assert len(rows(metrics)) < 60
    assert [task.wait(HANG) for task in tasks("--ckpt_path", "last")] == [0, 0]
    same("one", "two")
