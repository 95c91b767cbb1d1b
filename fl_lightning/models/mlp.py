"""Networks of linear layers."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fl_lightning import ConfigurationError


def linear_layers(widths: Sequence[int]) -> list[nn.Module]:
    """Make linear layers from each width to the next, with a ReLU after every layer but the last.

    Raises:
        ConfigurationError: a width is less than 1.
    """
    if not all(width >= 1 for width in widths):
        raise ConfigurationError(f"every width must be at least 1, got {', '.join(map(str, widths))}")
    layers: list[nn.Module] = []
    for entering, leaving in pairwise(widths):
        layers += [nn.Linear(entering, leaving), nn.ReLU()]
    return layers[:-1]


class MultilayerPerceptron(nn.Sequential):
    """Hidden linear layers with ReLU; by default FedLAW's MLP (Appendix D.3: 784-200-200-10; 199,210 parameters).

    Args:
        num_classes: number of outputs.
        in_features: number of values per image, 28·28 for MNIST.
        hidden: widths of the hidden layers.
    """

    def __init__(self, num_classes: int = 10, in_features: int = 784, hidden: Sequence[int] = (200, 200)) -> None:
        super().__init__(nn.Flatten(), *linear_layers([in_features, *hidden, num_classes]))


class TwoNN(MultilayerPerceptron):
    """The 2NN for grey images: two hidden layers of widths 512 and 256 (FedGH slides: 535,818 parameters at 28×28).

    Args:
        num_classes: number of outputs.
        in_features: number of values per image, 28·28 for MNIST.
    """

    def __init__(self, num_classes: int = 10, in_features: int = 784) -> None:
        super().__init__(num_classes, in_features, hidden=(512, 256))


class LogisticRegression(MultilayerPerceptron):
    """One linear layer: a convex problem under cross-entropy (7,850 parameters at 28×28).

    Args:
        num_classes: number of outputs.
        in_features: number of values per image, 28·28 for MNIST.
    """

    def __init__(self, num_classes: int = 10, in_features: int = 784) -> None:
        super().__init__(num_classes, in_features, hidden=())
