"""YOLOv8: its parameters, its maps, what it refuses."""

import math

import pytest
import torch
from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.models import YOLOv8


def count(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def biases(branches: nn.ModuleList) -> list[nn.Parameter]:
    """Of the last layer of each level."""
    return [dict(branch.named_parameters())["2.bias"] for branch in branches]


@pytest.mark.parametrize(("classes", "width", "total"), [(80, 16, 3_157_200), (80, 32, 11_166_560), (1, 16, 3_011_043)])
def test_parameters(classes: int, width: int, total: int) -> None:
    """YOLOv8n and YOLOv8s as they were published, with the 80 classes of COCO; and the nano with one.

    With one class, the class branches have 64 channels, not 80: 9·16 times the inputs and 9·(80² - 64²) weights less in
    the two convolutions of each level, and two less for each of the 16 channels in both normalisations. Then 80·81
    against 65 at the end. All but the 16 frozen distances are trained.
    """
    network = YOLOv8(classes, width)
    assert count(network) == total
    assert sum(p.numel() for p in network.parameters() if not p.requires_grad) == 16
    if classes == 80 and width == 16:
        inputs = 64 + 128 + 256
        branches = 9 * 16 * inputs + 3 * (9 * (80**2 - 64**2) + 2 * 2 * 16)
        last = 3 * (80 * 80 + 80 - 64 - 1)
        assert total - branches - last == 3_011_043


def test_maps_of_strides_8_16_and_32() -> None:
    """64 x 96 pixels make maps of 8x12, 4x6 and 2x3; 4·16 + 3 channels."""
    maps = YOLOv8(num_classes=3, width=2)(torch.rand(2, 3, 64, 96))
    assert [tuple(level.shape) for level in maps] == [(2, 67, 8, 12), (2, 67, 4, 6), (2, 67, 2, 3)]


def test_every_level_sees_the_whole_image() -> None:
    """The neck carries every stage to every level: all trained parameters but the other heads' have a gradient."""
    network = YOLOv8(width=2).eval()
    for own, level in enumerate(network(torch.rand(1, 3, 64, 64))):
        network.zero_grad()
        level.sum().backward(retain_graph=True)
        for stage in (network.stage8, network.stage16, network.stage32):
            assert all(p.grad is not None and p.grad.any() for p in stage.parameters())
        reached = [bias.grad is not None for bias in biases(network.boxes)]
        assert reached == [index == own for index in range(3)]


def test_biases_at_the_start() -> None:
    """Stride 8 has 80² places in 640x640: sigmoid(b) is about 5 / (2 · 6,400) for two classes; sides begin at 1."""
    network = YOLOv8(num_classes=2)
    assert all(bias.eq(1).all() for bias in biases(network.boxes))
    torch.testing.assert_close(biases(network.classes)[0].data, torch.full((2,), math.log(5 / 12800)))


def test_refusals() -> None:
    with pytest.raises(ConfigurationError, match="num_classes and width must be at least 1, got 0 and 16"):
        YOLOv8(0)
    with pytest.raises(ConfigurationError, match=r"multiples of 32, got \(64, 72\): set the data's image_size"):
        YOLOv8(width=2)(torch.rand(1, 3, 64, 72))
