"""A run's result depends on its settings alone: not on stops, evaluation or the number of devices; a second fit."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.resumed import ROUNDS, assert_same, train
from lib.toy import Quadratic, ToyData, trainer
from lightning.pytorch import Callback

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedLAW
from fl_lightning.errors import ConfigurationError


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole"))


def test_stop_after_round_3_of_6_and_resume(uninterrupted: Path, tmp_path: Path) -> None:
    stopped = train(tmp_path, rounds=3)
    resumed = train(tmp_path, resume=stopped)
    assert torch.load(resumed, weights_only=True)["rounds_done"] == ROUNDS
    assert_same(uninterrupted, resumed)


def test_the_frequency_of_evaluation_changes_nothing(uninterrupted: Path, tmp_path: Path) -> None:
    assert_same(uninterrupted, train(tmp_path, check_val_every_n_epoch=3))


def test_fedlaw_resumes(tmp_path: Path) -> None:
    """The proxy set's order, drawn anew each round, is the same after a stop."""
    whole = train(tmp_path / "a", FedLAW(epochs=2), rounds=3)
    train(tmp_path / "b", FedLAW(epochs=2), rounds=2)
    assert_same(whole, train(tmp_path / "b", FedLAW(epochs=2), rounds=3, resume=tmp_path / "b/checkpoints/last.ckpt"))


def test_a_new_trainer_begins_with_round_1() -> None:
    """From the parameters of the first fit, with the seeds of the first round."""
    orchestrator = FederatedOrchestrator(Quadratic())
    trainer(rounds=3).fit(orchestrator, datamodule=ToyData())
    copied = copy.deepcopy(orchestrator)
    start = orchestrator.client.w.detach().clone()
    run = trainer(rounds=2)
    run.fit(orchestrator, datamodule=ToyData())
    assert orchestrator.rounds_done == run.current_epoch == run.global_step == 2
    assert not torch.equal(orchestrator.client.w, start)
    fresh = FederatedOrchestrator(copied.client)
    trainer(rounds=2).fit(fresh, datamodule=ToyData())
    assert torch.equal(fresh.client.w, orchestrator.client.w)  # type: ignore[arg-type]  # a parameter


class Asks(Callback):
    """Asks in a fit for what there is in a fit alone."""

    way: tuple[Any, ...] = ()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.way = (pl_module.client_training.group_size, pl_module.made_optimizers()["client"][0][0])


def test_what_belongs_to_a_fit_is_there_while_it_lasts_and_refused_by_a_line_otherwise() -> None:
    orchestrator, asks = FederatedOrchestrator(Quadratic()), Asks()

    def refused() -> None:
        for ask in (
            lambda: orchestrator.client_training,
            orchestrator.made_optimizers,
            lambda: orchestrator.train_again(None, None),  # type: ignore[arg-type]  # refused before both are read
        ):
            with pytest.raises(ConfigurationError, match=r"^no fit is going on: clients train"):
                ask()
        assert orchestrator.personal_model is None

    refused()
    trainer(asks).fit(orchestrator, datamodule=ToyData())
    assert asks.way == (1, torch.optim.SGD)
    refused()


def test_the_same_trainer_goes_on_with_the_next_round() -> None:
    """Plain federated averaging keeps nothing but the model: two and two rounds are four."""
    orchestrator, whole = FederatedOrchestrator(Quadratic()), FederatedOrchestrator(Quadratic())
    run = trainer(rounds=2)
    run.fit(orchestrator, datamodule=ToyData())
    run.fit(orchestrator, datamodule=ToyData())
    assert orchestrator.rounds_done == run.current_epoch == 2, "its rounds are done"
    run.fit_loop.max_epochs = 4
    run.fit(orchestrator, datamodule=ToyData())
    assert orchestrator.rounds_done == run.current_epoch == run.global_step == 4
    trainer(rounds=4).fit(whole, datamodule=ToyData())
    assert torch.equal(whole.client.w, orchestrator.client.w)  # type: ignore[arg-type]  # a parameter


class ReadsMetrics(Quadratic):
    """Scales its loss by a metric of the round before; the first round has none."""

    kind: str

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        known = getattr(self.trainer, self.kind).get("train/loss", 1.0)
        return super().training_step(batch, batch_idx) / (1 + float(known))


@pytest.mark.parametrize("kind", ["callback_metrics", "logged_metrics", "progress_bar_metrics"])
def test_metrics_of_earlier_rounds_are_there_after_a_stop(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rounds without a stop are the control; two and two end in the same bits."""
    monkeypatch.setattr(ReadsMetrics, "kind", kind, raising=False)
    whole, first, second = (FederatedOrchestrator(ReadsMetrics()) for _ in range(3))
    trainer(rounds=4).fit(whole, datamodule=ToyData())
    run = trainer(rounds=2)
    run.fit(first, datamodule=ToyData())
    run.save_checkpoint(tmp_path / "two.ckpt")
    saved = torch.load(tmp_path / "two.ckpt")
    saved["trainer_metrics"][kind]["gone"] = torch.ones(())
    torch.save(saved, tmp_path / "two.ckpt")
    resumed = trainer(rounds=4)
    resumed.fit(second, datamodule=ToyData(), ckpt_path=tmp_path / "two.ckpt")
    assert torch.equal(second.params, whole.params)
    assert "gone" not in getattr(resumed, kind), "which EarlyStopping would go on by"
    plain = FederatedOrchestrator(Quadratic())
    trainer(rounds=4).fit(plain, datamodule=ToyData())
    assert not torch.equal(plain.params, whole.params)
