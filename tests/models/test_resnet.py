"""CifarResNet: sizes by the formula, its shape, and what it refuses."""

import pytest
import torch
from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.models import CifarResNet


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("depth", "width", "total"),
    [(8, 1, 78_042), (20, 1, 272_474), (56, 1, 855_770), (110, 1, 1_730_714), (56, 4, 13_628_234)],
)
def test_sizes(depth: int, width: int, total: int) -> None:
    """As FedLAW's networks have them.

    ResNet20 in numbers: 464 + 14,016, then 4,672 + 576 + 5·9,280 = 51,648, then 18,560 + 2,176 + 5·36,992 = 205,696,
    then 650: together 272,474. Grey images take 2·9·16 weights less, seven classes 3·65.
    """
    with torch.device("meta"):
        assert size(CifarResNet(depth, width=width)) == total
        assert size(CifarResNet(depth, 7, 1, width)) == total - 2 * 9 * 16 * width - 3 * (64 * width + 1)


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
