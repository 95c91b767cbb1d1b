"""The networks: sizes as published, outputs one row of logits per image."""

import pytest
import torch
from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.models import LeNet, SimpleCNN, TimmNetwork, TwoLayerCNN, TwoNN


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_two_nn_has_the_published_size() -> None:
    """784·512 + 512 = 401,920; 512·256 + 256 = 131,328; 256·10 + 10 = 2,570; together 535,818."""
    assert size(TwoNN()) == 401_920 + 131_328 + 2_570 == 535_818


def test_two_nn_of_another_size() -> None:
    """64·512 + 512 = 33,280; 131,328; 256·7 + 7 = 1,799."""
    assert size(TwoNN(num_classes=7, in_features=64)) == 33_280 + 131_328 + 1_799


def test_two_layer_cnn_has_the_published_size() -> None:
    """32·(3·25) + 32 = 2,432; 64·(32·25) + 64 = 51,264; sides 32 → 28 → 24 → 12: 64·144·128 + 128 = 1,179,776;
    128·10 + 10 = 1,290; together 1,234,762.
    """
    assert size(TwoLayerCNN()) == 2_432 + 51_264 + 1_179_776 + 1_290 == 1_234_762


@pytest.mark.parametrize(
    ("network", "shape", "classes"),
    [
        (TwoNN(), (1, 28, 28), 10),
        (TwoNN(num_classes=7, in_features=64), (1, 8, 8), 7),
        (TwoLayerCNN(), (3, 32, 32), 10),
        (TwoLayerCNN(num_classes=7, in_channels=1, image_size=28), (1, 28, 28), 7),
        (TwoLayerCNN(num_classes=7, image_size=10), (3, 10, 10), 7),
        (SimpleCNN(num_classes=7), (3, 32, 32), 7),
        (LeNet(num_classes=7, in_channels=1), (1, 32, 32), 7),
        (TimmNetwork("resnet10t", num_classes=7, in_channels=1), (1, 32, 32), 7),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_output_is_one_row_of_logits_per_image(network: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    with torch.no_grad():
        logits = network.eval()(torch.randn(3, *shape))
    assert logits.shape == (3, classes)
    assert logits.isfinite().all()


def test_small_images_keep_their_resolution_in_the_stem() -> None:
    """Otherwise a 32×32 image would be 16×16 after the first convolution."""
    assert next(m for m in TimmNetwork("resnet10t").modules() if isinstance(m, nn.Conv2d)).stride == (1, 1)
    large = TimmNetwork("resnet10t", small_images=False)
    assert next(m for m in large.modules() if isinstance(m, nn.Conv2d)).stride == (2, 2)


def test_dropout_rates_are_where_they_belong() -> None:
    """The first rate follows the pooling, the second the hidden layer."""
    network = TwoLayerCNN(dropout=(0.125, 0.375))
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.125, 0.375]


@pytest.mark.parametrize("side", [8, 11])
def test_two_layer_cnn_refuses_sizes_it_cannot_pool(side: int) -> None:
    with pytest.raises(ConfigurationError, match=f"image_size must be even and at least 10, got {side}"):
        TwoLayerCNN(image_size=side)


def test_misspelt_timm_model_is_named_with_the_nearest() -> None:
    with pytest.raises(
        ConfigurationError, match=r"timm has no model 'mobilenetv2_100x'; did you mean mobilenetv2_100\?"
    ):
        TimmNetwork("mobilenetv2_100x")
