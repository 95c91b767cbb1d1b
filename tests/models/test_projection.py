"""WithProjection: sizes, shapes, where the features are, and what it refuses."""

import pytest
import torch
from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.callbacks.client.features import find_classifier, find_layer
from fl_lightning.models import ImageClassifier, LeNet, SimpleCNN, TimmNetwork, TwoLayerCNN, TwoNN, WithProjection


@pytest.mark.parametrize(
    ("network", "shape", "features"),
    [
        (TwoNN(7, in_features=64), (1, 8, 8), 256),
        (TwoLayerCNN(7, in_channels=1, image_size=28), (1, 28, 28), 128),
        (SimpleCNN(7), (3, 32, 32), 64),
        (LeNet(7), (3, 32, 32), 84),
        (TimmNetwork("resnet10t", 7), (3, 32, 32), 512),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_shapes(network: nn.Module, shape: tuple[int, ...], features: int) -> None:
    """Images to features of the network, to the projection's, to 7 logits."""
    whole = WithProjection(network, out=9).eval()
    images = torch.randn(3, *shape)
    with torch.no_grad():
        assert whole.network(images).shape == (3, features)
        projected = whole.projection(whole.network(images))
        assert projected.shape == (3, 9)
        assert torch.equal(whole(images), whole.classifier(projected))
        assert whole(images).shape == (3, 7)


def test_its_output_is_a_layer_by_name_and_what_enters_the_classifier() -> None:
    network = WithProjection(TwoNN(in_features=64))
    client = ImageClassifier(network)
    assert find_layer(client, "network.projection") is network.projection
    assert find_classifier(client) is network.classifier


@pytest.mark.parametrize("network", [nn.Flatten(), nn.Linear(3, 2)])
def test_refuses_a_network_that_does_not_end_in_a_layer_of_its_own(network: nn.Module) -> None:
    message = f"network must end in an nn.Linear that makes its class scores, got {type(network).__name__}, which"
    with pytest.raises(ConfigurationError, match=message):
        WithProjection(network)


def test_refuses_widths_below_one() -> None:
    with pytest.raises(ConfigurationError, match="hidden and out must be at least 1, got 0 and 256"):
        WithProjection(TwoNN(), hidden=0)
