"""Digits: the small handwritten digits of scikit-learn, for tests and first steps."""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.datamodules.images.image_data import ImageData


class Digits(ImageData):
    """1,797 handwritten digits of 8x8 pixels (UCI, as in scikit-learn), which need no download.

    Grey levels 0..16 are scaled to 0..255. Every fifth image of each class is in the test set, whatever the seed: 1,442
    training and 355 test images. Arguments are those of :class:`ImageData`.
    """

    num_classes = 10
    mean = (0.3052,)
    std = (0.3760,)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Load the training or the test set: uint8 images (n, 1, 8, 8) and int64 labels (n,)."""
        images, labels = _published()
        held_out = np.zeros(len(labels), dtype=np.bool_)
        for label in range(self.num_classes):
            held_out[np.flatnonzero(labels == label)[4::5]] = True
        chosen = ~held_out if train else held_out
        pixels = np.rint(images[chosen] * (255 / 16)).astype(np.uint8)
        return torch.from_numpy(pixels).view(-1, 1, 8, 8), torch.from_numpy(labels[chosen]).long()


@cache
def _published() -> Any:
    """Read scikit-learn's file, which is text and takes longer than a round on it, once in a process."""
    # imported here, because importing scikit-learn takes half a second
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # scikit-learn ships no types

    return load_digits(return_X_y=True)
