"""Several ranks: who waits for whom is said, and no rank outlives the others."""

import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from lib.command import HANG, TINY, fit
from lib.resumed import assert_same

from fl_lightning.engine.devices.strategy import ClientParallelStrategy

OWN = """
import os, signal, time
from pathlib import Path
from fl_lightning import FederatedCallback
from fl_lightning.engine.devices import ranks

ranks.FIRST_S = 3

class Trouble(FederatedCallback):
    def __init__(self, rank: int, what: str):
        self.rank, self.what = rank, what

    def on_client_start(self, orchestrator, run):
        if run.round == 3 and orchestrator.trainer.global_rank == self.rank and Path("trouble").exists():
            if self.what == "stall":
                time.sleep(3600)
            elif self.what == "slow":
                time.sleep(8)
            elif self.what == "nan":
                run.params.fill_(float("nan"))
            elif self.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.what == "raise":
                raise RuntimeError("of the user's own")
            elif self.what == "memory":
                bytearray(1 << 60)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        if self.what == "slow disk" and pl_module.rounds_done == 2 and trainer.global_rank == self.rank:
            time.sleep(8)
"""
FIT = ("fit", "--config", "tiny.yaml", "--trainer.max_epochs", "4", "--trainer.devices", "2")
LAST = Path("runs/tiny/version_0/checkpoints/last.ckpt")


def run_with(rank: int, what: str, *more: str) -> tuple[int, str, float, list[int]]:
    """Status, standard error, seconds from the first word of trouble on, and what is alive 12 seconds after the end."""
    Path("own.py").write_text(OWN)
    Path("tiny.yaml").write_text(TINY)
    Path("trouble").touch()
    trouble = ["--trainer.callbacks+=own.Trouble", "--trainer.callbacks.rank", str(rank)]
    command = [str(Path(sys.executable).with_name("fl-lightning")), *FIT, *trouble, "--trainer.callbacks.what", what]
    began = time.monotonic()
    running = subprocess.Popen([*command, *more], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    children: set[psutil.Process] = set()
    while running.poll() is None:
        children |= set(psutil.Process(running.pid).children()) if psutil.pid_exists(running.pid) else set()
        assert time.monotonic() - began < HANG
        time.sleep(0.2)
    seconds = time.monotonic() - began
    assert running.stderr is not None
    _, alive = psutil.wait_procs(children, timeout=12)
    return running.returncode, running.stderr.read(), seconds, [process.pid for process in alive]


def lines(err: str) -> list[str]:
    """What the command says, without warnings and Lightning's own log."""
    return [line for line in err.splitlines() if re.match(r"fl-lightning|rank|Traceback|RuntimeError", line)]


def goes_on() -> None:
    Path("trouble").unlink()
    fit("--trainer.max_epochs", 4, "--ckpt_path", "last", "--resume_changed", "true")
    fit("--trainer.max_epochs", 4, "--experiment", "whole")
    assert_same(LAST, Path("runs/whole/version_0/checkpoints/last.ckpt"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("what", ["kill", "raise", "memory", "stall"])
def test_a_rank_in_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, what: str) -> None:
    """The other rank does not hang, a line names rank and client, no process is left; the run goes on from round 2."""
    monkeypatch.chdir(tmp_path)
    more = ["--model.on_bad_update", "raise"]
    if what == "stall":
        more += ["--trainer.strategy", "ClientParallelStrategy", "--trainer.strategy.timeout", "0:00:20"]
    status, err, seconds, alive = run_with(rank, what, *more)
    print(f"{what} of rank {rank}: status {status} after {seconds:.0f} s; {lines(err)}")
    assert status != 0
    assert not alive
    at = r"\(client \d of round 3\)"
    if what == "stall":
        assert re.search(rf"^rank {1 - rank} has waited \d+ s for rank {rank} {at}$", err, re.M), err
        assert re.search(rf"rank {1 - rank} has waited in vain for rank {rank} {at}: the run", err), err
    elif rank == 1:
        how = "by SIGKILL" if what == "kill" else "with status 1"
        assert re.search(rf"^fl-lightning: error: rank 1 {at} ended {how}: the run can go on", err, re.M), err
    assert ("Traceback" in err) == (what in ("raise", "memory")), "the user's own error keeps its traceback"
    assert torch.load(LAST, weights_only=True)["rounds_done"] == 2
    goes_on()


@pytest.mark.slow
@pytest.mark.parametrize(("what", "rank"), [("slow", 1), ("nan", 1), ("slow disk", 0)])
def test_trouble_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, rank: int) -> None:
    """A slow rank, and one that is slow to write: a word about who waits. One that sends nan: a client is left out."""
    monkeypatch.chdir(tmp_path)
    status, err, _, alive = run_with(rank, what)
    print(f"{what}: status {status}; {lines(err)}")
    assert status == 0, err
    assert not alive
    assert (f"rank {1 - rank} has waited" in err) == (what != "nan")
    assert ("its update is not finite" in err) == (what == "nan")


@pytest.mark.slow
def test_rank_0_ends_before_the_ranks_have_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    more = ["--trainer.strategy", ClientParallelStrategy.strategy_name]
    command = [str(Path(sys.executable).with_name("fl-lightning")), *FIT, *more]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children: list[psutil.Process] = []
    while not children:
        with suppress(psutil.Error):  # a child that has just ended, such as one that asks for the processor's name
            found = psutil.Process(running.pid).children()
            children = [each for each in found if "tiny.yaml" in " ".join(each.cmdline())]
        assert running.poll() is None
    running.kill()
    running.wait()
    _, alive = psutil.wait_procs(children, timeout=30)
    for process in alive:
        process.kill()
    assert not alive
