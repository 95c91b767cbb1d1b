"""A run that is asked to stop ends in order, and goes on as if it had not stopped."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from lib.command import HANG, fit, process, rows, run
from lib.resumed import assert_same
from lib.toy import GivenData, Linear, trainer
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from fl_lightning import FederatedOrchestrator
from fl_lightning.fit.stop_signals import Stopping, requeues

OWN = """
import os, signal, time
from fl_lightning import FederatedCallback

class Signalled(FederatedCallback):
    def __init__(self, signals: list[str]):
        self.signals = signals

    def on_client_start(self, orchestrator, run):
        if run.round == 3 and run.client == 2:
            for name in self.signals:
                os.kill(os.getpid(), getattr(signal, name))

class Started(FederatedCallback):
    def on_client_start(self, orchestrator, run):
        open(f"client {run.client} of round {run.round}", "w").close()
        time.sleep(0.2)
"""
LAST = Path("runs/tiny/version_0/checkpoints/last.ckpt")
WITHOUT = ("--resume_changed", "true")  # goes on without the callback that stopped the run
ONE_BY_ONE = ("--data.clients_per_batch", "1", "--trainer.max_epochs", "4")


@pytest.fixture(autouse=True)
def _own() -> None:
    Path("own.py").write_text(OWN)


def goes_on() -> None:
    """The run goes on to what a run without an interruption gives."""
    fit(*ONE_BY_ONE, "--ckpt_path", "last", *WITHOUT)
    fit(*ONE_BY_ONE, "--experiment", "whole")
    assert_same(LAST, Path("runs/whole/version_0/checkpoints/last.ckpt"))


def signalled(*names: str) -> list[str]:
    return ["--trainer.callbacks+=own.Signalled", "--trainer.callbacks.signals", f"[{','.join(names)}]"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_lets_the_client_under_way_finish(name: str) -> None:
    """Client 2 is the third of four; its round is dropped."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    stopped = run("fit", "--config", "tiny.yaml", *ONE_BY_ONE, *signalled(name), "--trainer.min_epochs", 4)
    assert {number: signal.getsignal(number) for number in before} == before
    assert stopped.status == 128 + getattr(signal, name)
    again = "Ctrl-C" if name == "SIGINT" else name
    assert stopped.err.strip().splitlines() == [
        f"stopping after the current client; {again} again stops at once",
        f"stopped after round 2: the same command with --ckpt_path {LAST} continues the run",
    ]
    assert "round 3 was stopped when 3 of its 4 clients were done, and is dropped; rounds done: 2" in stopped.warnings
    assert [len(rows(LAST.parents[1] / file)) for file in ("metrics.csv", "timings.csv")] == [2, 2]


def test_two_different_signals_are_one_request() -> None:
    """A sweep that gets Ctrl-C sends its jobs SIGTERM, while the terminal has sent them SIGINT.

    The run goes on to what the whole run gives.
    """
    stopped = run("fit", "--config", "tiny.yaml", *ONE_BY_ONE, *signalled("SIGINT", "SIGTERM"))
    assert stopped.status == 128 + signal.SIGTERM
    assert torch.load(LAST, weights_only=True)["rounds_done"] == 2
    goes_on()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_same_signal_again_stops_at_once(name: str) -> None:
    ended = process("fit", "--config", "tiny.yaml", *ONE_BY_ONE, *signalled(name, name))
    assert ended.returncode == -getattr(signal, name)
    assert "Traceback" not in ended.stderr
    goes_on()


def test_stopped_in_the_first_round() -> None:
    """Nothing is saved, and the line says so."""
    Path("own.py").write_text(OWN.replace("run.round == 3", "run.round == 1"))
    stopped = run("fit", "--config", "tiny.yaml", *ONE_BY_ONE, *signalled("SIGINT"))
    assert stopped.status == 130
    assert stopped.err.endswith("stopped before the end of the first round: start the run again\n")


@pytest.mark.slow
def test_several_devices_stop_together() -> None:
    """One of two devices is asked; both finish the round, and the run goes on to what one device gives."""
    command = [str(Path(sys.executable).with_name("fl-lightning")), "fit", "--config", "tiny.yaml"]
    command += ["--trainer.callbacks+=own.Started", "--trainer.devices", "2", "--trainer.max_epochs", "40"]
    running = subprocess.Popen([*command, "--experiment", "e"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + HANG
    while not list(Path().glob("client * of round 3")):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=HANG)
    assert running.returncode == 130, err
    assert "stopping after the current round; Ctrl-C again stops at once" in err
    last = Path("runs/e/version_0/checkpoints/last.ckpt")
    rounds = torch.load(last, weights_only=True)["rounds_done"]
    assert f"stopped after round {rounds}: the same command with --ckpt_path {last} continues the run" in err
    fit("--trainer.max_epochs", rounds + 1, "--experiment", "e", "--ckpt_path", "last", *WITHOUT)
    fit("--trainer.max_epochs", rounds + 1, "--experiment", "whole")
    assert_same(last, Path("runs/whole/version_0/checkpoints/last.ckpt"))


@pytest.mark.parametrize("seconds", [0, 0.5, 0.7, 1])
def test_ctrl_c_while_pytorch_is_imported_prints_no_traceback(seconds: float) -> None:
    """As the words in the terminal say; some modules swallow a KeyboardInterrupt, or are broken by it."""
    command = [str(Path(sys.executable).with_name("fl-lightning")), "fit", "--config", "tiny.yaml"]
    ours, theirs = pty.openpty()
    running = subprocess.Popen(command, stderr=theirs)
    os.close(theirs)
    said = b""
    while b"importing" not in said:
        said += os.read(ours, 1000)
    time.sleep(seconds)
    running.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the terminal has no more readers
        while more := os.read(ours, 1000):
            said += more
    assert running.wait(HANG) == 130
    assert b"Traceback" not in said


def test_ctrl_c_while_the_config_is_read_prints_no_traceback() -> None:
    Path("own.py").write_text("raise KeyboardInterrupt")
    stopped = run("fit", "--config", "tiny.yaml", "--data", "own.Data")
    assert (stopped.status, stopped.err) == (130, "stopped\n")


def test_a_fit_in_a_worker_thread_leaves_the_signals_alone() -> None:
    """Python lets only the main thread set handlers."""
    before = signal.getsignal(signal.SIGTERM)
    fit_trainer = trainer(Stopping())
    model = FederatedOrchestrator(Linear(1))
    errors: list[BaseException] = []

    def train() -> None:
        try:
            fit_trainer.fit(model, datamodule=GivenData(torch.zeros(2, 1)))
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=train)
    worker.start()
    worker.join(HANG)
    assert not errors
    assert model.rounds_done >= 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_requeues() -> None:
    """As Lightning's environment for SLURM says."""
    assert not requeues(trainer())
    for requeue in (True, False):
        assert requeues(trainer(plugins=[SLURMEnvironment(auto_requeue=requeue)])) is requeue
