"""Networks of the papers' experiments."""

import difflib

import timm
from torch import Tensor, nn

from fl_lightning import ConfigurationError


class TwoNN(nn.Sequential):
    """The 2NN for grey images: two hidden layers of 512 and 256 (FedGH slides: 535,818 parameters at 28×28).

    Args:
        num_classes: outputs.
        in_features: pixels of an image; 28·28 for MNIST.
    """

    def __init__(self, num_classes: int = 10, in_features: int = 784) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(in_features, 512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Linear(256, num_classes),
        )


class TwoLayerCNN(nn.Module):
    """Two 5×5 convolutions, pooling, dropout, one hidden layer of 128 (FedGH; 1,234,762 parameters at 3×32×32).

    The network of Reddi et al. (2020) as the FedGH slides' summary adds up; their last ReLU, on the class scores, is
    left out. Its dropout rates are unstated: these are Reddi et al.'s.

    Args:
        num_classes: outputs.
        in_channels: of the images.
        image_size: height and width, an even number of at least 10.
        dropout: rates after pooling and after the hidden layer, each in [0, 1).
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_channels: int = 3,
        image_size: int = 32,
        dropout: tuple[float, float] = (0.25, 0.5),
    ) -> None:
        super().__init__()
        if image_size < 10 or image_size % 2:
            raise ConfigurationError(f"image_size must be even and at least 10, got {image_size}")
        side = (image_size - 8) // 2
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 32, 5), nn.ReLU(), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Dropout(dropout[0]),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Dropout(dropout[1]),
            nn.Linear(128, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, in_channels, image_size, image_size)."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


class SimpleCNN(nn.Sequential):
    """Three 3×3 convolutions and two linear layers, for 32×32 images (FedLAW, Appendix D.3).

    The 64·4·4 features that the paper states need a second pooling, after the second convolution.

    Args:
        num_classes: outputs.
        in_channels: of the images.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__(
            nn.Conv2d(in_channels, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, num_classes),
        )


class LeNet(nn.Sequential):
    """Two 5×5 convolutions and three linear layers, for 32×32 images (LeCun et al., 1998, with ReLU and max pooling).

    FedMGC names a network of this form for CIFAR and leaves its widths open; these are LeCun's.

    Args:
        num_classes: outputs.
        in_channels: of the images.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__(
            nn.Conv2d(in_channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )


class TimmNetwork(nn.Module):
    """Any network of timm by name, with a stem for small images.

    Args:
        name: timm's, for example "mobilenetv2_100".
        num_classes: outputs.
        in_channels: of the images.
        small_images: the first convolution keeps the resolution, as is usual at 32×32.
    """

    def __init__(self, name: str, num_classes: int = 10, in_channels: int = 3, small_images: bool = True) -> None:
        super().__init__()
        if not timm.is_model(name):
            near = difflib.get_close_matches(name, timm.list_models(), n=1)
            hint = f"; did you mean {near[0]}?" if near else ": timm.list_models() names those that exist"
            raise ConfigurationError(f"timm has no model {name!r}{hint}")
        self.network = timm.create_model(name, num_classes=num_classes, in_chans=in_channels)
        if small_images:
            stem = next(module for module in self.network.modules() if isinstance(module, nn.Conv2d))
            stem.stride = (1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, in_channels, H, W)."""
        logits: Tensor = self.network(images)
        return logits
