"""The Trainer as a client's module sees it: sizes and rates are the client's; zoo/optimizers.py compares all else."""

import csv
import warnings
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lib.toy import Net, Notes, Quadratic, ToyData, trainer
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR, StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedCallback, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import HessianMonitor, LossSurface, PersonalEvaluation, TrainingEvaluation


class Sizes(Quadratic):
    """Writes down its sizes as it makes its optimizers."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names, self.found, self.evaluated = names, Notes(), Notes()

    def configure_optimizers(self) -> Any:
        self.found.append(tuple(getattr(self.trainer, name) for name in self.names))
        return super().configure_optimizers()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluated.append((self.current_epoch, self.trainer.max_epochs, self.optimizers().param_groups[0]["lr"]))  # type: ignore[union-attr]


class Validated(ToyData):
    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.zeros(1)))


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ({"local_epochs": 4}, {(4, -1, 2, 8), (4, -1, 3, 12)}),
        ({"local_epochs": 1.4}, {(2, -1, 2, 3), (2, -1, 3, 4)}),
        ({"local_steps": 4}, {(2, 4, 2, 4), (2, 4, 3, 4)}),
        ({"local_steps": 4, "accumulate_grad_batches": 3}, {(2, 2, 2, 2), (2, 2, 3, 2)}),
    ],
)
def test_sizes_are_those_of_the_clients_own_work(work: dict[str, Any], expected: set[Any]) -> None:
    """Clients of 2 and 3 batches. 1.4 passes: 2 + round(0.8) = 3 and 3 + round(1.2) = 4 batches."""
    module = Sizes("max_epochs", "max_steps", "num_training_batches", "estimated_stepping_batches")
    run = trainer(rounds=2)
    run.fit(FederatedOrchestrator(module, on_bad_update="raise", **work), datamodule=Validated())
    assert set(module.found) == expected
    assert set(module.evaluated) == {(0, 2, 0.1), (1, 2, 0.1)}


class Asks(Quadratic):
    """Asks the Trainer for something, in a hook."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__()
        setattr(self, where, lambda *_: getattr(self.trainer, what))


@pytest.mark.parametrize(
    ("where", "what", "message"),
    [
        ("setup", "train_dataloader", "clients differ in their numbers of batches"),
        ("on_train_start", "fit_loop", "self.trainer.fit_loop would count clients, not batches"),
        ("setup", "num_training_batches", "clients differ in their numbers of batches"),
        ("on_fit_start", "estimated_stepping_batches", "clients differ in their numbers of batches"),
        ("on_validation_start", "num_training_batches", "self.trainer.num_training_batches would count clients"),
    ],
)
def test_what_would_be_about_clients_is_refused(where: str, what: str, message: str) -> None:
    module = Asks(where, what)
    module.validation_step = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match=message):
        trainer().fit(FederatedOrchestrator(module, on_bad_update="raise"), datamodule=Validated())


@pytest.mark.parametrize("where", ["setup", "on_fit_start"])
def test_a_module_is_set_up_for_its_local_epochs(where: str) -> None:
    seen: list[Any] = []
    module = Quadratic()
    setattr(module, where, lambda *_: seen.append(module.trainer.max_epochs))
    trainer(rounds=9).fit(FederatedOrchestrator(module, local_epochs=3), datamodule=ToyData())
    assert seen == [3]
    assert isinstance(module.trainer, lightning.Trainer)


