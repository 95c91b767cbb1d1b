"""Networks of linear layers: sizes as published."""

from typing import Any

import pytest
from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.models import LogisticRegression, MultilayerPerceptron, TwoNN

SIZES: list[Any] = [
    (TwoNN(), 784 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10, 535_818),  # FedGH's slides
    (TwoNN(num_classes=7, in_features=64), 64 * 512 + 512 + 512 * 256 + 256 + 256 * 7 + 7, 166_407),
    (MultilayerPerceptron(), 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10, 199_210),  # FedLAW, Appendix D.3
    (LogisticRegression(), 784 * 10 + 10, 7_850),
]


@pytest.mark.parametrize(("network", "by_hand", "total"), SIZES)
def test_sizes(network: nn.Module, by_hand: int, total: int) -> None:
    assert sum(parameter.numel() for parameter in network.parameters()) == by_hand == total


@pytest.mark.parametrize(("hidden", "layers"), [((3,), [nn.Linear, nn.ReLU, nn.Linear]), ((), [nn.Linear])])
def test_relu_between_the_layers_and_not_on_the_scores(hidden: tuple[int, ...], layers: list[Any]) -> None:
    assert [type(layer) for layer in MultilayerPerceptron(hidden=hidden)] == [nn.Flatten, *layers]


@pytest.mark.parametrize("width", [0, -1, float("nan")])
def test_refuses_widths_below_one(width: int) -> None:
    with pytest.raises(ConfigurationError, match=f"every width must be at least 1, got 784, {width}, 10"):
        MultilayerPerceptron(hidden=(width,))
