"""The client module's own loaders and prepare_data, as under the Trainer."""

import warnings
from typing import Any

import pytest
import torch
from lib.toy import Linear, ToyData, trainer
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedOrchestrator


def loader(value: float) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.full((2, 1), float(value))), batch_size=2)


class Whole(Linear):
    """A module with everything that a LightningModule may define about data."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(size=2)
        self.heard = log
        self.prepare_data_per_node = False

    def prepare_data(self) -> None:
        self.heard.append("module prepares")

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.w.sum()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.heard.append(f"validates on {batch[0].mean():.0f}")

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.heard.append(f"tests on {batch[0].mean():.0f}")

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> float:
        return float(batch[0].mean())

    def val_dataloader(self) -> DataLoader[Any]:
        return loader(1)

    def test_dataloader(self) -> DataLoader[Any]:
        return loader(2)

    def predict_dataloader(self) -> DataLoader[Any]:
        return loader(3)


class Silent(ToyData):
    """Data with training examples alone."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.heard = log

    def prepare_data(self) -> None:
        self.heard.append("data prepare")


class Evaluated(Silent):
    def val_dataloader(self) -> DataLoader[Any]:
        return loader(10)


@pytest.mark.parametrize(("data", "value"), [(Silent, 1), (Evaluated, 10)])
def test_the_modules_loaders_serve_where_the_data_module_has_none(data: type[Silent], value: int) -> None:
    """Lightning would warn beforehand that there is no val_dataloader."""
    log: list[str] = []
    module, clients = Whole(log), data(log)
    orchestrator = FederatedOrchestrator(module)
    assert not orchestrator.prepare_data_per_node
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*val_dataloader")
        trainer(rounds=2).fit(orchestrator, datamodule=clients)
    assert log == ["data prepare", "module prepares", *[f"validates on {value}"] * 2]
    assert trainer().predict(orchestrator, datamodule=clients) == [3.0]
    log.clear()
    trainer().test(orchestrator, datamodule=clients, verbose=False)
    trainer().validate(FederatedOrchestrator(Whole(log)), verbose=False)  # without a data module
    assert log == ["data prepare", "module prepares", "tests on 2", "module prepares", "validates on 1"]


def test_the_next_module_brings_its_own_loaders() -> None:
    """The data module returns what it borrowed, also when a run has failed before its end."""

    class Other(Whole):
        def val_dataloader(self) -> DataLoader[Any]:
            return loader(7)

    class Failing(Whole):
        def on_train_start(self) -> None:
            raise KeyboardInterrupt

    class Plain(Linear):
        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            raise AssertionError("there is nothing to validate on")

    log: list[str] = []
    clients = Silent(log)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer().fit(FederatedOrchestrator(Failing(log)), datamodule=clients)
    log.clear()
    trainer().fit(FederatedOrchestrator(Other(log)), datamodule=clients)
    assert log == ["data prepare", "module prepares", "validates on 7"]
    trainer().fit(FederatedOrchestrator(Plain(2)), datamodule=clients)
    assert "val_dataloader" not in vars(clients)


class Trains(Linear):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.w.sum()


class Validates(Trains):
    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None: ...


class WithLoader(ToyData):
    def val_dataloader(self) -> DataLoader[Any]:
        return loader(1)


@pytest.mark.parametrize(
    ("module", "data", "lacks"),
    [
        (Trains, ToyData, None),
        (Validates, WithLoader, None),
        (Trains, WithLoader, "have no `validation_step`"),
        (Validates, ToyData, "have no `val_dataloader`"),
    ],
)
def test_lightning_says_what_a_validation_lacks(module: Any, data: Any, lacks: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer().fit(FederatedOrchestrator(module(size=2)), datamodule=data())
    said = [str(each.message) for each in caught if "Skipping val loop" in str(each.message)]
    assert len(said) == (lacks is not None)
    assert all(str(lacks) in each for each in said)