class Augments(Net):
    """Writes down, where a training augmentation would ask, what the Trainer says; trains for three local epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.stages: list[Any] = Notes()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        state = self.trainer.state.stage.value  # type: ignore[union-attr]
        self.stages.append((self.training, state, self.trainer.max_epochs, self.trainer.run is None))  # type: ignore[attr-defined]
        return batch

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("train/here", 1.0)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", super().training_step(batch, batch_idx))


class LooksBack(FederatedCallback):
    """Asks for a loss while a client trains, and logs in the middle of a look at the model."""

    def on_client_end(self, orchestrator: Any, run: Any) -> None:
        orchestrator.client_loss(run.client, run.params)

    def on_round_end(self, orchestrator: Any, cohort: Any) -> None:
        with orchestrator.server_side("look"), orchestrator.validating():
            orchestrator.log_round("looked", 2.0)
            orchestrator.client.log("val/lost", 1.0)


@pytest.mark.parametrize(
    "monitor",
    [PersonalEvaluation(), TrainingEvaluation(), HessianMonitor(1), LossSurface(points=3), LooksBack()],
    ids=lambda monitor: type(monitor).__name__,
)
def test_what_looks_at_a_model_in_a_round_validates_as_the_trainer_does(monitor: Any, tmp_path: Path) -> None:
    examples = TensorDataset(torch.randn(20, 4), torch.arange(20) % 3)
    data = FederatedDataModule.from_loaders(examples, num_clients=2, held_out=0.5, batch_size=4)
    module = Augments()
    run = trainer(monitor, rounds=2, default_root_dir=tmp_path)
    run.fit(FederatedOrchestrator(module, local_epochs=3, on_bad_update="raise"), datamodule=data)
    assert set(module.stages) == {(True, "train", 3, False), (False, "validate", 2, True)}
    assert run.callback_metrics["train/here"] == 1.0
    assert run.callback_metrics.get("looked", 2.0) == 2.0
    assert ("looked" in run.callback_metrics) is isinstance(monitor, LooksBack)
    assert "val/lost" not in run.callback_metrics


class Ends(Augments):
    """Logs one metric of its validation when that is over."""

    def on_validation_epoch_end(self) -> None:
        self.log("val/end", 1.0)
        if self.trainer.run is None:  # type: ignore[attr-defined]
            self.log("val/after", 2.0)


@pytest.mark.parametrize(("make", "count"), [(Augments, 0), (Ends, 1)])
def test_what_is_logged_after_validation_and_monitors_leave_out_is_told_once(make: Any, count: int) -> None:
    examples = TensorDataset(torch.randn(20, 4), torch.arange(20) % 3)
    data = FederatedDataModule.from_loaders(examples, val=examples, num_clients=2, held_out=0.5, batch_size=4)
    run = trainer(PersonalEvaluation(), TrainingEvaluation(), rounds=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit(FederatedOrchestrator(make(), on_bad_update="raise"), datamodule=data)
    told = [str(warning.message) for warning in caught if "monitors leave out" in str(warning.message)]
    names = (
        "Ends logs val/end in on_validation_epoch_end, val/after in on_validation_epoch_end, which monitors leave out"
    )
    assert len(told) == count
    assert all(text.startswith(names) for text in told)


# Rates over the rounds


class One(FederatedDataModule):
    """Two clients of one batch each."""

    num_clients = 2

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.ones(2, 1, dtype=torch.float64))


class Groups(LightningModule):
    """Two parameters under rates of their own, 1 and 0.1, whose gradient is 1; writes down its rates."""

    def __init__(self, inner: Any = None) -> None:
        super().__init__()
        self.inner, self.rates = inner, Notes()
        self.w, self.v = (torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in "wv")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.rates.append([group["lr"] for group in self.optimizers().param_groups])  # type: ignore[union-attr]
        return (self.w + self.v).sum()

    def configure_optimizers(self) -> Any:
        groups = [{"params": [self.w], "lr": 1.0}, {"params": [self.v], "lr": 0.1}]
        optimizer = torch.optim.SGD(groups, lr=1.0)
        return [optimizer], [self.inner(optimizer)] if self.inner else []


def warm_up(optimizer: Any) -> Any:
    parts = [LinearLR(optimizer, 0.5, total_iters=2), CosineAnnealingLR(optimizer, 2)]
    return SequentialLR(optimizer, parts, milestones=[2])


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (lambda o: StepLR(o, 2, 0.1), [1.0, 1.0, 0.1, 0.1]),
        (lambda o: CosineAnnealingLR(o, 4), [1.0, 0.85355339, 0.5, 0.14644661]),
        (lambda o: LambdaLR(o, lambda round: 1 / (1 + round)), [1.0, 1 / 2, 1 / 3, 1 / 4]),
        (warm_up, [0.5, 0.75, 1.0, 0.5]),
    ],
    ids=["step", "cosine", "lambda", "warm-up"],
)
def test_client_rates_follow_a_schedule_over_the_rounds(schedule: Any, factors: list[float]) -> None:
    """Both clients of a round have its rates; the model moves by the sum of the rates, here in four rounds."""
    module, run = Groups(), trainer(rounds=4)
    run.fit(FederatedOrchestrator(module, local_lr_scheduler=schedule, on_hidden_state="off"), datamodule=One())
    wanted = [[factor, 0.1 * factor] for factor in factors for _ in range(2)]
    assert torch.allclose(torch.tensor(module.rates), torch.tensor(wanted))
    assert float(module.w) == pytest.approx(-sum(factors))
    assert float(module.v) == pytest.approx(-0.1 * sum(factors))


def test_rates_within_a_round_start_from_the_rate_of_the_round() -> None:
    """A tenth after each epoch, of rates that are halved after each round: (1, 0.1), (0.5, 0.05)."""
    module, run = Groups(lambda optimizer: StepLR(optimizer, 1, 0.1)), trainer(rounds=2)
    settings: Any = {"local_epochs": 2, "local_lr_scheduler": lambda optimizer: StepLR(optimizer, 1, 0.5)}
    run.fit(FederatedOrchestrator(module, on_hidden_state="off", **settings), datamodule=One())
    assert [rates[0] for rates in module.rates] == pytest.approx([1.0, 0.1] * 2 + [0.5, 0.05] * 2)


def test_a_schedule_goes_on_after_a_stop(tmp_path: Path) -> None:
    """Round 3 of the cosine above, after a stop behind round 2."""
    settings: Any = {"local_lr_scheduler": lambda optimizer: CosineAnnealingLR(optimizer, 4)}
    first = trainer(rounds=2)
    first.fit(FederatedOrchestrator(Groups(), on_hidden_state="off", **settings), datamodule=One())
    first.save_checkpoint(tmp_path / "two.ckpt")
    module = Groups()
    trainer(rounds=3).fit(
        FederatedOrchestrator(module, on_hidden_state="off", **settings),
        datamodule=One(),
        ckpt_path=tmp_path / "two.ckpt",
    )
    assert [rates[0] for rates in module.rates] == pytest.approx([0.5, 0.5])


def test_the_learning_rate_monitor_shows_the_clients_rates(tmp_path: Path) -> None:
    """Beside the server's: 1 and 0.1, then half of both."""
    run = trainer(LearningRateMonitor(), rounds=2, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    orchestrator = FederatedOrchestrator(Groups(), local_lr_decay=0.5)
    run.fit(orchestrator, datamodule=One())
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        shown = [row for row in csv.DictReader(file) if row["lr-client/pg1"]]
    rates = [tuple(float(row[name]) for name in ("lr-client/pg1", "lr-client/pg2", "lr-SGD")) for row in shown]
    assert rates == [(1.0, 0.1, 1.0), (0.5, 0.05, 1.0)]


class ByHand(Quadratic):
    """Two optimizers of one class."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=lr) for lr in (0.1, 0.02)]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Learn nothing."""


def test_the_learning_rate_monitor_numbers_several_optimizers(tmp_path: Path) -> None:
    monitor = LearningRateMonitor()
    run = trainer(monitor, rounds=2, logger=CSVLogger(tmp_path))
    run.fit(FederatedOrchestrator(ByHand(), local_lr_decay=0.5), datamodule=ToyData())
    assert monitor.lrs == {"lr-SGD": [1.0, 1.0], "lr-client-1": [0.1, 0.05], "lr-client-2": [0.02, 0.01]}


def test_a_schedule_and_a_decay_are_refused_together() -> None:
    with pytest.raises(ConfigurationError, match=r"local_lr_scheduler or local_lr_decay, got both, local_lr_decay=0.5"):
        FederatedOrchestrator(Groups(), local_lr_decay=0.5, local_lr_scheduler=lambda optimizer: StepLR(optimizer, 1))
