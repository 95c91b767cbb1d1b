"""Mean and standard deviation by which inputs are scaled: checked where they are given, else measured."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError

CONSTANTS = "mean and std"  # what may be measured


def check_constants(
    mean: Sequence[float] | None, std: Sequence[float] | None, channels: int, name: str = "channels"
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Refuse constants that are not one finite mean and one finite standard deviation > 0 per channel; return both."""
    if mean is not None and std is not None and len(mean) == len(std) == channels:
        finite = all(map(math.isfinite, mean))
        if finite and all(0 < value < math.inf for value in std):
            return tuple(mean), tuple(std)
    raise ConfigurationError(
        f"expected mean and std > 0 of each of {channels} {name}, or neither, got {mean} and {std}: give both"
    )


def measure(images: Tensor, rows: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure mean and standard deviation of each channel of some uint8 images, scaled to [0, 1].

    Both are computed over all pixels, exactly, from the counts of the 256 values. A constant channel gets the standard
    deviation 1.

    Args:
        images: uint8 images (n, C, H, W).
        rows: rows (m,) of the images to measure on.
    """
    return constants_of(torch.stack([count_values(images[part]) for part in torch.split(rows, 1000)]).sum(0))


def count_values(images: Tensor) -> Tensor:
    """Count the 256 values of each channel of uint8 images (n, C, H, W): (C, 256) int64."""
    return torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)])


def constants_of(counts: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel from the counts of its values; see :func:`measure`."""
    values = torch.arange(256, dtype=torch.float64) / 255
    constants = []
    for channel in counts:
        share = channel.double() / channel.sum()
        mean = share @ values
        constants.append((mean.item(), (share @ (values - mean) ** 2).sqrt().item() or 1.0))
    means, stds = zip(*constants, strict=True)
    return means, stds
