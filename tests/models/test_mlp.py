"""Networks of linear layers: sizes as published."""

import pytest
from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.models import LogisticRegression, MultilayerPerceptron, TwoNN


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_two_nn_has_the_published_size() -> None:
    """784·512 + 512 = 401,920; 512·256 + 256 = 131,328; 256·10 + 10 = 2,570; together 535,818."""
    assert size(TwoNN()) == 401_920 + 131_328 + 2_570 == 535_818


def test_two_nn_of_another_size() -> None:
    """64·512 + 512 = 33,280; 131,328; 256·7 + 7 = 1,799."""
    assert size(TwoNN(num_classes=7, in_features=64)) == 33_280 + 131_328 + 1_799


def test_perceptron_is_the_one_of_fedlaw() -> None:
    """784·200 + 200 = 157,000; 200·200 + 200 = 40,200; 200·10 + 10 = 2,010; together 199,210."""
    assert size(MultilayerPerceptron()) == 157_000 + 40_200 + 2_010 == 199_210


def test_logistic_regression_is_one_layer() -> None:
    """784·10 + 10 = 7,850; without hidden layers a perceptron is the same."""
    assert size(LogisticRegression()) == size(MultilayerPerceptron(hidden=())) == 7_850
    assert [type(layer) for layer in LogisticRegression()] == [nn.Flatten, nn.Linear]


def test_relu_between_the_layers_and_not_on_the_scores() -> None:
    layers = [type(layer) for layer in MultilayerPerceptron(hidden=(3,))]
    assert layers == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]


@pytest.mark.parametrize("width", [0, -1, float("nan")])
def test_refuses_widths_below_one(width: int) -> None:
    with pytest.raises(ConfigurationError, match=f"every width must be at least 1, got 784, {width}, 10"):
        MultilayerPerceptron(hidden=(width,))
