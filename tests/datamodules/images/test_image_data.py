"""ImageData: how bytes become inputs, and which of them are augmented."""

from collections import Counter
from typing import Any

import pytest
import torch
from lib.toy import Notes, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import PersonalEvaluation, ServerFT
from fl_lightning.datamodules import Augmentation, ImageData
from fl_lightning.engine.federation.batches import TrainingBatch
from fl_lightning.errors import ConfigurationError


class Tiny(ImageData):
    """One-pixel images whose value is their row: 60 to train on, 30 to test on, three classes in turn."""

    num_classes = 3
    mean = (0.1,)
    std = (0.5,)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        rows = torch.arange(60 if train else 30)
        return rows.to(torch.uint8).view(-1, 1, 1, 1), rows % 3


def rows(batches: Any) -> list[int]:
    return [int(pixel) for images, _ in batches for pixel in images.flatten()]


def test_bytes_become_normalised_floats() -> None:
    """51 / 255 = 0.2; (0.2 - 0.1) / 0.5 = 0.2. 255 / 255 = 1; (1 - 0.1) / 0.5 = 1.8."""
    labels = torch.tensor([2, 0])
    batch = [torch.tensor([51, 255], dtype=torch.uint8).view(2, 1, 1, 1), labels]
    inputs, same = Tiny().on_after_batch_transfer(batch, 0)
    assert inputs.dtype == torch.float32
    assert inputs.flatten().tolist() == pytest.approx([0.2, 1.8])
    assert same is labels
    assert batch[0].flatten().tolist() == [51, 255]
    plain, _ = Tiny(normalize=False).on_after_batch_transfer(batch, 0)
    assert plain.flatten().tolist() == pytest.approx([0.2, 1.0])
    given, _ = Tiny(normalize=(0.5, 0.25)).on_after_batch_transfer(batch, 0)  # (0.2 - 0.5) / 0.25, (1 - 0.5) / 0.25
    assert given.flatten().tolist() == pytest.approx([-1.2, 2.0])


def test_each_channel_has_its_own_constants() -> None:
    """A pixel (0, 51, 255) is (0, 0.2, 1) scaled; less (0, 0.1, 0.5), divided by (1, 0.5, 0.25): (0, 0.2, 2)."""

    class Colour(ImageData):
        mean, std = (0.0, 0.1, 0.5), (1.0, 0.5, 0.25)

    batch = (torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1), torch.tensor([1]))
    assert Colour().on_after_batch_transfer(batch, 0)[0].flatten().tolist() == pytest.approx([0.0, 0.2, 2.0])


def test_images_are_resized_once() -> None:
    """Columns of 0 and 200 in a 4x4 image become, 2x2 pixels of 29 and 171.

    Antialiased to half the size, the triangle of the weights spans 4 pixels: those of the first output are at distances
    0.5, 0.5 and 1.5 from its centre and weigh 0.75, 0.75 and 0.25. Columns 0, 0, 200, 200: 0.25 · 200 / 1.75 = 28.57.
    """

    class Striped(ImageData):
        num_classes, mean, std = 2, (0.0,), (1.0,)

        def load(self, train: bool) -> tuple[Tensor, Tensor]:
            image = torch.tensor([0, 0, 200, 200], dtype=torch.uint8).expand(4, 1, 4, 4).clone()
            return image, torch.arange(4) % 2

    data = Striped(num_clients=2, normalize=False, resize=2, batch_size=4)
    data.setup("fit")
    images = torch.stack([each[0] for each in data.client_dataset(0)])
    assert images.shape == (2, 1, 2, 2)
    assert images[0, 0, 0].tolist() == [29, 171]
    assert [each[0].shape[2:] for each in data.val_dataloader()] == [(2, 2)]
    with pytest.raises(ConfigurationError, match="resize must be at least 1, got 0"):
        Striped(resize=0)


def test_other_batches_are_left_alone() -> None:
    data = Tiny()
    floats = [torch.rand(2, 1, 1, 1), torch.tensor([0, 1])]
    assert data.on_after_batch_transfer(floats, 0) is floats
    clients = [4, 7]
    assert data.on_after_batch_transfer(clients, 0) is clients
    assert data.on_after_batch_transfer(None, 0) is None


