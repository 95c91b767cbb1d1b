"""Data sets of a few made-up images under one root, for commands that name a data set: a folder of images each."""

from pathlib import Path

import numpy as np
from PIL import Image

SHAPES = {"MNIST": (28, 28), "FashionMNIST": (28, 28), "CIFAR10": (32, 32, 3), "CIFAR100": (32, 32, 3)}


def write_data(root: Path) -> None:
    """Noise with balanced labels: 1,000 images to train on and 200 to test on."""
    draw = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        classes = 100 if name == "CIFAR100" else 10
        for split, count in {"train": 1000, "test": 200}.items():
            for image in range(count):
                folder = root / name / split / f"{image % classes:02}"
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{image}.png")
