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
    """conv(i, o, k) has i·o·k² weights and 2o of its normalisation.

    C2f(i, o, d) with h = o/2: conv(i, o, 1) + d·2·conv(h, h, 3) + conv((2 + d)h, o, 1). SPPF(c): conv(c, c/2, 1) +
    conv(2c, c, 1). A branch (i, w, o): conv(i, w, 3) + conv(w, w, 3) + w·o + o.

    Backbone: conv(3, 16, 3) 464, conv(16, 32, 3) 4,672, C2f(32, 32, 1) 1,088 + 4,672 + 1,600 = 7,360, conv(32, 64, 3)
    18,560, C2f(64, 64, 2) 4,224 + 4·9,280 + 8,320 = 49,664: 80,720. conv(64, 128, 3) 73,984, C2f(128, 128, 2) 197,632:
    271,616. conv(128, 256, 3) 295,424, C2f(256, 256, 1) 460,288, SPPF(256) 33,024 + 131,584 = 164,608: 920,320.
    Neck: C2f(384, 128, 1) 148,224, C2f(192, 64, 1) 37,248, conv(64, 64, 3) 36,992, C2f(192, 128, 1) 123,648,
    conv(128, 128, 3) 147,712, C2f(384, 256, 1) 493,056: 986,880.
    Head, boxes (w = 64, o = 64): 78,144 + 115,008 + 188,736 = 381,888; classes (w = 64, o = 1): 74,049 + 110,913 +
    184,641 = 369,603; the projection's 16.

    80,720 + 271,616 + 920,320 + 986,880 + 381,888 + 369,603 + 16 = 3,011,043, all but 16 of them trained.
    """
    network = YOLOv8()
    assert [count(stage) for stage in (network.stage8, network.stage16, network.stage32)] == [80720, 271616, 920320]
    ups_and_downs = (network.up16, network.up8, network.down16, network.out16, network.down32, network.out32)
    assert [count(part) for part in ups_and_downs] == [148224, 37248, 36992, 123648, 147712, 493056]
    assert [count(branch) for branch in network.boxes] == [78144, 115008, 188736]
    assert [count(branch) for branch in network.classes] == [74049, 110913, 184641]
    assert count(network) == 3_011_043
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == 3_011_027


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
