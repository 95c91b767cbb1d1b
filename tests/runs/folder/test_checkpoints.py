"""What a run saves after a round, and where a stopped run goes on."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.toy import Quadratic, ToyData, trainer
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.runs.folder.checkpoints import BestCheckpoint, last_of_experiment, metrics_to_log


def test_last_checkpoint_is_the_one_written_last(tmp_path: Path) -> None:
    """By time, not by number; best.ckpt does not count."""
    for number, time in ((0, 100), (1, 300), (2, 200), (10, 50)):
        file = tmp_path / "e" / f"version_{number}" / "checkpoints" / "last.ckpt"
        file.parent.mkdir(parents=True)
        for name in (file, file.with_name("best.ckpt")):
            name.touch()
            os.utime(name, (time + 1000 * (name != file), time))
    assert last_of_experiment(tmp_path / "e") == tmp_path / "e" / "version_1"


def test_without_checkpoint_the_message_says_where_it_looked(tmp_path: Path) -> None:
    (tmp_path / "e" / "version_0").mkdir(parents=True)
    with pytest.raises(
        ConfigurationError, match=r"looks for .*/e/\*/checkpoints/last\.ckpt, but there is no such file: start"
    ):
        last_of_experiment(tmp_path / "e")


@pytest.mark.parametrize(("monitor", "saved"), [("val/top1", False), ("train/loss", True)])
def test_best_checkpoint_is_saved_if_its_metric_is_logged(tmp_path: Path, monitor: str, saved: bool) -> None:
    """Lightning's own ends the run where nobody logs what it monitors."""
    run = trainer(BestCheckpoint(monitor, mode="min"), enable_checkpointing=True, default_root_dir=tmp_path)
    run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    assert (tmp_path / "checkpoints" / "best.ckpt").exists() == saved


class Judged(Quadratic):
    """Logs val/top1, of which a subclass may say which values are better."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/top1", self.w.sum())


class Accurate(Judged):
    higher_is_better = ("val/top1",)


class Wrong(Judged):
    """Its val/top1 is an error, of which the highest is the worst."""

    lower_is_better = ("val/top1",)


class Evaluated(ToyData):
    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(1)))


@pytest.mark.parametrize(("module", "saved"), [(Accurate, True), (Judged, False), (Wrong, False)])
def test_the_best_round_is_saved_if_the_module_says_what_is_better(
    tmp_path: Path, module: type[Judged], saved: bool, recwarn: pytest.WarningsRecorder
) -> None:
    run = trainer(BestCheckpoint(), rounds=2, enable_checkpointing=True, default_root_dir=tmp_path)
    run.fit(FederatedOrchestrator(module()), datamodule=Evaluated())
    assert (tmp_path / "checkpoints" / "best.ckpt").exists() == saved
    lines = [str(each.message) for each in recwarn if "best.ckpt" in str(each.message)]
    expected = f"no best.ckpt is saved: {module.__name__} does not say that higher values of val/top1 are better; let"
    assert len(lines) == (not saved)
    assert all(line.startswith(expected) for line in lines)


def test_metrics_to_log() -> None:
    class Look(Callback):
        seen: dict[str, Any]

        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.seen = metrics_to_log(trainer)

    run = trainer(look := Look())
    run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    assert look.seen["round"] == 1
    assert look.seen["train/loss"] == run.callback_metrics["train/loss"]
