"""Detector: assignment, loss, what it measures, and what it refuses; that it learns is tested on Shapes."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from lib.toy import trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.models import Detector, TwoNN
from fl_lightning.models.detection.detector import Prediction, assign, detection_loss, distribution_loss, suppress

# Two anchors side by side, stride 8; an object on both, and predictions in its middle: all of it, and half its sides.
CENTRES = torch.tensor([[4.0, 4.0], [12.0, 4.0]])
OBJECT = torch.tensor([[0.0, 0.0, 16.0, 8.0]])
BOXES = torch.tensor([[0.0, 0.0, 16.0, 8.0], [4.0, 2.0, 12.0, 6.0]])
FIRST = torch.tensor([0])


def close(actual: Tensor, *expected: Any) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_alignment_by_hand() -> None:
    """The boxes have one centre and one shape, so CIoU is IoU: u = 1 and 32 / 128 = 1/4; s = 1/4 and 1.

    t = √(1/4) · 1 = 1/2 and 1 · (1/4)⁶ = 1/4096. The larger becomes the largest u, 1: both are doubled.
    """
    aims, truth = assign(torch.tensor([[1 / 4], [1.0]]), BOXES, CENTRES, FIRST, OBJECT)
    close(aims, [1.0], [1 / 2048])
    assert torch.equal(truth, OBJECT.expand(2, 4))


def test_only_the_best_anchors_inside_are_taken() -> None:
    """With top = 1 the second loses its place; an object on the second alone cannot take the first."""
    scores = torch.tensor([[1 / 4], [1.0]])
    close(assign(scores, BOXES, CENTRES, FIRST, OBJECT, top=1)[0], [1.0], [0.0])
    close(assign(scores, BOXES, CENTRES, FIRST, torch.tensor([[9.0, 0.0, 16.0, 8.0]]))[0] > 0, [False], [True])


def test_an_anchor_of_two_objects_stays_with_the_larger_overlap() -> None:
    """Both objects take both anchors. The second has class 1 and is the second prediction: u = 1 there, 1/4 elsewhere.

    So anchor 0 keeps object 0 and anchor 1 object 1, each with its only overlap of 1, although class 0 scores higher on
    both: overlap decides.
    """
    truth = torch.cat([OBJECT, BOXES[1:]])
    centres = torch.tensor([[7.0, 4.0], [9.0, 4.0]])
    aims, boxes = assign(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), BOXES, centres, torch.tensor([0, 1]), truth)
    close(aims, [1.0, 0.0], [0.0, 1.0])
    assert torch.equal(boxes, truth)


def test_no_object_no_aim() -> None:
    aims, _ = assign(torch.rand(2, 3), BOXES, CENTRES, torch.empty(0, dtype=torch.long), torch.empty(0, 4))
    assert torch.equal(aims, torch.zeros(2, 3))


def test_a_prediction_without_area_outside_an_object_does_not_poison_it() -> None:
    """0 / 0 in its CIoU is nan."""
    boxes = torch.stack([BOXES[0], torch.tensor([20.0, 4.0, 20.0, 4.0])])
    centres = torch.tensor([[4.0, 4.0], [20.0, 4.0]])
    close(assign(torch.full((2, 1), 0.5), boxes, centres, FIRST, OBJECT)[0], [1.0], [0.0])


def test_distribution_loss_by_hand() -> None:
    """Distance 1.25 is 3/4 bin 1 and 1/4 bin 2; 5 is cut to 2.99 of the bins 0 to 3; 0 is bin 0, 2 is bin 2."""
    log_p = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    expected = [
        0.75 * math.log(0.2) + 0.25 * math.log(0.3),
        0.01 * math.log(0.3) + 0.99 * math.log(0.4),
        math.log(0.1),
        math.log(0.3),
    ]
    close(distribution_loss(log_p.expand(1, 4, 4), torch.tensor([[1.25, 5.0, 0.0, 2.0]])), -sum(expected) / 4)


def prediction(logits: Tensor) -> Prediction:
    """One image, the two anchors above, distributions that favour nothing."""
    return Prediction(torch.zeros(1, 2, 4, 16), logits[None], BOXES[None], CENTRES, torch.full((2, 1), 8.0))


def test_loss_by_hand() -> None:
    """Scores s = 1/4 and 1/2 make t = 1/2 and √(1/2) / 4096, aims 1 and q = √2 / 4096, T = 1 + q in total.

    Classes: aim 1 at s = 1/4 costs log 4, any aim at s = 1/2 log 2. Boxes: 1 - u = 0 and 3/4, weighted by 1 and q.
    Uniform bins cost log 16 at any distance. Gains 0.5, 7.5, 1.5; all over T.
    """
    q = math.sqrt(2) / 4096
    expected = (0.5 * math.log(8) + 7.5 * q * 0.75) / (1 + q) + 1.5 * math.log(16)
    targets = torch.tensor([[[0.0, *OBJECT[0].tolist()], [-1.0, 0.0, 0.0, 0.0, 0.0]]])
    loss = detection_loss(prediction(torch.tensor([[1 / 3], [1.0]]).log()), targets)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_loss_of_an_image_without_objects() -> None:
    """Aims are 0: only -log(1 - s) of s = 1/4 and 1/2 is left, half of it, and nothing to divide by but 1."""
    loss = detection_loss(prediction(torch.tensor([[1 / 3], [1.0]]).log()), torch.full((1, 1, 5), -1.0))
    assert loss.item() == pytest.approx(0.5 * (math.log(4 / 3) + math.log(2)), rel=1e-5)


def test_suppression() -> None:
    """IoU 0.8 is suppressed within a class only; 0.6 never is; a score of 0.001 is none."""
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 8, 10], [0, 0, 8, 10], [0, 0, 6, 10], [50, 50, 60, 60]])
    scores = torch.tensor([[0.9, 0.1], [0.8, 0.0], [0.0, 0.7], [0.6, 0.0], [0.001, 0.0]])
    kept = suppress(boxes, scores)
    assert torch.equal(kept["boxes"], boxes[[0, 2, 3]])
    close(kept["scores"], 0.9, 0.7, 0.6)
    assert kept["labels"].tolist() == [0, 1, 0]


class Cells(nn.Module):
    """Four cells of 32x32 in 64x64 pixels. Bins 0 and 1 are equally likely: each predicts just its cell.

    The class logit is the mean of the cell's pixels times 40, minus 20.
    """

    def __init__(self, num_classes: int = 1) -> None:
        super().__init__()
        self.projection = nn.Parameter(torch.tensor([0.0, 1.0]), requires_grad=False)
        self.bins = nn.Parameter(torch.zeros(8))
        self.num_classes = num_classes

    def forward(self, images: Tensor) -> list[Tensor]:
        brightness = nn.functional.avg_pool2d(images, 32).mean(1, keepdim=True)
        bins = self.bins[None, :, None, None].expand(len(images), -1, 2, 2)
        return [torch.cat([bins, (40 * brightness - 20).expand(-1, self.num_classes, -1, -1)], 1)]


# The first image has objects in the two upper cells, the second none, the third one in the lower right.
TARGETS = torch.full((3, 2, 5), -1.0)
TARGETS[0] = torch.tensor([[0.0, 0, 0, 32, 32], [0.0, 32, 0, 64, 32]])
TARGETS[2, 1] = torch.tensor([0.0, 32, 32, 64, 64])
IMAGES = torch.zeros(3, 3, 64, 64)
IMAGES[0, :, :32] = 1
IMAGES[2, :, 32:, 32:] = 1


class ThreeImages(FederatedDataModule):
    """One client; evaluation in batches of 2 and 1, as a mean of batch means would not survive."""

    num_clients = 1
    images = IMAGES

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(self.images, TARGETS)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.client_dataset(0), batch_size=2)

    def test_dataloader(self) -> DataLoader[Any]:
        return self.val_dataloader()


class Dimmed(ThreeImages):
    """The second object of the first image is not seen."""

    images = IMAGES.clone()
    images[0, :, :, 32:] = 0


def test_perfect_predictions() -> None:
    """Boxes are right, classes are right up to e^-20; half-way between two bins a distribution costs at least log 2.

    Batch 1 has 8 cells, 2 of them taken, batch 2 has 4, 1 taken: each batch's loss is 1.5 log 2, boxes add nothing.
    """
    measured = trainer().test(Detector(Cells()), datamodule=ThreeImages(), verbose=False)[0]
    assert measured == pytest.approx({"test/map50": 1, "test/loss": 1.5 * math.log(2)}, rel=1e-5)


def test_one_object_of_three_is_missed() -> None:
    """Precision is 1 up to a recall of 2/3: the 67 recall points 0, 0.01, …, 0.66 of 101. Batch by batch it would be
    51/101 and 1. In a round as in a test.

    The losses: batch 1 has aims 1 and, for the object that is missed, 1 too, at a logit of -20, which costs half of 20
    of the total of 2: 5 + 1.5 log 2, for two images of three.
    """
    client, runner = Detector(Cells(), optimizer=partial(torch.optim.SGD, lr=0.0)), trainer(rounds=2)
    runner.fit(FederatedOrchestrator(client), datamodule=Dimmed())
    expected = {"map50": 67 / 101, "loss": 1.5 * math.log(2) + 5 * 2 / 3}
    for name, value in expected.items():
        assert float(runner.callback_metrics[f"val/{name}"]) == pytest.approx(value, rel=1e-5)


def test_boxes_and_loss_stay_in_full_precision() -> None:
    """The perfect loss 1.5 log 2 to 1e-5, where bfloat16 has steps of 1/128 and a box at 640 pixels is 4 pixels off."""
    with torch.autocast("cpu", torch.bfloat16):
        found = Detector(Cells())(IMAGES[:1])
        assert detection_loss(found, TARGETS[:1]).item() == pytest.approx(1.5 * math.log(2), rel=1e-5)
    assert found.boxes.dtype == torch.float32


def test_predictions() -> None:
    found = Detector(Cells()).predict_step([IMAGES, TARGETS], 0)
    assert [len(image["boxes"]) for image in found] == [2, 0, 1]
    close(found[2]["boxes"], [32.0, 32.0, 64.0, 64.0])


def test_refusals() -> None:
    with pytest.raises(ConfigurationError, match=r"of its bins, got TwoNN: use fl_lightning\.models\.YOLOv8"):
        Detector(TwoNN())
    with pytest.raises(
        ConfigurationError,
        match=r"Cells gives maps of \[9\] channels, expected 11: set model.client.num_classes and the network's",
    ):
        Detector(Cells(), num_classes=3)(IMAGES)
    with pytest.raises(ConfigurationError, match=r"expected targets \(3, M, 5\), .* got \(3, 2, 4\)"):
        Detector(Cells()).training_step([IMAGES, TARGETS[..., :4]], 0)
    data = ThreeImages()
    data.num_classes = 2  # type: ignore[attr-defined]  # it had none
    with pytest.raises(ConfigurationError, match="the data has 2 classes, the model 1"):
        trainer().fit(FederatedOrchestrator(Detector(Cells())), datamodule=data)