class Pixel(LightningModule):
    """Remembers the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(1, 3), list[Tensor]()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.append(batch[0])
        return nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    validation_step = training_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_bytes_become_doubles_where_the_run_computes_in_doubles() -> None:
    """Row 1 / 255 is scaled in float64: (1/255 - 0.1) / 0.5. Afterwards, the data serve a run in float32."""
    module, data = Pixel(), Tiny(num_clients=2)
    run = trainer(precision="64-true")
    run.fit(FederatedOrchestrator(module, on_bad_update="raise"), datamodule=data)
    run.validate(FederatedOrchestrator(module), datamodule=data, verbose=False)
    assert {inputs.dtype for inputs in module.seen} == {torch.float64}
    assert module.seen[-1].flatten()[1].item() == pytest.approx((1 / 255 - 0.1) / 0.5, rel=1e-15)
    module = Pixel()
    trainer().fit(FederatedOrchestrator(module, on_bad_update="raise"), datamodule=data)
    assert {inputs.dtype for inputs in module.seen} == {torch.float32}


def test_constants_made_in_inference_mode_serve_training() -> None:
    """Validation comes first and runs in inference mode; its cached constants must not taint training."""
    data = Tiny()
    data.mean, data.std = (0.123,), (0.456,)  # not cached by any other test
    batch = [torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.zeros(2)]
    with torch.inference_mode():
        data.on_after_batch_transfer(batch, 0)
    weight = torch.ones((), requires_grad=True)
    (data.on_after_batch_transfer(batch, 0)[0] * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == pytest.approx(2 * -0.123 / 0.456)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.rand(4, 1, 2, 2), torch.zeros(4).long(), "Broken.load to give uint8 images .* got torch.float32"),
        (torch.zeros(4, 3, 2, 2).byte(), torch.zeros(4).long(), r"images \(n, 1, H, W\).*got .* \(4, 3, 2, 2\)"),
        (torch.zeros(4, 1, 2, 2).byte(), torch.zeros(3).long(), r"int64 labels \(4,\).*got .* \(3,\)"),
        (torch.zeros(4, 1, 2, 2).byte(), torch.tensor([0, 1, 2, 3]), "labels from 0 to 2, got 0 to 3"),
    ],
)
def test_refuses_what_is_not_labelled_images(images: Tensor, labels: Tensor, message: str) -> None:
    class Broken(Tiny):
        def load(self, train: bool) -> tuple[Tensor, Tensor]:
            return images, labels

    with pytest.raises(ConfigurationError, match=message):
        Broken(num_clients=1).setup("fit")


class Negative(Augmentation):
    """Bytes b become 255 - b."""

    def __call__(self, images: Tensor) -> Tensor:
        return 255 - images


class Plus(Augmentation):
    """Bytes b become b + 1."""

    def __call__(self, images: Tensor) -> Tensor:
        return images + 1


def test_augmentations_come_one_after_the_other() -> None:
    """Of training batches: 255 - (50 + 1) = 204 is 0.8, (255 - 50) + 1 = 206; others stay at 50."""
    images = torch.full((1, 1, 1, 1), 50, dtype=torch.uint8)
    for augment, value in (([Plus(), Negative()], 204), ([Negative(), Plus()], 206), (Negative(), 205), (None, 50)):
        data = Tiny(normalize=False, augment=augment)
        for batch, expected in ((TrainingBatch([images, 0]), value), ([images, 0], 50)):
            assert data.on_after_batch_transfer(batch, 0)[0].item() == pytest.approx(expected / 255)
    assert images.item() == 50


class Dark(ImageData):
    """Twelve training images of level 10 and nine test images of level 20, three classes in turn."""

    num_classes = 3
    mean = (0.0,)
    std = (1.0,)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        count, level = (12, 10) if train else (9, 20)
        return torch.full((count, 1, 2, 2), level, dtype=torch.uint8), torch.arange(count) % 3


class Levels(LightningModule):
    """A linear classifier that keeps the grey levels it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.seen: dict[str, list[int]] = {"training": Notes(), "evaluation": Notes()}

    def loss(self, batch: list[Tensor], step: str) -> Tensor:
        self.seen[step].extend((batch[0][:, 0, 0, 0] * 255).round().int().tolist())
        return nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch, "training")

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch, "evaluation"))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_run_augments_what_clients_train_on_and_nothing_else() -> None:
    """Two clients of 6, of which 2 are held out: 8 training images, negative (245), in each of two local epochs.

    Of the 9 test images 3 are the proxy set, on which the server trains for one epoch: level 20. Evaluation sees the
    other 6, and the 2 + 2 held-out images of level 10 under the global model and under the client's own.
    """
    data = Dark(num_clients=2, held_out=1 / 3, proxy_per_class=1, augment=Negative(), batch_size=3)
    module = Levels()
    run = trainer(ServerFT(epochs=1), PersonalEvaluation())
    run.fit(FederatedOrchestrator(module, local_epochs=2, on_hidden_state="off"), datamodule=data)
    assert Counter(module.seen["training"]) == {245: 16, 20: 3}
    assert Counter(module.seen["evaluation"]) == {20: 6, 10: 8}
