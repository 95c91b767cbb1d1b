"""A run that is killed goes on from its last round as if nothing had happened."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import fit
from resumed import assert_same

RUN = ["fit", "--config", "digits_gh.yaml", "--model.local_epochs", "10", "--trainer.max_epochs", "8"]


def test_kill_9_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = [str(Path(sys.executable).with_name("fl-lightning")), *RUN, "--experiment", "killed"]
    metrics = Path("runs/killed/version_0/metrics.csv")
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 3):
        assert running.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert len(metrics.read_text().splitlines()) < 9

    arguments = ["--model.local_epochs", 10, "--trainer.max_epochs", 8]
    fit(*arguments, "--experiment", "killed", "--ckpt_path", "last", config="digits_gh.yaml")
    fit(*arguments, "--experiment", "whole", config="digits_gh.yaml")
    whole = Path("runs/whole/version_0")
    assert_same(whole / "checkpoints/last.ckpt", Path("runs/killed/version_0/checkpoints/last.ckpt"))
    assert metrics.read_text() == (whole / "metrics.csv").read_text()
