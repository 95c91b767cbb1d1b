"""Convolutional networks: sizes as published or as their form implies, and what they refuse."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.models import CifarAlexNet, FedLAWLeNet, LeNet, PooledCNN, SimpleCNN, TwoLayerCNN

# Convolutions first, then linear layers; a convolution from a to b channels with kernels of k has b(ak² + 1).
SIZES: dict[str, tuple[Callable[[], nn.Module], list[int], int]] = {
    # 32·26, 64·801; sides 28 → 14 → 7: 512·(64·49 + 1), 10·513. McMahan et al. print the sum.
    "PooledCNN": (PooledCNN, [832, 51_264, 1_606_144, 5_130], 1_663_370),
    # 2·2 pixels: 512·(4 + 1), 10·513
    "no convolution": (lambda: PooledCNN(image_size=2, channels=()), [2_560, 5_130], 7_690),
    # 6·76, 16·151; sides 28 → 14 → 10 → 5: 120·401, 84·121, 10·85
    "LeNet": (LeNet, [456, 2_416, 48_120, 10_164, 850], 62_006),
    # 6·26, 16·151; at 28 the sides end at 4: 120·257
    "LeNet on grey": (lambda: LeNet(10, 1, 28), [156, 2_416, 30_840, 10_164, 850], 44_426),
    # 16·26, 32·401, 10·(32·49 + 1), or 10·(32·64 + 1) at 32×32
    "FedLAWLeNet": (FedLAWLeNet, [416, 12_832, 15_690], 28_938),
    "FedLAWLeNet at 32": (lambda: FedLAWLeNet(image_size=32), [416, 12_832, 20_490], 33_738),
    # 32·76, 64·801; sides 32 → 28 → 24 → 12: 128·(64·144 + 1), 10·129. FedGH's slides print the sum.
    "TwoLayerCNN": (TwoLayerCNN, [2_432, 51_264, 1_179_776, 1_290], 1_234_762),
    # 32·28, 64·289, 64·577, 64·1025, 10·65
    "SimpleCNN": (SimpleCNN, [896, 18_496, 36_928, 65_600, 650], 122_570),
    # 8, 16, 16 channels and 16 hidden units: 8·28, 16·73, 16·145, 16·257, 10·17
    "narrow SimpleCNN": (lambda: SimpleCNN(width=0.25), [224, 1_168, 2_320, 4_112, 170], 7_994),
    # 64·364, 192·1601, 384·1729, 256·3457, 256·2305, 10·257
    "AlexNet": (CifarAlexNet, [23_296, 307_392, 663_936, 884_992, 590_080, 2_570], 2_472_266),
    # 6, 19, 38, 25 and 25 channels: 6·364, 19·151, 38·172, 25·343, 25·226, 10·26
    "narrow AlexNet": (lambda: CifarAlexNet(width=0.1), [2_184, 2_869, 6_536, 8_575, 5_650, 260], 26_074),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_by_hand(name: str) -> None:
    make, layers, total = SIZES[name]
    network = make()
    parts = [part for part in network.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    assert [sum(parameter.numel() for parameter in part.parameters()) for part in parts] == layers
    assert sum(parameter.numel() for parameter in network.parameters()) == sum(layers) == total


@pytest.mark.parametrize(
    ("padding", "channels", "smallest"), [(0, (2, 3), 16), (1, (2, 3), 10), (2, (2, 3), 4), (0, (2,), 6)]
)
def test_smallest_image(padding: int, channels: tuple[int, ...], smallest: int) -> None:
    """Backwards from one pixel: 1 ← 2 ← 6 ← 12 ← 16 without padding, 1 ← 2 ← 4 ← 8 ← 10 with 1, 1 ← 2 ← 4 with 2."""
    network = PooledCNN(7, 1, smallest, channels, padding=padding)
    assert network(torch.zeros(1, 1, smallest, smallest)).shape == (1, 7)
    with pytest.raises(ConfigurationError, match=f"image_size must be at least {smallest} .*, got {smallest - 1}"):
        PooledCNN(7, 1, smallest - 1, channels, padding=padding)


def relu_first(network: nn.Module) -> nn.Module:
    """A copy of a network with each ReLU before the pooling, as papers write it."""
    network = copy.deepcopy(network)
    for part in network.modules():
        if isinstance(part, nn.Sequential):
            for place in range(1, len(part)):
                if isinstance(part[place - 1], nn.MaxPool2d) and isinstance(part[place], nn.ReLU):
                    part[place - 1], part[place] = part[place], part[place - 1]
    return network


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "make",
    [
        PooledCNN,
        lambda: LeNet(10, 1, 28),
        lambda: SimpleCNN(10, 1),
        lambda: TwoLayerCNN(10, 1),
        lambda: CifarAlexNet(10, 1),
    ],
)
def test_pooling_before_the_relu_trains_to_the_same_bits(
    make: Callable[[], nn.Module], layout: torch.memory_format
) -> None:
    """Images with an empty half, as digits have: there, all values of a window are the same."""
    network = make()
    side = 28 if isinstance(network, PooledCNN) else 32
    networks = [network, relu_first(network)]
    assert str(networks[0]) != str(networks[1])
    images = torch.randn(8, 1, side, side)
    images[..., : side // 2] = 0
    classes = torch.arange(8)
    for own in networks:
        own.to(memory_format=layout)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        torch.manual_seed(0)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(own(images.to(memory_format=layout)), classes).backward()
            optimizer.step()
    for ours, theirs in zip(*(own.parameters() for own in networks), strict=True):
        assert torch.equal(ours, theirs)


def test_dropout_rates_are_where_they_belong() -> None:
    """The first rate follows the pooling, the second the hidden layer."""
    network = TwoLayerCNN(dropout=(0.125, 0.375))
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.125, 0.375]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TwoLayerCNN(image_size=8), "image_size must be even and at least 10, got 8"),
        (lambda: TwoLayerCNN(image_size=11), "image_size must be even and at least 10, got 11"),
        (lambda: TwoLayerCNN(dropout=(0.5, 1.0)), r"dropout must be two rates in \[0, 1\), got \(0.5, 1.0\)"),
        (lambda: PooledCNN(channels=(4, 0)), "in_channels and channels must be at least 1, got 1, 4, 0"),
        (lambda: PooledCNN(padding=3), "padding must be 0, 1 or 2, got 3"),
        (lambda: PooledCNN(hidden=(0,)), "every width must be at least 1, got 3136, 0, 10"),
        (lambda: SimpleCNN(width=0.01), r"width must leave each layer at least one channel, got 0\.01"),
    ],
)
def test_refusals(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
