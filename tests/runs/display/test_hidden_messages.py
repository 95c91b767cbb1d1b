"""What users are not shown: messages that help nobody, and the source of this package's warnings."""

import subprocess
import sys
from pathlib import Path

import pytest
from lib.command import HANG

SCRIPT = """
import warnings

import torch
from lightning import Trainer
from torch.utils.data import TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator, RunFolder, run_callbacks
from fl_lightning.callbacks import FaultInjection
from lightning.pytorch.demos.boring_classes import BoringModel


class Mine(BoringModel):
    def on_train_start(self):
        warnings.warn("mine")

    def training_step(self, batch, batch_idx):
        return super().training_step(batch[0], batch_idx)


data = FederatedDataModule.from_loaders(TensorDataset(torch.ones(4, 32)), num_clients=2)
callbacks = run_callbacks([FaultInjection("nan", [1])])
trainer = Trainer(max_epochs=1, accelerator="cpu", logger=RunFolder(), callbacks=callbacks)
trainer.fit(FederatedOrchestrator(Mine()), datamodule=data)
"""


def test_a_warning_is_a_line_for_users_and_their_own_keeps_its_place(tmp_path: Path) -> None:
    """Two warnings of this package, of the round and the fit, without a file; the module's own with its line."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=True
    )
    own = [line for line in done.stderr.splitlines() if "left out" in line]
    assert own == [
        "fl-lightning: warning: round 1: client 1 is left out: its update is not finite",
        "fl-lightning: warning: updates left out in this fit: 1, in 1 of 1 rounds (see clients/quarantined)",
    ]
    (line,) = [number for number, text in enumerate(SCRIPT.splitlines(), 1) if "warnings.warn" in text]
    assert f"mine.py:{line}: UserWarning: mine\n" in done.stderr
    assert "fl_lightning/" not in done.stderr


@pytest.mark.slow
def test_the_command_line_shows_warnings_alike(tmp_path: Path) -> None:
    options = ["--config", "digits_gh.yaml", "--trainer.callbacks", "FaultInjection", "--trainer.max_epochs", "1"]
    options += ["--trainer.callbacks.fault", "nan", "--trainer.callbacks.clients", "[1]"]
    command = [str(Path(sys.executable).with_name("fl-lightning")), "fit", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=True)
    assert done.stderr.splitlines()[0].startswith("fl-lightning: warning: round 1: client 1 is left out: ")
    assert "fl_lightning/" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "client_parallel"])
def test_several_processes_start_without_a_word(strategy: str, tmp_path: Path) -> None:
    """Lightning would say twice which process has joined, which seed is set, and how many processes there are."""
    options = ["--config", "digits_gh.yaml", "--trainer.max_epochs", "1", "--trainer.devices", "2"]
    options += ["--trainer.accelerator", "cpu", "--trainer.strategy", strategy]
    command = [str(Path(sys.executable).with_name("fl-lightning")), "fit", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=True)
    assert done.stderr == ""
    begins = ["loading Digits …", "training rounds 1 to 1, 20 clients each …", "round 1/1", "run folder: "]
    lines = [line for line in done.stdout.splitlines() if not line.startswith("estimate: ")]
    for line, begin in zip(lines, begins, strict=True):
        assert line.startswith(begin)
