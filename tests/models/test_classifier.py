"""ImageClassifier: what it measures, what it refuses, how it steps its learning rate."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from lib.toy import trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedCallback, FederatedDataModule, FederatedOrchestrator
from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.models import ImageClassifier

# Four images of 1×1×4 "pixels" that are their own logits: log p for probabilities p out of 16.
SIXTEENTHS = torch.tensor([[8, 4, 2, 2], [1, 12, 2, 1], [5, 4, 4, 3], [1, 2, 4, 9]])
LABELS = torch.tensor([0, 2, 3, 0])


class AsTheyAre(nn.Module):
    """Logits are the pixels plus one learnable number, 0 at first, which cross-entropy does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) + self.shift


class FourImages(FederatedDataModule):
    """One client; validation in batches of 3 and 1, as a mean of batch means would not survive."""

    num_clients = 1

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset((SIXTEENTHS / 16).log().reshape(4, 1, 1, 4), LABELS)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.client_dataset(0), batch_size=3)

    def test_dataloader(self) -> DataLoader[Any]:
        return self.val_dataloader()


class TenClasses(FourImages):
    num_classes = 10


def classifier(**settings: Any) -> ImageClassifier:
    return ImageClassifier(AsTheyAre(), **{"num_classes": 4, **settings})


def test_validation_and_test_by_hand() -> None:
    """Labels 0, 2, 3, 0 have probabilities 8, 2, 3 and 1 out of 16 and come 1st, 2nd, 4th and 4th.

    The same in both rounds, since metrics start anew.

    So top-1 is 1/4, top-3 is 2/4, and the loss is the mean of -log(8/16), -log(2/16), -log(3/16), -log(1/16), which is
    (log 2 + log 8 + log 16/3 + log 16) / 4 = log(2·8·16·16/3) / 4.
    """
    runner, orchestrator = trainer(rounds=2), FederatedOrchestrator(classifier())
    runner.fit(orchestrator, datamodule=FourImages())
    expected = {"top1": 1 / 4, "top3": 2 / 4, "loss": math.log(2 * 8 * 16 * 16 / 3) / 4}
    for name, value in expected.items():
        assert float(runner.callback_metrics[f"val/{name}"]) == pytest.approx(value, rel=1e-6)
    measured = runner.test(orchestrator, datamodule=FourImages(), verbose=False)[0]
    for name, value in expected.items():
        assert measured[f"test/{name}"] == pytest.approx(value, rel=1e-6)


def test_a_loss_of_nan_shows() -> None:
    """The softmax of an infinite logit is inf / inf: the loss of one image is nan, and so is the mean of all four."""

    class OneInfinite(FourImages):
        def val_dataloader(self) -> DataLoader[Any]:
            images, labels = self.client_dataset(0)[:]
            images[3] = torch.inf
            return DataLoader(TensorDataset(images, labels), batch_size=3)

    runner = trainer()
    runner.fit(FederatedOrchestrator(classifier()), datamodule=OneInfinite())
    assert math.isnan(runner.callback_metrics["val/loss"])
    assert float(runner.callback_metrics["val/top3"]) >= 2 / 4


def test_training_step_gives_the_loss_and_what_rules_need() -> None:
    """Mean of -log(8/16) and -log(2/16): (log 2 + log 8) / 2 = 2 log 2."""
    images = (SIXTEENTHS[:2] / 16).log().reshape(2, 1, 1, 4)
    outputs = classifier().training_step([images, LABELS[:2]], 0)
    assert outputs["loss"].item() == pytest.approx(2 * math.log(2), rel=1e-6)
    assert torch.equal(outputs["logits"], images.flatten(1))
    assert torch.equal(outputs["targets"], LABELS[:2])


def test_top3_of_two_classes_is_one() -> None:
    """Every label is among the first two of two."""

    class TwoClasses(FourImages):
        def client_dataset(self, client: int) -> Dataset[Any]:
            return TensorDataset(torch.tensor([[[[0.0, 1.0]]], [[[0.0, 1.0]]]]), torch.tensor([0, 1]))

    runner = trainer()
    runner.fit(FederatedOrchestrator(classifier(num_classes=2)), datamodule=TwoClasses())
    assert float(runner.callback_metrics["val/top1"]) == 0.5
    assert float(runner.callback_metrics["val/top3"]) == 1.0


def test_prediction_is_probabilities() -> None:
    images = (SIXTEENTHS / 16).log().reshape(4, 1, 1, 4)
    for batch in (images, [images, LABELS]):
        torch.testing.assert_close(classifier().predict_step(batch, 0), SIXTEENTHS / 16)


def test_network_output_of_the_wrong_size_is_named() -> None:
    message = r"AsTheyAre gives an output of shape \(4, 4\), expected \(batch, 10\): set model.client.num_classes and"
    with pytest.raises(ConfigurationError, match=message):
        classifier(num_classes=10)(SIXTEENTHS.float())


def test_data_with_other_classes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the data has 10 classes, the model 4: set model\.client"):
        trainer().fit(FederatedOrchestrator(classifier()), datamodule=TenClasses())


class Rates(FederatedCallback):
    """The learning rate of every local step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_before_client_step(self, run: LocalRun) -> None:
        self.seen.append(run.optimizers[0].param_groups[0]["lr"])


HALVED = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
COSINE = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=2)


@pytest.mark.parametrize(
    ("schedule", "batch_size", "expected"),
    [
        ({}, 4, [1, 1]),
        ({"scheduler": HALVED}, 2, [1, 1, 0.5, 0.5]),
        ({"scheduler": COSINE, "scheduler_interval": "step"}, 1, [1, 0.5, 0, 0.5, 1, 0.5, 0, 0.5]),
    ],
)
def test_schedules_start_anew_every_round(schedule: Any, batch_size: int, expected: list[float]) -> None:
    """Two epochs of four images; a cosine falls to zero within two steps and rises within the next two."""
    rates, client = Rates(), classifier(optimizer=partial(torch.optim.SGD, lr=1.0), **schedule)
    data = FourImages(batch_size=batch_size)
    trainer(rates, rounds=2).fit(FederatedOrchestrator(client, local_epochs=2, on_hidden_state="off"), datamodule=data)
    assert rates.seen == pytest.approx(expected * 2, abs=1e-12)


def test_refuses_other_intervals() -> None:
    with pytest.raises(ConfigurationError, match="scheduler_interval must be 'epoch' or 'step', got 'batch'"):
        classifier(scheduler_interval="batch")
