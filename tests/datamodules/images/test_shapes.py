"""Shapes: where the drawn objects lie, their classes, the same images for every seed, and a fit that finds them."""

from functools import partial

import pytest
import torch
from lib.toy import trainer
from torch import Tensor

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.datamodules import Dirichlet, Shapes
from fl_lightning.models import Detector, YOLOv8


@pytest.fixture(scope="module")
def drawn() -> tuple[Tensor, Tensor]:
    return Shapes(image_size=48).load(train=False)


def test_boxes_enclose_what_is_drawn(drawn: tuple[Tensor, Tensor]) -> None:
    """The pixels of the colour at a box's centre reach all four sides of the box and no further.

    They fill a square's box, π/4 of a disc's (from 0.80 to 0.87 of so few pixels), half of a triangle's.
    """
    images, targets = drawn
    assert images.dtype == torch.uint8
    assert images.shape == (400, 3, 48, 48)
    assert targets.dtype == torch.float32
    filled: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for image, rows in zip(images, targets.long(), strict=True):
        for kind, left, top, right, bottom in rows[rows[:, 0] >= 0].tolist():
            colour = image[:, (top + bottom) // 2, (left + right) // 2, None, None]
            y, x = (image == colour).all(0).nonzero().T
            assert (x.min(), y.min(), x.max() + 1, y.max() + 1) == (left, top, right, bottom)
            filled[kind].append(len(x) / ((right - left) * (bottom - top)))
    assert set(filled[0]) == {1.0}
    assert 0.7 < min(filled[1]) < max(filled[1]) < 0.95
    assert 0.45 < min(filled[2]) < max(filled[2]) < 0.65


def test_one_to_three_objects_mostly_of_one_class(drawn: tuple[Tensor, Tensor]) -> None:
    """Another object has the first one's class in 0.8 + 0.2 / 3 = 0.867 of cases; all numbers and classes occur."""
    _, targets = drawn
    present = targets[..., 0] >= 0
    counts = torch.bincount(present.sum(1))
    assert counts[0] == 0
    assert counts[1:].min() > 100
    assert torch.bincount(targets[:, 0, 0].long()).min() > 100
    same = (targets[:, 1:, 0] == targets[:, :1, 0])[present[:, 1:]]
    assert float(same.double().mean()) == pytest.approx(0.867, abs=0.04)


def test_the_same_images_for_every_seed(drawn: tuple[Tensor, Tensor]) -> None:
    """Nothing is taken from global generators, either."""
    torch.manual_seed(7)
    again = Shapes(image_size=48, seed=5).load(train=False)
    assert all(torch.equal(one, other) for one, other in zip(drawn, again, strict=True))


def test_small_images() -> None:
    """Of 16 pixels, the smallest size, and of 33, which has no half: objects stay inside."""
    for size in (16, 33):
        images, targets = Shapes(image_size=size).load(train=False)
        assert images.shape[2:] == (size, size)
        assert targets[..., 1:].min() >= 0
        assert targets[..., 1:].max() <= size
    with pytest.raises(ConfigurationError, match="image_size must be at least 16, got 15"):
        Shapes(image_size=15)


def test_clients_are_skewed_by_the_class_of_all_objects() -> None:
    """Four equal clients: the largest class of a client has 93 % of its objects or less, and far more than a third."""
    data = Shapes(16, num_clients=4, partition=Dirichlet(0.01, form="client"), train_examples=400, seed=1)
    data.setup("fit")
    train, test = data._dealt.examples.tensors[0], data._dealt.evaluation.tensors[0]
    assert not (train[:, None, 0, 0, 0] == test[:, 0, 0, 0]).all()
    shares = []
    for client in range(4):
        targets = torch.stack([target for _, target in data.client_dataset(client)])
        assert len(targets) == 100
        kinds = targets[..., 0].long()
        shares.append(float(torch.bincount(kinds[kinds >= 0]).max() / (kinds >= 0).sum()))
    assert max(shares) > 0.85
    assert sum(shares) / 4 > 0.6
    assert data.class_counts().sum(1).tolist() == [100] * 4


@pytest.mark.slow
def test_a_short_fit_finds_objects() -> None:
    """Two clients, three rounds of a hundred steps each."""
    data = Shapes(num_clients=2, train_examples=200, test_examples=40, batch_size=4)
    torch.manual_seed(0)
    client = Detector(YOLOv8(3, width=4), num_classes=3, optimizer=partial(torch.optim.AdamW, lr=0.002))
    runner = trainer(rounds=3)
    runner.fit(FederatedOrchestrator(client, local_epochs=4), datamodule=data)
    assert float(runner.callback_metrics["val/map50"]) > 0.05
