"""A run that is killed goes on from its last round as if nothing had happened."""

import signal
from pathlib import Path

import pytest
from command import fit, process, rows
from resumed import assert_same

RUN = ["--data.clients_per_batch", "1", "--trainer.max_epochs", "8", "--trainer.callbacks+=killed.Killed"]
KILLED = """
import os, signal
from pathlib import Path
from fl_lightning import FederatedCallback

class Killed(FederatedCallback):
    def on_client_start(self, orchestrator, run):
        if run.round == 4 and run.client == 7 and Path("kill").exists():
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of round 4, after seven of its 20 clients."""
    monkeypatch.chdir(tmp_path)
    Path("killed.py").write_text(KILLED)
    Path("kill").touch()
    done = process("fit", "--config", "digits_gh.yaml", *RUN, "--experiment", "killed")
    assert done.returncode == -signal.SIGKILL, done.stderr
    Path("kill").unlink()
    metrics = Path("runs/killed/version_0/metrics.csv")
    assert len(rows(metrics)) == 3

    fit(*RUN, "--experiment", "killed", "--ckpt_path", "last", config="digits_gh.yaml")
    fit(*RUN, "--experiment", "whole", config="digits_gh.yaml")
    whole = Path("runs/whole/version_0")
    assert_same(whole / "checkpoints/last.ckpt", Path("runs/killed/version_0/checkpoints/last.ckpt"))
    assert metrics.read_text() == (whole / "metrics.csv").read_text()
