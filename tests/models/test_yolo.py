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


def test_parameters_of_yolov8n() -> None:
    """Count the parameters of YOLOv8n for one class layer by layer: 3,011,043, all but 16 of them trained."""

    def conv(inputs: int, outputs: int, kernel: int) -> int:
        return inputs * outputs * kernel**2 + 2 * outputs  # the weights; scale and shift of the normalisation

    def c2f(inputs: int, outputs: int, depth: int) -> int:
        half = outputs // 2
        return conv(inputs, outputs, 1) + depth * 2 * conv(half, half, 3) + conv((2 + depth) * half, outputs, 1)

    def branch(inputs: int, width: int, outputs: int) -> int:
        return conv(inputs, width, 3) + conv(width, width, 3) + width * outputs + outputs

    stage8 = conv(3, 16, 3) + conv(16, 32, 3) + c2f(32, 32, 1) + conv(32, 64, 3) + c2f(64, 64, 2)
    stage16 = conv(64, 128, 3) + c2f(128, 128, 2)
    sppf = conv(256, 128, 1) + conv(4 * 128, 256, 1)
    stages = [stage8, stage16, conv(128, 256, 3) + c2f(256, 256, 1) + sppf]
    ups = [c2f(256 + 128, 128, 1), c2f(128 + 64, 64, 1)]
    downs = [conv(64, 64, 3), c2f(64 + 128, 128, 1), conv(128, 128, 3), c2f(128 + 256, 256, 1)]
    boxes = [branch(inputs, 64, 4 * 16) for inputs in (64, 128, 256)]
    classes = [branch(inputs, 64, 1) for inputs in (64, 128, 256)]
    projection = 16
    total = sum([*stages, *ups, *downs, *boxes, *classes, projection])
    assert [*stages, *ups] == [80720, 271616, 920320, 148224, 37248]  # by hand, as the next two lines
    assert [*downs, *boxes] == [36992, 123648, 147712, 493056, 78144, 115008, 188736]
    assert [*classes, total] == [74049, 110913, 184641, 3_011_043]
    network = YOLOv8()
    assert [count(stage) for stage in (network.stage8, network.stage16, network.stage32)] == stages
    ups_and_downs = (network.up16, network.up8, network.down16, network.out16, network.down32, network.out32)
    assert [count(part) for part in ups_and_downs] == [*ups, *downs]
    assert [count(branch) for branch in network.boxes] == boxes
    assert [count(branch) for branch in network.classes] == classes
    assert count(network) == total
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == total - projection


@pytest.mark.parametrize(("width", "published"), [(16, 3_157_200), (32, 11_166_560)])
def test_parameters_with_the_80_classes_of_coco(width: int, published: int) -> None:
    """YOLOv8n and YOLOv8s as they were published."""
    assert count(YOLOv8(80, width)) == published


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
