"""Convolutional networks without normalisation.

Papers pool after the ReLU. Here the pooling comes first: both orders give the same bits, forward and backward, and the
ReLU then sees a quarter of the values.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.models.mlp import linear_layers


class PooledCNN(nn.Sequential):
    """5×5 convolutions, each with ReLU and 2×2 max pooling, then linear layers with ReLU.

    The default arguments give the CNN of McMahan et al. (2017): 32 and 64 channels, 512 hidden units, 1,663,370
    parameters for images of 1×28×28. FedGAM and FedMGC (on MNIST) describe this form and do not state the widths.

    Args:
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        image_size: height and width of the images.
        channels: number of output channels of each convolution.
        hidden: widths of the hidden linear layers.
        padding: padding of each convolution on every side, 0, 1 or 2; 2 keeps the size.

    Raises:
        ConfigurationError: a width is less than 1, ``padding`` is outside its range, or ``image_size`` is too small for
            the poolings.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 1,
        image_size: int = 28,
        channels: Sequence[int] = (32, 64),
        hidden: Sequence[int] = (512,),
        padding: int = 2,
    ) -> None:
        widths = [in_channels, *channels]
        if not all(width >= 1 for width in widths):
            raise ConfigurationError(f"in_channels and channels must be at least 1, got {', '.join(map(str, widths))}")
        if not 0 <= padding <= 2:
            raise ConfigurationError(f"padding must be 0, 1 or 2, got {padding}")
        side = image_size  # of the feature maps, after each pooling
        smallest = 1  # side of the images of which one pixel is left
        for _ in channels:
            side = (side + 2 * padding - 4) // 2
            smallest = 2 * smallest + 4 - 2 * padding
        if not image_size >= smallest:
            raise ConfigurationError(
                f"image_size must be at least {smallest} for {len(channels)} poolings and padding {padding}, "
                f"got {image_size}"
            )
        layers: list[nn.Module] = []
        for entering, leaving in pairwise(widths):
            layers += [nn.Conv2d(entering, leaving, 5, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
        super().__init__(*layers, nn.Flatten(), *linear_layers([widths[-1] * side * side, *hidden, num_classes]))


class LeNet(PooledCNN):
    """LeNet-5 with ReLU and max pooling (LeCun et al., 1998): 62,006 parameters at 3×32×32, 44,426 at 1×28×28.

    FedMGC names a network of this form for CIFAR and does not state the widths. FedGAM's released code trains this
    network on MNIST, but the FedGAM paper says two linear layers, not three (see :class:`PooledCNN`).

    Args:
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        image_size: height and width of the images, at least 16.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> None:
        super().__init__(num_classes, in_channels, image_size, channels=(6, 16), hidden=(120, 84), padding=0)


class FedLAWLeNet(PooledCNN):
    """The network that FedLAW's released code calls LeNet: 16 and 32 channels, one linear layer (28,938 parameters).

    Args:
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        image_size: height and width of the images, at least 4.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1, image_size: int = 28) -> None:
        super().__init__(num_classes, in_channels, image_size, channels=(16, 32), hidden=())


class TwoLayerCNN(nn.Sequential):
    """Two 5×5 convolutions, pooling, dropout, one hidden layer of 128 (FedGH; 1,234,762 parameters at 3×32×32).

    The network of Reddi et al. (2020), with the size that the FedGH slides print. The ReLU that the slides show on the
    class scores is left out. The slides do not state the dropout rates: the defaults are those of Reddi et al.

    Args:
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        image_size: height and width of the images, an even number of at least 10.
        dropout: dropout rates after the pooling and after the hidden layer, each in [0, 1).

    Raises:
        ConfigurationError: ``image_size`` is odd or less than 10, or ``dropout`` is not two rates in [0, 1).
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        image_size: int = 32,
        dropout: tuple[float, float] = (0.25, 0.5),
    ) -> None:
        if image_size < 10 or image_size % 2:
            raise ConfigurationError(f"image_size must be even and at least 10, got {image_size}")
        if len(dropout) != 2 or not all(0 <= share < 1 for share in dropout):
            raise ConfigurationError(f"dropout must be two rates in [0, 1), got {dropout}")
        side = (image_size - 8) // 2
        features = nn.Sequential(
            nn.Conv2d(in_channels, 32, 5), nn.ReLU(), nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU()
        )
        classifier = nn.Sequential(
            nn.Dropout(dropout[0]),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Dropout(dropout[1]),
            nn.Linear(128, num_classes),
        )
        super().__init__(OrderedDict(features=features, classifier=classifier))


class SimpleCNN(nn.Sequential):
    """Three 3×3 convolutions and two linear layers, for 32×32 images (FedLAW, Appendix D.3; 122,570 parameters).

    A pooling follows each of the first two convolutions, as in FedLAW's released code: the paper's 64·4·4 features need
    the second pooling.

    Args:
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        width: factor on the 32, 64 and 64 channels and the 64 hidden units, above 0.

    Raises:
        ConfigurationError: ``width`` leaves a layer without channels.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3, width: float = 1.0) -> None:
        first, second = scaled((32, 64), width)
        super().__init__(
            nn.Conv2d(in_channels, first, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(first, second, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(second, second, 3),
            nn.ReLU(),
            nn.Flatten(),
            *linear_layers([second * 4 * 4, second, num_classes]),
        )


class CifarAlexNet(nn.Sequential):
    """AlexNet for 32×32 images: five convolutions and one linear layer (2,472,266 parameters).

    Neither FedLAW nor its released code says which AlexNet is trained. This class is the usual AlexNet for CIFAR (W.
    Yang's pytorch-classification), which has the widths of Krizhevsky (2014), wider padding, 2×2 pooling and no hidden
    linear layers.

    Args:
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        width: factor on the 64, 192, 384, 256 and 256 channels, above 0.

    Raises:
        ConfigurationError: ``width`` leaves a layer without channels.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3, width: float = 1.0) -> None:
        first, second, third, fourth, last = scaled((64, 192, 384, 256, 256), width)
        super().__init__(
            nn.Conv2d(in_channels, first, 11, stride=4, padding=5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(first, second, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(second, third, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(third, fourth, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(fourth, last, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(last, num_classes),
        )


def scaled(channels: Sequence[int], width: float) -> list[int]:
    """Multiply numbers of channels by a factor, rounded down.

    Raises:
        ConfigurationError: a layer would have no channels.
    """
    if not all(width * count >= 1 for count in channels):
        raise ConfigurationError(f"width must leave each layer at least one channel, got {width}: raise width")
    return [int(width * count) for count in channels]
