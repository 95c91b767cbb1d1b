"""Convolutional networks: sizes as published or as their form implies, and what they refuse."""

import pytest
import torch
from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.models import CifarAlexNet, FedLAWLeNet, LeNet, PooledCNN, SimpleCNN, TwoLayerCNN


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_pooled_cnn_has_the_size_that_mcmahan_et_al_print() -> None:
    """32·25 + 32 = 832; 64·(32·25) + 64 = 51,264; sides 28 → 14 → 7: 64·49·512 + 512 = 1,606,144; 512·10 + 10 = 5,130;
    together 1,663,370.
    """
    assert size(PooledCNN()) == 832 + 51_264 + 1_606_144 + 5_130 == 1_663_370


def test_lenet_by_hand() -> None:
    """Convolutions of c channels: 6·25·c + 6 and 16·(6·25) + 16 = 2,416. At 32 the sides are 28 → 14 → 10 → 5, so 400
    features: 400·120 + 120 = 48,120; 120·84 + 84 = 10,164; 84·10 + 10 = 850. At 28 they end at 4, so 256: 30,840.
    """
    assert size(LeNet()) == 456 + 2_416 + 48_120 + 10_164 + 850 == 62_006
    assert size(LeNet(in_channels=1, image_size=28)) == 156 + 2_416 + 30_840 + 10_164 + 850 == 44_426


def test_fedlaws_lenet_by_hand() -> None:
    """16·25 + 16 = 416; 32·(16·25) + 32 = 12,832; 32·49·10 + 10 = 15,690; at 32×32 32·64·10 + 10 = 20,490."""
    assert size(FedLAWLeNet()) == 416 + 12_832 + 15_690 == 28_938
    assert size(FedLAWLeNet(image_size=32)) == 416 + 12_832 + 20_490


def test_two_layer_cnn_has_the_published_size() -> None:
    """32·(3·25) + 32 = 2,432; 64·(32·25) + 64 = 51,264; sides 32 → 28 → 24 → 12: 64·144·128 + 128 = 1,179,776;
    128·10 + 10 = 1,290; together 1,234,762.
    """
    assert size(TwoLayerCNN()) == 2_432 + 51_264 + 1_179_776 + 1_290 == 1_234_762


def test_simple_cnn_by_hand() -> None:
    """32·27 + 32 = 896; 64·(32·9) + 64 = 18,496; 64·(64·9) + 64 = 36,928; 1024·64 + 64 = 65,600; 64·10 + 10 = 650."""
    assert size(SimpleCNN()) == 896 + 18_496 + 36_928 + 65_600 + 650 == 122_570


def test_alexnet_by_hand() -> None:
    """64·(3·121) + 64 = 23,296; 192·(64·25) + 192 = 307,392; 384·(192·9) + 384 = 663,936; 256·(384·9) + 256 = 884,992;
    256·(256·9) + 256 = 590,080; 256·10 + 10 = 2,570; together 2,472,266.
    """
    assert size(CifarAlexNet()) == 23_296 + 307_392 + 663_936 + 884_992 + 590_080 + 2_570 == 2_472_266


def test_narrow_networks_by_hand() -> None:
    """SimpleCNN with 8, 16, 16 channels and 16 hidden units: 8·27 + 8 = 224; 16·72 + 16 = 1,168; 16·144 + 16 = 2,320;
    256·16 + 16 = 4,112; 170. AlexNet with 6, 19, 38, 25 and 25 channels: 6·363 + 6 = 2,184; 19·150 + 19 = 2,869;
    38·171 + 38 = 6,536; 25·342 + 25 = 8,575; 25·225 + 25 = 5,650; 260.
    """
    assert size(SimpleCNN(width=0.25)) == 224 + 1_168 + 2_320 + 4_112 + 170
    assert size(CifarAlexNet(width=0.1)) == 2_184 + 2_869 + 6_536 + 8_575 + 5_650 + 260
    with pytest.raises(ConfigurationError, match=r"width must leave each layer at least one channel, got 0\.01"):
        SimpleCNN(width=0.01)


@pytest.mark.parametrize(
    ("padding", "channels", "smallest"), [(0, (2, 3), 16), (1, (2, 3), 10), (2, (2, 3), 4), (0, (2,), 6)]
)
def test_smallest_image(padding: int, channels: tuple[int, ...], smallest: int) -> None:
    """Backwards from one pixel: 1 ← 2 ← 6 ← 12 ← 16 without padding, 1 ← 2 ← 4 ← 8 ← 10 with 1, 1 ← 2 ← 4 with 2."""
    network = PooledCNN(7, 1, smallest, channels, padding=padding)
    assert network(torch.zeros(1, 1, smallest, smallest)).shape == (1, 7)
    with pytest.raises(ConfigurationError, match=f"image_size must be at least {smallest} .*, got {smallest - 1}"):
        PooledCNN(7, 1, smallest - 1, channels, padding=padding)


def test_no_convolution_leaves_a_perceptron() -> None:
    """2·2 pixels: 4·512 + 512 = 2,560 and 5,130."""
    assert size(PooledCNN(image_size=2, channels=())) == 2_560 + 5_130


def test_dropout_rates_are_where_they_belong() -> None:
    """The first rate follows the pooling, the second the hidden layer."""
    network = TwoLayerCNN(dropout=(0.125, 0.375))
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.125, 0.375]


@pytest.mark.parametrize("side", [8, 11])
def test_two_layer_cnn_refuses_sizes_it_cannot_pool(side: int) -> None:
    with pytest.raises(ConfigurationError, match=f"image_size must be even and at least 10, got {side}"):
        TwoLayerCNN(image_size=side)


def test_pooled_cnn_refuses() -> None:
    with pytest.raises(ConfigurationError, match="in_channels and channels must be at least 1, got 1, 4, 0"):
        PooledCNN(channels=(4, 0))
    with pytest.raises(ConfigurationError, match="padding must be 0, 1 or 2, got 3"):
        PooledCNN(padding=3)
    with pytest.raises(ConfigurationError, match="every width must be at least 1, got 3136, 0, 10"):
        PooledCNN(hidden=(0,))
    with pytest.raises(ConfigurationError, match="image_size must be at least 4 for 2 poolings and padding 2, got nan"):
        PooledCNN(image_size=float("nan"))  # type: ignore[arg-type]  # the mistake
