"""DomainShift: each change by hand, which images change, refusals."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fl_lightning.datamodules import Blur, Colour, DomainShift, ImageData, Rotation, Tensors
from fl_lightning.datamodules.partition.steps.parts import Parts
from fl_lightning.errors import ConfigurationError

CORNER = torch.tensor([[255, 0], [0, 0]], dtype=torch.uint8).view(1, 1, 2, 2)


class Brighter(DomainShift):
    """Domain d adds d."""

    count = 3

    def change(self, images: Tensor, domain: int) -> Tensor:
        return images + domain


class Dark(ImageData):
    """Twenty training and ten test images of black pixels; 'a' and 'b' own the test images in turn."""

    num_classes = 2
    mean, std = (0.1,), (0.2,)
    named = False

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        size = 20 if train else 10
        return torch.zeros(size, 1, 2, 2, dtype=torch.uint8), torch.arange(size) % 2

    def clients(self, train: bool) -> list[str] | None:
        return ["a", "b"] * (10 if train else 5) if self.named else None


class Named(Dark):
    named = True


def levels(data: ImageData, client: int) -> tuple[set[int], set[int]]:
    """The grey levels on which a client trains, and on which it evaluates."""
    trained = data.client_dataset(client)[:][0]
    evaluated = [images for images, _ in data.held_out_batches(client)]
    return set(trained.flatten().tolist()), set(torch.cat(evaluated).flatten().tolist())


def test_a_client_trains_and_evaluates_in_its_domain() -> None:
    """Of five clients, 3 and 4 are in domains 0 and 1; the shared test set is in none."""
    data = Dark(num_clients=5, held_out=0.5, domain_shift=Brighter())
    assert [levels(data, client) for client in range(5)] == [({d}, {d}) for d in (0, 1, 2, 0, 1)]
    assert not any(images.any() for images, _ in data.val_dataloader())


def test_test_images_that_come_by_client() -> None:
    data = Named(domain_shift=Brighter())
    assert [levels(data, client) for client in range(2)] == [({0}, {0}), ({1}, {1})]
    ((images, _),) = data.val_dataloader()
    assert images[:, 0, 0, 0].tolist() == [0, 1] * 5


def test_the_proxy_set_is_in_no_domain() -> None:
    for source in ("train", "test"):
        data = Dark(num_clients=3, domain_shift=Brighter(), proxy_per_class=2, proxy_source=source)  # type: ignore[arg-type]
        proxy = data.proxy_dataloader()
        assert proxy is not None
        assert not any(images.any() for images, _ in proxy)
        assert levels(Dark(num_clients=3, domain_shift=Brighter(), held_out=0.5), 2) == ({2}, {2})


def test_what_was_loaded_stays() -> None:
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    changed = Brighter().of_clients(images, Parts.of([torch.tensor([3]), torch.tensor([0, 2])]))
    assert changed[:, 0, 0, 0].tolist() == [1, 0, 1, 0]
    assert not images.any()


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_quarter_turns(degrees: int) -> None:
    """Anticlockwise: the upper left corner comes to the lower left."""
    turned = Rotation([0, degrees]).change(CORNER, 1)
    assert torch.equal(turned, torch.rot90(CORNER, degrees // 90, (2, 3)))
    assert torch.equal(Rotation([0, degrees]).change(CORNER, 0), CORNER)


def test_a_rotated_line() -> None:
    """A horizontal line through the middle, turned by 45 degrees, runs from the lower left to the upper right."""
    image = torch.zeros(1, 1, 21, 21, dtype=torch.uint8)
    image[..., 10, :] = 255
    turned = Rotation([45]).change(image, 0)[0, 0].float()
    assert turned[10, 10] == 255
    for step in range(1, 7):
        assert turned[10 - step, 10 + step] > 150
        assert turned[10 + step, 10 - step] > 150
        assert turned[10 + step, 10 + step] == 0


def test_colours_multiply_channels() -> None:
    """100 · 0.5 = 50, 101 · 0.5 = 50.5 is rounded to the even 50, 255 · 0 = 0."""
    image = torch.tensor([100, 101, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    tint = Colour([(1, 1, 1), (0.5, 0.5, 0)])
    assert tint.change(image, 0).flatten().tolist() == [100, 101, 255]
    assert tint.change(image, 1).flatten().tolist() == [50, 50, 0]


def test_blur_is_a_gaussian() -> None:
    """A bright pixel of 255 becomes 255 g(x) g(y), where g is exp(-x² / 2 width²), scaled to sum to 1."""
    width = 1.0
    image = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    image[0, 0, 7, 7] = 255
    line = torch.tensor([math.exp(-((x - 7) ** 2) / 2 / width**2) for x in range(15)])
    line = line / line.sum()
    blurred = Blur([0, width]).change(image, 1)[0, 0].float()
    assert (blurred - 255 * torch.outer(line, line)).abs().max() <= 0.6
    assert torch.equal(Blur([0, width]).change(image, 0), image)


def grey(shift: DomainShift) -> Tensors:
    pair = torch.zeros(4, 1, 3, 3, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    return Tensors(train=pair, test=pair, num_clients=2, domain_shift=shift)


def floats(shift: DomainShift) -> Tensors:
    pair = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    return Tensors(train=pair, test=pair, num_clients=2, domain_shift=shift)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotation([]), r"degrees must be finite angles, such as \[0, 15, 30\], got \[\]"),
        (lambda: Rotation([0, math.inf]), r"degrees must be finite angles, .* got \[0, inf\]"),
        (lambda: Colour([(1, 1, 2)]), r"each of colours must be three factors in \[0, 1\], .* got \[1, 1, 2\]"),
        (lambda: Colour([]), "colours must be at least one"),
        (lambda: Blur([]), "widths must be at least one"),
        (lambda: Blur([0, -1]), r"widths\[1\] must be at least 0 and finite, got -1"),
        (lambda: grey(Colour()).setup("fit"), "expected images of three channels for Colour, got 1"),
        (
            lambda: grey(Blur([1])).setup("fit"),
            "expected images of more than 4 pixels for a blur of width 1.0, got 3x3",
        ),
        (
            lambda: floats(Rotation()).setup("fit"),
            r"expected uint8 images .* got torch.float32 \(4, 2\): leave domain_shift",
        ),
        (lambda: DomainShift().change(CORNER, 0), "DomainShift must define change"),
    ],
)
def test_refusals(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
