"""A run that is killed goes on from its last round as if nothing had happened."""

import os
import signal
from pathlib import Path

import pytest
from lib.command import TINY, fit, rows
from lib.resumed import assert_same

RUN = ("--trainer.max_epochs", 4, "--trainer.callbacks+=GradientHarmonization", "--trainer.callbacks+=killed.Killed")
KILLED = """
import os, signal
from pathlib import Path
from fl_lightning import FederatedCallback

class Killed(FederatedCallback):
    def on_client_end(self, orchestrator, run):
        if run.round == 3 and run.client == 2 and Path("kill").exists():
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of round 3, in a process that is forked from this one to save imports."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("killed.py").write_text(KILLED)
    Path("kill").touch()
    if (child := os.fork()) == 0:
        fit(*RUN, "--experiment", "killed")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    Path("kill").unlink()
    metrics = Path("runs/killed/version_0/metrics.csv")
    assert len(rows(metrics)) == 2

    fit(*RUN, "--experiment", "killed", "--ckpt_path", "last")
    fit(*RUN, "--experiment", "whole")
    whole = Path("runs/whole/version_0")
    assert_same(whole / "checkpoints/last.ckpt", Path("runs/killed/version_0/checkpoints/last.ckpt"))
    assert metrics.read_text() == (whole / "metrics.csv").read_text()
