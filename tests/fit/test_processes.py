"""How many processes a run on a CPU takes by itself, and where; that these are forks, and change no bit."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.command import TINY, rows
from lib.toy import GivenData, Linear
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.datamodules import Digits
from fl_lightning.fit import processes
from fl_lightning.fit.processes import choose_processes, count_cores, may_be_copied, time_step

SYNTHETIC = """
trainer:
  max_epochs: 2
  accelerator: cpu
model:
  local_epochs: 6
  client:
    class_path: ImageClassifier
    init_args:
      network: {class_path: MultilayerPerceptron, init_args: {in_features: 60, hidden: [2048, 2048]}}
data:
  class_path: Synthetic
  init_args: {num_clients: 4, batch_size: 16}
"""
READS = """
import os
from pathlib import Path
import torch
from torch.utils.data import Dataset, TensorDataset
from fl_lightning import FederatedDataModule
from fl_lightning.models import ImageClassifier


class Rows(Dataset):
    def __init__(self):
        self.opened_by = os.getpid()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with Path("reads").open("a") as file:
            file.write(f"{self.opened_by} {os.getpid()}\\n")
        return torch.ones(64), index % 10


class FromFile(FederatedDataModule):
    num_clients = 4

    def __init__(self, seed: int = 0):
        super().__init__(batch_size=4, seed=seed)
        self.rows = Rows()

    def client_dataset(self, client):
        return self.rows


class Noted(ImageClassifier):
    def training_step(self, batch, batch_idx):
        with Path("steps").open("a") as file:
            file.write("x")
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


def test_a_step_is_timed_in_a_copy_that_is_thrown_away() -> None:
    """Neither the module, nor its class, nor the random numbers change, nor what the step prints is seen."""

    class Draws(Linear):
        calls = 0

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            Draws.calls += 1
            print("a step")
            self.w.data.add_(1)
            return super().training_step(batch, batch_idx) * torch.rand(())

    module = Draws(1)
    before, state = module.w.detach().clone(), torch.get_rng_state()
    seconds = time_step(FederatedOrchestrator(module), data([3, 5]))
    assert seconds is not None
    assert 0 < seconds < 1
    assert Draws.calls == 0
    assert torch.equal(module.w, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_module_that_needs_its_trainer_is_not_timed() -> None:
    class Manual(Linear):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.optimizers().step()  # type: ignore[union-attr]

    assert time_step(FederatedOrchestrator(Manual(1)), data([3, 5])) is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model": {"client": {"class_path": "fl_lightning.models.TwoNN"}}}, True),
        ({"trainer": {"callbacks": [{"class_path": "torch.nn.ReLU"}, {"class_path": "mine.Rule"}]}}, False),
        ({"data": {"init_args": {"partition": {"class_path": "mine.Partition"}}}}, False),
        ({"model": {"client": {"class_path": "torchlike.Network"}}}, False),
    ],
)
def test_only_a_config_of_known_classes_is_copied(config: dict[str, Any], expected: bool) -> None:
    assert may_be_copied(config, Digits()) is expected


def test_only_data_in_memory_are_copied() -> None:
    assert not may_be_copied({}, data([1]))


def test_a_thread_of_any_library_forbids_a_fork() -> None:
    """A thread that Python does not know: here one of OpenMP's, which a copy would wait for without end."""
    code = """
import threading, torch
from fl_lightning.engine.devices.forks import can_fork
print(can_fork())
torch.set_num_threads(2)
torch.ones(10**6).exp()
print(threading.active_count(), can_fork())
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["True", "1", "False"]


def test_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cpu_count", lambda: 8)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert [count_cores(threads) for threads in (1, 3, 16)] == [8, 2, 1]
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert count_cores(1) == 4


def fit(*options: str) -> str:
    """Run the command in a process of its own, as a user does; return what it prints."""
    command = [str(Path(sys.executable).with_name("fl-lightning")), "fit", "--config", "mine.yaml", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def _two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")


@pytest.mark.usefixtures("_two_cores")
def test_a_long_run_of_the_package_forks_by_itself() -> None:
    Path("mine.yaml").write_text(SYNTHETIC)
    assert "2 processes train different clients" in fit()
    assert "processes" not in fit("--trainer.devices=1")
    first, second = (Path(f"runs/mine/version_{number}") for number in (0, 1))
    assert rows(first / "metrics.csv") == rows(second / "metrics.csv")
    states = [
        torch.load(next(folder.rglob("last.ckpt")), weights_only=False)["state_dict"] for folder in (first, second)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.usefixtures("_two_cores")
def test_code_of_ones_own_runs_in_one_process_and_only_in_the_fit() -> None:
    """Four clients of one step in two rounds, and the first client's once more, by the check of hidden state."""
    Path("mine.py").write_text(READS)
    Path("mine.yaml").write_text(SYNTHETIC)
    printed = fit("--model.client=mine.Noted", "--model.local_epochs=null", "--model.local_steps=1")
    assert "2 cores: --trainer.devices 2 trains 2 clients at a time" in printed
    assert len(Path("steps").read_text()) == 2 * 4 + 1


@pytest.mark.usefixtures("_two_cores")
def test_each_process_opens_the_data_of_ones_own() -> None:
    """What a constructor opens is not shared with another process, where two reads would move one place in a file."""
    Path("mine.py").write_text(READS)
    Path("mine.yaml").write_text(TINY.partition("data:")[0] + "data: {class_path: mine.FromFile}\n")
    fit("--trainer.devices=2")
    seen = {tuple(line.split()) for line in Path("reads").read_text().splitlines()}
    assert len(seen) == 2
    assert all(opened_by == read_by for opened_by, read_by in seen)
