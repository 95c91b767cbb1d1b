"""Data sets of a few made-up images under one root, for commands that name a data set: a folder of images each."""

from pathlib import Path

import numpy as np
from PIL import Image

SHAPES = {"MNIST": (28, 28), "FashionMNIST": (28, 28), "CIFAR10": (32, 32, 3), "CIFAR100": (32, 32, 3)}


def write_data(root: Path) -> None:
    """Noise with balanced labels: 400 images to train on and 40 to test on (CIFAR100: 400 and 100)."""
    draw = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        classes = 100 if name == "CIFAR100" else 10
        for split, count in {"train": 400, "test": max(40, classes)}.items():
            for image in range(count):
                folder = root / name / split / f"{image % classes:02}"
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{image}.png")
