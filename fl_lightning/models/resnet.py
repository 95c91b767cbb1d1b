"""CifarResNet: residual networks for 32×32 images."""

from torch import nn

from fl_lightning.errors import ConfigurationError, check_at_least


class CifarResNet(nn.Sequential):
    """ResNet of depth 6n + 2: three stages of n blocks, on 32×32, 16×16 and 8×8 (He et al., 2016, Section 4.2).

    The class follows Li et al. (2018), as FedLAW does: where the shape changes, the shortcut is a 1×1 convolution with
    BatchNorm (He et al. subsample and pad with zeros); every layer, the first convolution included, has ``width`` times
    as many channels; weights are initialised by PyTorch's defaults. FedLAW's networks, with 10 classes: ResNet8 has
    78,042 parameters, ResNet20 272,474, ResNet56 855,770, ResNet110 1,730,714, WRN56_4 (``width=4``) 13,628,234.

    Args:
        depth: number of layers with weights, without shortcuts: 6n + 2, such as 8, 14, 20, …
        num_classes: number of outputs.
        in_channels: number of channels of the images.
        width: factor on the channels, at least 1; the stages have 16, 32 and 64 times ``width`` channels.

    Raises:
        ConfigurationError: ``depth`` is not 6n + 2 with n >= 1, or ``width`` is less than 1.
    """

    def __init__(self, depth: int = 20, num_classes: int = 10, in_channels: int = 3, width: int = 1) -> None:
        if depth < 8 or depth % 6 != 2:
            raise ConfigurationError(f"depth must be 6n + 2 (8, 20, 56, 110, …), got {depth}")
        check_at_least(1, width=width)
        channels, num_blocks = 16 * width, depth // 6
        super().__init__(
            nn.Conv2d(in_channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            _stage(channels, channels, num_blocks, stride=1),
            _stage(channels, 2 * channels, num_blocks, stride=2),
            _stage(2 * channels, 4 * channels, num_blocks, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * channels, num_classes),
        )


def _stage(entering: int, leaving: int, num_blocks: int, stride: int) -> nn.Sequential:
    """Make a stage of blocks of two 3×3 convolutions; the first convolution of the stage has the stride."""
    from timm.models.resnet import BasicBlock  # here, because the import takes a second

    shortcut = None
    if stride != 1:
        shortcut = nn.Sequential(nn.Conv2d(entering, leaving, 1, stride, bias=False), nn.BatchNorm2d(leaving))
    first = BasicBlock(entering, leaving, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(leaving, leaving) for _ in range(num_blocks - 1)))
