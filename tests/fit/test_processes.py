"""How many processes a run on a CPU takes by itself; that these are forks, and change no bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lib.command import TINY, rows
from lib.toy import GivenData, Linear
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.fit import processes
from fl_lightning.fit.processes import choose_processes, count_cores, time_step

SLOW = """
import os, time
from pathlib import Path
from fl_lightning import FederatedCallback

LOADED = os.getpid()  # of the process that has imported this file


class Slow(FederatedCallback):
    def on_client_end(self, orchestrator, run):
        with Path("seen").open("a") as file:
            file.write(f"{os.getpid()} {LOADED}\\n")
"""
SLEEPS = """
import time, torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, random_split
from fl_lightning.datamodules import Digits, PartitionedData
from fl_lightning.models import ImageClassifier


class Split(LightningDataModule):
    def setup(self, stage):
        images, labels = Digits(normalize=[0, 1]).load(True)
        whole = torch.utils.data.TensorDataset(images / 255, labels)
        self.train, self.val = random_split(whole, [0.8, 0.2])  # by the global generator

    def train_dataloader(self):
        return DataLoader(self.train, 32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, 64)


class Drawn(PartitionedData):
    def __init__(self, seed: int = 0):
        super().__init__(Split(), num_clients=4, seed=seed)


class Sleeps(ImageClassifier):
    def training_step(self, batch, batch_idx):
        time.sleep(0.05)
        return super().training_step(batch, batch_idx)
"""


def data(sizes: list[int]) -> GivenData:
    return GivenData(torch.zeros(len(sizes), 1), samples=sizes)


@pytest.mark.parametrize(
    ("step", "rounds", "clients", "most", "expected"),
    [
        (0.001, 3, 10, 8, 1),  # 30 steps take 0.03 s
        (0.1, 100, 10, 2, 2),
        (0.1, 100, 10, 64, 10),
        (0.1, 100, 10, 8, 5),  # with 6, 7 or 8 processes, one still trains two clients
        (0.1, 100, 1, 8, 1),
        (None, 100, 10, 8, 1),
    ],
)
def test_as_many_as_pay(
    monkeypatch: pytest.MonkeyPatch, step: float | None, rounds: int, clients: int, most: int, expected: int
) -> None:
    monkeypatch.setattr(processes, "time_step", lambda *_: step)
    assert choose_processes(FederatedOrchestrator(Linear(1)), data([1] * clients), rounds, most) == expected


def test_a_step_is_timed_on_a_copy() -> None:
    """Neither the module nor the random numbers change."""

    class Draws(Linear):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            self.w.data.add_(1)
            return super().training_step(batch, batch_idx) * torch.rand(())

    module = Draws(1)
    before, state = module.w.detach().clone(), torch.get_rng_state()
    seconds = time_step(FederatedOrchestrator(module), data([3, 5]))
    assert seconds is not None
    assert 0 < seconds < 1
    assert torch.equal(module.w, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_module_that_needs_its_trainer_is_not_timed() -> None:
    class Manual(Linear):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.optimizers().step()  # type: ignore[union-attr]

    assert time_step(FederatedOrchestrator(Manual(1)), data([3, 5])) is None


def test_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cpu_count", lambda: 8)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert [count_cores(threads) for threads in (1, 3, 16)] == [8, 2, 1]
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert count_cores(1) == 4


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_long_run_forks_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process has this file's module from the first one, which has imported it; the result is that of one.

    The data are split at random each time that they are set up.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    Path("tiny.yaml").write_text(f"{TINY.partition('data:')[0]}data: {{class_path: mine.Drawn}}\n")
    Path("mine.py").write_text(SLOW + SLEEPS)
    command = [str(Path(sys.executable).with_name("fl-lightning")), "fit", "--config", "tiny.yaml"]
    command += ["--trainer.callbacks+=mine.Slow", "--model.client=mine.Sleeps", "--trainer.max_epochs=4"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 processes train different clients" in done.stdout
    seen = {tuple(line.split()) for line in Path("seen").read_text().splitlines()}
    assert len(seen) == 2
    assert len({loaded for _, loaded in seen}) == 1
    alone = subprocess.run([*command, "--trainer.devices=1"], capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    assert "processes" not in alone.stdout
    first, second = (Path(f"runs/tiny/version_{number}") for number in (0, 1))
    assert rows(first / "metrics.csv") == rows(second / "metrics.csv")
    states = [
        torch.load(next(folder.rglob("last.ckpt")), weights_only=False)["state_dict"] for folder in (first, second)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
