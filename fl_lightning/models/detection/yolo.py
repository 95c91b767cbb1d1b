"""YOLOv8: a one-stage detector without anchor boxes (Jocher et al., 2023)."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation  # type: ignore[import-untyped]  # torchvision ships no types

from fl_lightning.errors import ConfigurationError

BINS = 16  # number of bins in the distribution of the distance to each side
STRIDES = (8, 16, 32)

_conv = partial(
    Conv2dNormActivation,
    norm_layer=partial(nn.BatchNorm2d, eps=1e-3, momentum=0.03),
    activation_layer=nn.SiLU,
    inplace=False,
)


class YOLOv8(nn.Module):
    """The two narrow sizes of YOLOv8: a CSP backbone, a path aggregation neck, a decoupled head on three levels.

    The code follows the published description. With one class and ``width=16`` the network has 3,011,043 parameters, 16
    of them frozen. Weights are drawn at random; the biases of the class logits start low, so that the untrained network
    predicts objects at few places.

    Args:
        num_classes: C, the number of classes, at least 1.
        width: number of channels of the first layer, at least 1: 16 is YOLOv8n, 32 YOLOv8s.

    Attributes:
        projection: (16,) the distances 0 to 15, in strides, that the bins of a distribution stand for; frozen.

    Raises:
        ConfigurationError: an argument is less than 1; in :meth:`forward`, a side of the images is not a multiple of
            32.
    """

    def __init__(self, num_classes: int = 1, width: int = 16) -> None:
        super().__init__()
        if min(num_classes, width) < 1:
            raise ConfigurationError(f"num_classes and width must be at least 1, got {num_classes} and {width}")
        c = [width * 2**level for level in range(5)]
        stem = [_conv(3, c[0], 3, 2), _conv(c[0], c[1], 3, 2), _C2f(c[1], c[1], 1, shortcut=True)]
        self.stage8 = nn.Sequential(*stem, _conv(c[1], c[2], 3, 2), _C2f(c[2], c[2], 2, shortcut=True))
        self.stage16 = nn.Sequential(_conv(c[2], c[3], 3, 2), _C2f(c[3], c[3], 2, shortcut=True))
        self.stage32 = nn.Sequential(_conv(c[3], c[4], 3, 2), _C2f(c[4], c[4], 1, shortcut=True), _SPPF(c[4]))
        self.upsample = nn.Upsample(scale_factor=2)
        self.up16, self.up8 = _C2f(c[4] + c[3], c[3]), _C2f(c[3] + c[2], c[2])
        self.down16, self.out16 = _conv(c[2], c[2], 3, 2), _C2f(c[2] + c[3], c[3])
        self.down32, self.out32 = _conv(c[3], c[3], 3, 2), _C2f(c[3] + c[4], c[4])
        box_width, class_width = max(c[2] // 4, 4 * BINS), max(c[2], min(num_classes, 100))
        claims = [math.log(5 / num_classes / (640 / stride) ** 2) for stride in STRIDES]  # 5 objects in 640×640 pixels
        self.boxes = nn.ModuleList(_branch(inputs, box_width, 4 * BINS, 1.0) for inputs in c[2:])
        self.classes = nn.ModuleList(
            _branch(inputs, class_width, num_classes, claim) for inputs, claim in zip(c[2:], claims, strict=True)
        )
        self.projection = nn.Parameter(torch.arange(float(BINS)), requires_grad=False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return box distributions and class logits at every place of three levels.

        Args:
            images: (B, 3, H, W) images in [0, 1], H and W multiples of 32.

        Returns:
            One map (B, 4·16 + C, H/s, W/s) for each of the strides s = 8, 16, 32: 16 logits each for the distances to
            the left, top, right and bottom side, then the class logits.
        """
        if any(side % STRIDES[-1] for side in images.shape[2:]):
            raise ConfigurationError(
                f"YOLOv8 takes images with sides that are multiples of {STRIDES[-1]}, got {tuple(images.shape[2:])}: "
                "set the data's image_size to such a multiple"
            )
        fine = self.stage8(images)
        middle = self.stage16(fine)
        coarse = self.stage32(middle)
        middle = self.up16(torch.cat([self.upsample(coarse), middle], 1))
        fine = self.up8(torch.cat([self.upsample(middle), fine], 1))
        middle = self.out16(torch.cat([self.down16(fine), middle], 1))
        coarse = self.out32(torch.cat([self.down32(middle), coarse], 1))
        levels = zip((fine, middle, coarse), self.boxes, self.classes, strict=True)
        return [torch.cat([boxes(level), classes(level)], 1) for level, boxes, classes in levels]


class _C2f(nn.Module):
    """Passes half of the channels through ``depth`` bottlenecks in turn and joins all intermediate results."""

    def __init__(self, inputs: int, outputs: int, depth: int = 1, shortcut: bool = False) -> None:
        super().__init__()
        half = outputs // 2
        self.shortcut = shortcut
        self.enter = _conv(inputs, 2 * half, 1)
        self.bottlenecks = nn.ModuleList(
            nn.Sequential(_conv(half, half, 3), _conv(half, half, 3)) for _ in range(depth)
        )
        self.leave = _conv((2 + depth) * half, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for bottleneck in self.bottlenecks:
            parts.append(bottleneck(parts[-1]) + (parts[-1] if self.shortcut else 0))
        return self.leave(torch.cat(parts, 1))  # type: ignore[no-any-return]  # untyped, see above


class _SPPF(nn.Module):
    """Spatial pyramid pooling with windows of 5, 9 and 13 places, computed by applying a window of 5 three times."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = _conv(channels, channels // 2, 1)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.leave = _conv(channels // 2 * 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.leave(torch.cat(parts, 1))  # type: ignore[no-any-return]  # untyped, see above


def _branch(inputs: int, width: int, outputs: int, bias: float) -> nn.Sequential:
    """Make the layers that predict boxes or classes on one level; the last bias is initialised to ``bias``."""
    last = nn.Conv2d(width, outputs, 1)
    nn.init.constant_(last.bias, bias)  # type: ignore[arg-type]  # Conv2d has a bias by default
    return nn.Sequential(_conv(inputs, width, 3), _conv(width, width, 3), last)
