"""CifarResNet: sizes by the formula, its shape, and what it refuses."""

import pytest
import torch
from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.models import CifarResNet


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def by_hand(depth: int, width: int, channels: int, classes: int) -> int:
    """With w = 16·width channels at first and n blocks a stage: the first convolution has 9cw + 2w. A 3×3 convolution
    from a to b channels has 9ab, its BatchNorm 2b. The first stage is 2n times (w, w); the second (w, 2w), a shortcut
    of 2w² + 4w and 2n - 1 times (2w, 2w); the third likewise from 2w; then 4wC + C.
    """
    w, n = 16 * width, (depth - 2) // 6

    def conv(a: int, b: int) -> int:
        return 9 * a * b + 2 * b

    first = 9 * channels * w + 2 * w + 2 * n * conv(w, w)
    second = conv(w, 2 * w) + 2 * w * w + 4 * w + (2 * n - 1) * conv(2 * w, 2 * w)
    third = conv(2 * w, 4 * w) + 8 * w * w + 8 * w + (2 * n - 1) * conv(4 * w, 4 * w)
    return first + second + third + 4 * w * classes + classes


@pytest.mark.parametrize(
    ("depth", "width", "total"),
    [(8, 1, 78_042), (20, 1, 272_474), (56, 1, 855_770), (110, 1, 1_730_714), (56, 4, 13_628_234)],
)
def test_sizes(depth: int, width: int, total: int) -> None:
    """ResNet20 in numbers: 464 + 14,016, then 4,672 + 576 + 5·9,280 = 51,648, then 18,560 + 2,176 + 5·36,992 = 205,696,
    then 650: together 272,474.
    """
    with torch.device("meta"):
        assert size(CifarResNet(depth, width=width)) == by_hand(depth, width, 3, 10) == total
    assert by_hand(20, 1, 3, 10) == 464 + 14_016 + 51_648 + 205_696 + 650


def test_size_with_other_images_and_classes() -> None:
    assert size(CifarResNet(8, num_classes=7, in_channels=1)) == by_hand(8, 1, 1, 7)


@pytest.mark.parametrize("depth", [8, 20])
def test_depth_counts_the_layers_with_weights(depth: int) -> None:
    """Convolutions of 3×3 and the linear layer; the two 1×1 convolutions are shortcuts."""
    layers = [layer for layer in CifarResNet(depth).modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    shortcuts = [layer for layer in layers if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1)]
    assert (len(layers) - len(shortcuts), len(shortcuts)) == (depth, 2)


def test_stages_are_at_32_16_and_8() -> None:
    shapes = []
    network, maps = CifarResNet(8, width=2).eval(), torch.zeros(1, 3, 32, 32)
    with torch.no_grad():
        for layer in network:
            maps = layer(maps)
            if isinstance(layer, nn.Sequential):
                shapes.append(tuple(maps.shape))
    assert shapes == [(1, 32, 32, 32), (1, 64, 16, 16), (1, 128, 8, 8)]


@pytest.mark.parametrize("depth", [2, 9, 18, -4, float("nan")])
def test_refuses_other_depths(depth: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"depth must be 6n \+ 2 \(8, 20, 56, 110, …\), got {depth}"):
        CifarResNet(depth)


def test_refuses_no_width() -> None:
    with pytest.raises(ConfigurationError, match="width must be at least 1, got 0"):
        CifarResNet(width=0)
