"""A round that is left half done is dropped, whatever stopped it; the client module gets its own methods back."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch.callbacks.timer
import pandas as pd
import pytest
import torch
from lib.command import rows
from lib.resumed import assert_same, train
from lib.toy import ETA, A, B, Quadratic, ToyData, close, trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, OnExceptionCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator
from fl_lightning.runs.display.timer import RoundTimer
from fl_lightning.runs.folder.run_folder import RunFolder
from fl_lightning.runs.record.environment import RunTracking

ROUNDS = 4  # of four clients each


class Stop(FederatedCallback):
    """Stops a run when a client of a round has trained.

    Args:
        how: the way to stop, or the exception to raise.
        round: the round.
        index: the client's place in the cohort, 0, 1, …
    """

    def __init__(self, how: Any, round: int, index: int) -> None:
        self.how, self.when, self.now, self.trained = how, (round, index), 0.0, 0

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.trained = 0

    def on_client_end(self, orchestrator: Any, run: Any) -> None:
        if (run.round, self.trained) == self.when:
            if self.how == "max_time":
                self.now = 3600.0
            elif self.how == "should_stop":
                orchestrator.trainer.should_stop = True
            elif self.how == "save":  # as a scheduler's signal would
                orchestrator.trainer.save_checkpoint(Path(orchestrator.trainer.default_root_dir, "signal.ckpt"))
            else:
                raise self.how
        self.trained += 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole"), rounds=ROUNDS)


@pytest.mark.parametrize(
    ("how", "done", "steps"), [("max_time", 2, -1), ("should_stop", 2, ROUNDS), (KeyboardInterrupt(), 1, -1)]
)
def test_a_half_round_is_dropped_and_runs_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any, done: int, steps: int
) -> None:
    """After the second client of round 3; an interrupt comes before that client's update is there."""
    stop = Stop(how, 3, 1)
    monkeypatch.setattr(lightning.pytorch.callbacks.timer, "time", SimpleNamespace(monotonic=lambda: stop.now))
    leaves = pytest.raises(SystemExit) if isinstance(how, KeyboardInterrupt) else nullcontext()
    message = f"round 3 was stopped when {done} of its 4 clients were done, and is dropped; rounds done: 2"
    with pytest.warns(UserWarning, match=message), leaves:
        train(tmp_path, stop, rounds=ROUNDS, max_steps=steps, max_time="00:01:00:00")
    last = tmp_path / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["rounds_done"] == 2
    assert_same(whole, train(tmp_path, RoundTimer(), rounds=ROUNDS, max_steps=steps, resume=last))


@pytest.mark.parametrize("round", [1, 3])
def test_files_of_a_run_that_is_stopped_in_a_round(tmp_path: Path, round: int) -> None:
    """The learning rate of the dropped round is logged at its start. The Trainer goes on where the model is."""
    folder, orchestrator = RunFolder(tmp_path, "e"), FederatedOrchestrator(Quadratic())
    callbacks = [RoundTimer(), RunTracking(), LearningRateMonitor(), stop := Stop("should_stop", round, 0)]
    run = trainer(*callbacks, logger=folder, rounds=4, log_every_n_steps=1)
    message = f"round {round} was stopped when 1 of its 2 clients were done, and is dropped; rounds done: {round - 1}"
    with pytest.warns(UserWarning, match=message):
        run.fit(orchestrator, datamodule=ToyData())
    assert orchestrator.rounds_done == run.current_epoch == run.global_step == round - 1
    files = [Path(folder.log_dir, name) for name in ("metrics.csv", "timings.csv")]
    assert files[0].exists() == (round > 1)
    assert all(list(pd.read_csv(file)["round"]) == list(range(1, round)) for file in files if file.exists())
    stop.when = (0, 0)
    run.fit(orchestrator, datamodule=ToyData())
    assert orchestrator.rounds_done == run.current_epoch == 4
    assert [row["round"] for row in rows(files[0])] == [1, 2, 3, 4]


@pytest.mark.parametrize(("saves", "index"), [(OnExceptionCheckpoint, 1), (ModelCheckpoint, 3)])
def test_a_checkpoint_of_an_exception_begins_the_round_again(
    whole: Path, tmp_path: Path, index: int, saves: type[Callback]
) -> None:
    """In the middle of a round, and in its last client, whose batch is the Trainer's last."""
    callback: Callback = OnExceptionCheckpoint(tmp_path, "raised")
    if saves is ModelCheckpoint:
        callback = ModelCheckpoint(tmp_path, "raised", save_on_exception=True, every_n_epochs=9)
    with pytest.raises(ConfigurationError, match="own"):
        train(tmp_path, Stop(ConfigurationError("own"), 3, index), callback, rounds=ROUNDS)
    saved = tmp_path / "raised.ckpt"
    assert torch.load(saved, weights_only=True)["rounds_done"] == 2
    assert_same(whole, train(tmp_path, RoundTimer(), rounds=ROUNDS, resume=saved))


@pytest.mark.parametrize("index", [1, 3])
def test_a_checkpoint_while_a_client_trains_holds_the_global_model(whole: Path, tmp_path: Path, index: int) -> None:
    train(tmp_path, Stop("save", 3, index), rounds=ROUNDS)
    assert_same(whole, tmp_path / "checkpoints" / "last.ckpt")
    assert_same(whole, train(tmp_path, RoundTimer(), rounds=ROUNDS, resume=tmp_path / "signal.ckpt"))


# The client module is its own again


class Fails(Quadratic):
    """Raises in the step that is named by ``where``, and logs in the others."""

    where = ""

    def step(self, where: str) -> None:
        if self.where == where:
            raise KeyError(where)
        self.log(where, 1.0)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.step("training_step")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.step("validation_step")

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.step("test_step")

    def predict_step(self, batch: Tensor, batch_idx: int) -> None:
        self.step("predict_step")


class Evaluated(ToyData):
    def val_dataloader(self) -> Any:
        return DataLoader(torch.zeros(1))  # type: ignore[arg-type]  # a tensor is a dataset

    test_dataloader = predict_dataloader = val_dataloader


@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("fit", "training_step"),
        ("fit", "validation_step"),
        ("validate", "validation_step"),
        ("test", "test_step"),
        ("predict", "predict_step"),
    ],
)
def test_a_module_is_its_own_again_after_an_exception(method: str, where: str) -> None:
    """Trained by a plain Trainer, it steps to 0.1 A∘B on a client's row, and logs to that Trainer."""
    module = Fails()
    own, module.where = set(vars(module)) | {"where"}, where
    with pytest.raises((KeyError, RuntimeError), match=where):
        getattr(trainer(), method)(FederatedOrchestrator(module, on_bad_update="raise"), datamodule=Evaluated())
    assert not {name for name in set(vars(module)) - own if not name.startswith("_")}
    module.where = ""
    torch.nn.init.zeros_(module.w)
    run = trainer()
    run.fit(module, DataLoader(TensorDataset(A[:1], B[:1])))
    assert close(module.w.detach(), ETA * A[0] * B[0])
    assert run.callback_metrics["training_step"] == 1
