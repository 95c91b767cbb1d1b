"""DomainShift: images that differ from client to client, as if each had a camera of its own."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2  # type: ignore[import-untyped]  # torchvision ships no types
from typing_extensions import override

from fl_lightning.datamodules.partition.steps.parts import Parts
from fl_lightning.errors import ConfigurationError, check_not_negative

CHUNK = 1024  # images that are changed at once, as floats
WIDTHS = 4  # standard deviations at which a blur's window ends


class DomainShift:
    """Changes the images of each client once, by the client's domain. A subclass defines ``count`` and :meth:`change`.

    With D domains, client k is in domain k mod D. Its training images and the images that it keeps back for evaluation
    are changed alike, before augmentation and normalisation; so are test images that come by client. A test set that
    the clients share, and the proxy set, stay as they are. Nothing is random.
    """

    count: int
    """D, the number of domains."""

    def change(self, images: Tensor, domain: int) -> Tensor:
        """Return uint8 images (n, C, H, W) as they look in a domain from 0 to D - 1."""
        raise ConfigurationError(f"{type(self).__name__} must define change(images, domain)")

    def of_clients(self, images: Tensor, *parts: Parts) -> Tensor:
        """Return all images, those of the clients as they look in their domains.

        Args:
            images: uint8 images (n, C, H, W), which are not modified.
            parts: the rows of each client's images: those to train on, and those to evaluate on.
        """
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ConfigurationError(
                f"expected uint8 images (n, C, H, W) for domain_shift, got {images.dtype} {tuple(images.shape)}: "
                "leave domain_shift out"
            )
        result = images.clone()
        for own in parts:
            domains = torch.arange(len(own)).repeat_interleave(own.sizes) % self.count
            for domain in range(self.count):
                for rows in torch.split(own.rows[domains == domain], CHUNK):
                    if len(rows):  # torch.split makes one empty part of no rows
                        result[rows] = self.change(images[rows], domain)
        return result


class Rotation(DomainShift):
    """Turns each client's images by its domain's angle (rotated MNIST: Ghifary et al., 2015).

    Images are turned around their middle, bilinearly; corners that were outside become black.

    Args:
        degrees: angle of each domain, in degrees, anticlockwise.

    Raises:
        ConfigurationError: there is no angle, or one is not finite.
    """

    def __init__(self, degrees: Sequence[float] = (0, 15, 30, 45, 60, 75)) -> None:
        if not degrees or not all(math.isfinite(angle) for angle in degrees):
            raise ConfigurationError(f"degrees must be finite angles, such as [0, 15, 30], got {list(degrees)}")
        self.degrees = degrees
        self.count = len(degrees)

    @override
    def change(self, images: Tensor, domain: int) -> Tensor:
        angle = float(self.degrees[domain])
        turned: Tensor = v2.functional.rotate(images, angle, interpolation=InterpolationMode.BILINEAR)
        return turned


class Colour(DomainShift):
    """Tints each client's colour images: each channel is multiplied by the factor of the client's domain.

    Args:
        colours: factors of red, green and blue of each domain, each in [0, 1]; (1, 1, 1) changes nothing.

    Raises:
        ConfigurationError: there is no colour, or one is not three factors in [0, 1]; on loading, images have no three
            channels.
    """

    def __init__(
        self, colours: Sequence[tuple[float, float, float]] = ((1, 1, 1), (1, 0.5, 0.5), (0.5, 0.5, 1))
    ) -> None:
        for colour in colours:
            if len(colour) != 3 or not all(0 <= factor <= 1 for factor in colour):
                raise ConfigurationError(
                    f"each of colours must be three factors in [0, 1], such as [1, 0.5, 0.5], got {list(colour)}"
                )
        if not colours:
            raise ConfigurationError("colours must be at least one, such as [[1, 0.5, 0.5]], got none")
        self.colours = colours
        self.count = len(colours)

    @override
    def change(self, images: Tensor, domain: int) -> Tensor:
        if images.shape[1] != 3:
            raise ConfigurationError(
                f"expected images of three channels for Colour, got {images.shape[1]}: choose Rotation or Blur"
            )
        factors = torch.tensor(self.colours[domain], dtype=torch.float32).view(3, 1, 1)
        return (images * factors).round().to(torch.uint8)


class Blur(DomainShift):
    """Blurs each client's images by a Gaussian of its domain's width.

    The Gaussian ends at four widths; beyond the edges, images are mirrored.

    Args:
        widths: standard deviation of each domain's Gaussian, in pixels, at least 0; 0 changes nothing.

    Raises:
        ConfigurationError: there is no width, or one is negative or not finite; on loading, an image is too small for
            the Gaussian.
    """

    def __init__(self, widths: Sequence[float] = (0, 0.5, 1, 1.5, 2)) -> None:
        if not widths:
            raise ConfigurationError("widths must be at least one, such as [0, 0.5, 1], got none")
        check_not_negative(**{f"widths[{domain}]": width for domain, width in enumerate(widths)})
        self.widths = widths
        self.count = len(widths)

    @override
    def change(self, images: Tensor, domain: int) -> Tensor:
        width = float(self.widths[domain])
        if width == 0:
            return images
        reach = math.ceil(WIDTHS * width)
        if reach >= min(images.shape[2:]):
            raise ConfigurationError(
                f"expected images of more than {reach} pixels for a blur of width {width}, got "
                f"{images.shape[2]}x{images.shape[3]}: lower widths"
            )
        blurred: Tensor = v2.functional.gaussian_blur(images, [2 * reach + 1, 2 * reach + 1], [width, width])
        return blurred
