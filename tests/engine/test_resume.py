"""A run's result depends on nothing but its settings: not on stops, monitors, evaluation or the number of devices."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command import process
from resumed import ROUNDS, assert_same, train

from fl_lightning import FederatedCallback
from fl_lightning.callbacks import ConflictMonitor, FedLAW


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole"))


def test_stop_after_round_3_of_6_and_resume(uninterrupted: Path, tmp_path: Path) -> None:
    stopped = train(tmp_path, rounds=3)
    resumed = train(tmp_path, resume=stopped)
    assert torch.load(resumed, weights_only=True)["rounds_done"] == ROUNDS
    assert_same(uninterrupted, resumed)


class Interrupt(FederatedCallback):
    """Stops in the middle of round 4, when one of its clients has trained."""

    def on_client_end(self, orchestrator: Any, run: Any) -> None:
        if run.round == 4:
            raise KeyboardInterrupt


class SaveInMidRound(FederatedCallback):
    """Writes a checkpoint after the second client of round 4, as a scheduler's signal would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if pl_module.round == 4 and batch_idx == 1:
            trainer.save_checkpoint(self.path)


def test_a_round_that_was_interrupted_begins_again(uninterrupted: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        train(tmp_path, Interrupt())
    last = tmp_path / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["rounds_done"] == 3
    assert_same(uninterrupted, train(tmp_path, resume=last))


def test_a_checkpoint_of_mid_round_holds_the_global_model(uninterrupted: Path, tmp_path: Path) -> None:
    train(tmp_path / "a", SaveInMidRound(tmp_path / "mid.ckpt"))
    assert torch.load(tmp_path / "mid.ckpt", weights_only=True)["rounds_done"] == 3
    assert_same(uninterrupted, train(tmp_path / "b", resume=tmp_path / "mid.ckpt"))


def test_the_monitor_changes_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    assert_same(uninterrupted, train(tmp_path, ConflictMonitor()))


def test_the_frequency_of_evaluation_changes_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    assert_same(uninterrupted, train(tmp_path, check_val_every_n_epoch=3))


def test_a_different_seed_changes_something(uninterrupted: Path, tmp_path: Path) -> None:
    """So that the comparisons above compare something: one round fewer is another model."""
    with pytest.raises(AssertionError):
        assert_same(uninterrupted, train(tmp_path, rounds=ROUNDS - 1))


def test_fedlaw_resumes(tmp_path: Path) -> None:
    """The proxy set's order, drawn anew each round, is the same after a stop."""
    whole = train(tmp_path / "a", FedLAW(epochs=2), rounds=3)
    train(tmp_path / "b", FedLAW(epochs=2), rounds=2)
    assert_same(whole, train(tmp_path / "b", FedLAW(epochs=2), rounds=3, resume=tmp_path / "b/checkpoints/last.ckpt"))


OWN = """
from torch import nn
from fl_lightning import FederatedCallback

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10))

class Spoil(FederatedCallback):
    def on_client_end(self, orchestrator, run):
        if run.client == 2:
            run.params.fill_(float("nan"))
"""


@pytest.mark.slow
def test_two_devices_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes over gloo. A cohort of 5 leaves one device a place without a client; client 2 is left out."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    settings = ["--data.num_clients", "6", "--data.participation", "5", "--trainer.max_epochs", "2"]
    settings += ["--data.clients_per_batch", "1", "--data.partition.alpha", "1.0", "--data.batch_size", "50"]
    settings += ["--model.client.network", "own.Net", "--trainer.callbacks+=own.Spoil"]
    for devices in "1", "2":
        arguments = ["fit", "--config", "digits_gh.yaml", "--experiment", f"on{devices}", *settings]
        finished = process(*arguments, "--trainer.devices", devices)
        assert finished.returncode == 0, finished.stderr
        assert "client 2 is left out" in finished.stderr
    one, two = (tmp_path / "runs" / f"on{devices}" / "version_0" for devices in "12")
    assert_same(one / "checkpoints/last.ckpt", two / "checkpoints/last.ckpt")
    assert (one / "metrics.csv").read_text() == (two / "metrics.csv").read_text()
