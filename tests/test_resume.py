"""A run's result depends on nothing but its settings: not on stops, monitors, evaluation or the number of devices."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command import process
from lightning import Trainer
from lightning.pytorch import Callback
from torch import Tensor, nn

from fl_lightning import FederatedCallback, FederatedOrchestrator
from fl_lightning.callbacks import ConflictMonitor, FedLAW, GradientHarmonization
from fl_lightning.datamodules import Digits, Dirichlet
from fl_lightning.models import ImageClassifier
from fl_lightning.runs import LastCheckpoint

ROUNDS = 6


def network() -> nn.Module:
    """Batch normalisation and dropout: buffers and local randomness."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10)
    )


def train(folder: Path, *callbacks: Callback, rounds: int = ROUNDS, resume: Path | None = None, **flags: Any) -> Path:
    """Train with half the clients a round and server momentum; the path of last.ckpt."""
    data = Digits(num_clients=8, partition=Dirichlet(0.5), participation=0.5, proxy_per_class=2, batch_size=64, seed=3)
    orchestrator = FederatedOrchestrator(
        ImageClassifier(network()), server_optimizer=lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.5), seed=3
    )
    trainer = Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        max_epochs=rounds,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[GradientHarmonization(), *callbacks, LastCheckpoint()],
        **flags,
    )
    trainer.fit(orchestrator, datamodule=data, ckpt_path=resume)
    return folder / "checkpoints" / "last.ckpt"


def tensors(tree: Any, path: str = "") -> dict[str, Tensor]:
    """All tensors of a nested structure, by path."""
    if isinstance(tree, Tensor):
        return {path: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    return {name: value for key, sub in items for name, value in tensors(sub, f"{path}/{key}").items()}


def assert_same(one: Path, other: Path) -> None:
    """Model, buffers and server optimizer of two checkpoints are equal bit for bit."""
    parts = ("state_dict", "optimizer_states", "rounds_done")
    first, second = ({part: torch.load(p, weights_only=True)[part] for part in parts} for p in (one, other))
    assert first["rounds_done"] == second["rounds_done"]
    a, b = tensors(first), tensors(second)
    assert a.keys() == b.keys()
    assert a
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different


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
