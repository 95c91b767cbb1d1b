"""Generated data of the right shape for every data set, so that shipped configs run without the real ones."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fl_lightning.datamodules
from fl_lightning.datamodules import BoxFolder, Digits, ImageData


def write_images(root: Path, data: type[Any], per_class: int, test_per_class: int) -> Path:
    """``{train,test}/<class>/*.png`` of noise, as large and as many-coloured as the data set's own; made once."""
    generator = np.random.default_rng(0)
    shape = (*data.image_size, 3)[: 2 if len(data.mean) == 1 else 3]
    for split, count in (("train", per_class), ("test", test_per_class)):
        for label in range(data.num_classes):
            folder = root / split / f"{label:03}"
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = generator.integers(256, size=shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png", compress_level=0)
    return root


def write_boxes(root: Path) -> Path:
    """Images of noise with one box each, in the text layout of YOLO."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 2)):
        for part in ("images", "labels"):
            (root / part / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = generator.integers(256, size=(64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "images" / split / f"{number}.png")
            (root / "labels" / split / f"{number}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    return root


def generated_data(config: dict[str, Any], root: Path) -> list[str]:
    """What the command line needs beside a config to run without the real data."""
    data = getattr(fl_lightning.datamodules, config["data"]["class_path"].rpartition(".")[2])
    settings = config["data"].get("init_args", {})
    if not issubclass(data, ImageData) or issubclass(data, Digits):
        return []
    if issubclass(data, BoxFolder):
        return ["--data.root", str(write_boxes(root)), "--data.image_size", "64"]
    proxy = min(settings.get("proxy_per_class", 0), 2)
    per_class = max(3, 4 * settings.get("num_clients", 20) // data.num_classes)  # of a long tail, too, one per client
    images = write_images(root, data, per_class, proxy + 1)
    options = ["--data.root", str(images), "--data.proxy_per_class", str(proxy)]
    rebalanced = ((settings.get("partition") or {}).get("init_args") or {}).get("form") == "rebalanced"
    return options + ["--data.partition.min_samples", "0"] * rebalanced  # so few images are not enough for more
