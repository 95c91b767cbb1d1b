"""Augmentations of a whole batch of uint8 images on its device, with separate random draws for every image."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import v2  # type: ignore[import-untyped]  # torchvision ships no types

from fl_lightning.errors import ConfigurationError, check_at_least, check_choice


class Augmentation:
    """Changes the images of a batch at random. A subclass implements :meth:`__call__`.

    All randomness comes from torch's global CPU generator, whatever the images' device, so that a client's draws are
    the same on every device.
    """

    def __call__(self, images: Tensor) -> Tensor:
        """Change every image by its own random draws.

        Args:
            images: (B, C, H, W) uint8 images, which are not modified.

        Returns:
            (B, C, H, W) uint8 images, a new tensor on the same device.
        """
        raise ConfigurationError(f"{type(self).__name__} must define __call__(images)")


class RandomFlip(Augmentation):
    """Mirrors each image left to right with probability ``p`` in [0, 1] (He et al., 2016, section 4.2)."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ConfigurationError(f"RandomFlip.p must be in [0, 1], the probability of a mirror image, got {p}")
        self.p = p

    def __call__(self, images: Tensor) -> Tensor:
        """Mirror some of the images; arguments as in :class:`Augmentation`."""
        mirrored = (torch.rand(len(images), 1, 1, 1) < self.p).to(images.device, non_blocking=True)
        return torch.where(mirrored, images.flip(-1), images)


class RandomCrop(Augmentation):
    """Pads by ``padding`` >= 1 black pixels and crops H x W at a random place (He et al., 2016, section 4.2)."""

    def __init__(self, padding: int = 4) -> None:
        check_at_least(1, **{"RandomCrop.padding": padding})
        self.padding = padding

    def __call__(self, images: Tensor) -> Tensor:
        """Pad and crop every image; arguments as in :class:`Augmentation`."""
        offsets = torch.randint(2 * self.padding + 1, (2, len(images))).to(images.device, non_blocking=True)
        padded = F.pad(images, [self.padding] * 4)
        crops = padded.unfold(2, images.shape[2], 1).unfold(3, images.shape[3], 1)  # a view of all (2p + 1)² crops
        return crops[torch.arange(len(images), device=images.device), :, offsets[0], offsets[1]]


class AutoAugment(Augmentation, v2.AutoAugment):  # type: ignore[misc]  # untyped, see above
    """Changes images by AutoAugment (Cubuk et al., 2019, tables 7 to 9), with torchvision's policies and kernels.

    Each image draws one of 25 sub-policies of two operations. Each operation is applied with its own probability; if
    the operation's magnitude has a sign, the sign is positive or negative with equal probability. Images with the same
    operation are changed together, with the same bits as torchvision's one-by-one results.

    As in torchvision, a magnitude is the distance from the unchanged image, also for colour, contrast, brightness and
    sharpness, and pixels from outside the image are black. Crop, flip and cutout are not included.

    Args:
        policy: name of the data set that the sub-policies were found on; any images of 1 or 3 channels may be changed.

    Raises:
        ConfigurationError: ``policy`` is not one of "cifar10", "imagenet" and "svhn".
    """

    def __init__(self, policy: Literal["cifar10", "imagenet", "svhn"] = "cifar10") -> None:
        check_choice("AutoAugment.policy", policy, "cifar10", "imagenet", "svhn")
        super().__init__(v2.AutoAugmentPolicy(policy))
        choices = [  # for every sub-policy, first or second operation, positive or negative
            (name, level, negative and self._AUGMENTATION_SPACE[name][1])
            for sub_policy in self._policies
            for name, _, level in sub_policy
            for negative in (False, True)
        ]
        self.operations = list(dict.fromkeys(choices))
        self._choices = torch.tensor([self.operations.index(choice) for choice in choices]).view(-1, 2, 2)
        self._probabilities = torch.tensor([[p for _, p, _ in sub_policy] for sub_policy in self._policies])

    def __call__(self, images: Tensor) -> Tensor:
        """Apply a random sub-policy to every image; arguments as in :class:`Augmentation`."""
        drawn = self.draw(len(images))
        for choices, order in zip(drawn, drawn.argsort().to(images.device, non_blocking=True), strict=True):
            counts = choices.bincount(minlength=len(self.operations) + 1).tolist()
            *groups, rest = torch.split(images.index_select(0, order), counts)
            drawn_by = zip(self.operations, groups, strict=True)
            changed = [self._change(group, *operation) for operation, group in drawn_by if len(group)]
            images = torch.cat([*changed, rest]).index_select(0, order.argsort())
        return images

    def draw(self, num_samples: int) -> Tensor:
        """Draw (2, B) indices into ``operations``, each image's first and second; ``len(operations)`` means none."""
        sub_policies = torch.randint(len(self._policies), (num_samples,))
        applied = torch.rand(num_samples, 2) < self._probabilities[sub_policies]
        negative = torch.randint(2, (num_samples, 2))
        choices = self._choices[sub_policies[:, None], torch.arange(2), negative]
        return torch.where(applied, choices, len(self.operations)).T

    def _change(self, images: Tensor, name: str, level: int | None, negative: bool) -> Tensor:
        """Apply one operation at one magnitude to all images."""
        magnitudes = self._AUGMENTATION_SPACE[name][0](10, *images.shape[-2:])
        magnitude = 0.0 if magnitudes is None else float(magnitudes[level])
        if negative:
            magnitude = -magnitude
        # Sharpness convolves each channel by itself: on images of one channel it is five times faster on a CPU.
        inputs = images.flatten(0, 1).unsqueeze(1) if name == "Sharpness" else images
        changed: Tensor = self._apply_image_or_video_transform(inputs, name, magnitude, self.interpolation, self._fill)
        return changed.view_as(images)
