"""One module is trained and evaluated in turns, though an evaluation of its own is in inference mode."""

from typing import Any

import pytest
import torch
from lib.tiny_images import client, data
from lib.toy import trainer
from torch import Tensor, nn
from torchmetrics import CatMetric, MetricCollection
from torchmetrics.classification import MulticlassPrecision, MulticlassRecall

from fl_lightning import FederatedOrchestrator
from fl_lightning.engine.hosting.inference import leave_inference_mode


def model_after(*calls: str) -> Tensor:
    """(P,) the model after a round for each "fit" among the Trainer's methods to call."""
    orchestrator, given = FederatedOrchestrator(client(), on_bad_update="raise"), data()
    for call in calls:
        quiet: dict[str, Any] = {} if call == "fit" else {"verbose": False}
        run = trainer(rounds=1)
        getattr(run, call)(orchestrator, datamodule=given, **quiet)
        if call != "test":
            assert run.callback_metrics["val/loss"].isfinite()
    return orchestrator.params.clone()


@pytest.mark.parametrize("calls", [("validate", "fit", "fit"), ("fit", "validate", "fit"), ("fit", "test", "fit")])
def test_evaluations_before_between_and_after_fits_change_nothing(calls: tuple[str, ...]) -> None:
    assert torch.equal(model_after(*calls), model_after("fit", "fit"))


class Metered(nn.Module):
    """Two metrics that share their states after the first update, one that collects, and a buffer."""

    shared: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.pair = MetricCollection([MulticlassPrecision(2, average="micro"), MulticlassRecall(2, average="micro")])
        self.collected = CatMetric()
        self.register_buffer("shared", torch.zeros(1))

    def update(self) -> None:
        self.pair.update(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]))
        self.collected.update(torch.ones(2))


def test_all_that_an_evaluation_left_can_be_updated_in_place() -> None:
    """Two of three are right, then four of six; metrics that share a state still do."""
    metered = Metered()
    with torch.inference_mode():
        metered.update()
        metered.pair.reset()
        metered.update()
        metered.shared = metered.shared + 1
    leave_inference_mode(metered)
    metered.update()
    metered.shared.add_(1)
    assert [float(value) for value in metered.pair.compute().values()] == pytest.approx([2 / 3, 2 / 3])
    assert metered.collected.compute().tolist() == [1.0] * 6
    assert metered.shared.tolist() == [2.0]
    assert not any(buffer.is_inference() for buffer in metered.buffers())


def test_tensors_that_are_not_of_an_evaluation_stay() -> None:
    metered = Metered()
    metered.update()
    before = metered.shared, metered.collected.value
    leave_inference_mode(metered)
    assert metered.shared is before[0]
    assert metered.collected.value is before[1]
