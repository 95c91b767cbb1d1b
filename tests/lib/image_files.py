"""Small image files in the formats that data sets are published in."""

import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WNIDS = [f"n{9000 - 13 * number:08}" for number in range(200)]  # the file's order is not the sorted one
BOX = "\t0\t32\t44\t62"


def write_idx(folder: Path, images: dict[str, np.ndarray], labels: dict[str, np.ndarray]) -> None:
    """Files in MNIST's format: magic number 0x0803 or 0x0801, big-endian sizes, bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in images:
        header = struct.pack(">4i", 0x0803, *images[split].shape)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(header + images[split].tobytes())
        header = struct.pack(">2i", 0x0801, len(labels[split]))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(header + labels[split].tobytes())


def write_folder(folder: Path, num_classes: int, size: tuple[int, int] = (32, 32), mode: str = "RGB") -> None:
    """Two one-colour images per class to train on and one to test on; grey level: class + 100 * number of the image."""
    for split, count in (("train", 2), ("test", 1)):
        for label in range(num_classes):
            (folder / split / f"class{label:03}").mkdir(parents=True)
            for image in range(count):
                write_image(folder / split / f"class{label:03}" / f"{image}.png", label + 100 * image, size, mode)


def write_image(path: Path, level: int, size: tuple[int, int] = (32, 32), mode: str = "RGB") -> None:
    """One colour: red of that level, or grey."""
    colour: Any = (level, 0, 0) if mode == "RGB" else level
    Image.new(mode, size, colour).save(path)


def write_16_bits(path: Path, level: int, channels: int, side: int = 4) -> Path:
    """A PNG of 16 bits per channel, which PIL does not write; the path. Two channels are grey and alpha, four RGBA."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">2I5B", side, side, 16, colour_type, 0, 0, 0)
    row = b"\0" + struct.pack(">H", level) * side * channels
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(row * side)), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


def write_tiny(folder: Path) -> None:
    """One image a class to train on, whose level is its label; three to test on, of the labels 7, 199 and 30.

    Class 5's training image and the second test image are grey.
    """
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "test" / "images").mkdir(parents=True)
    write_image(folder / "test" / "images" / "test_0.JPEG", 0, (64, 64))
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    classes = sorted(WNIDS)
    for label, wnid in enumerate(classes):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images.parent / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG{BOX}\n")
        write_image(images / f"{wnid}_0.JPEG", label, (64, 64), "L" if label == 5 else "RGB")
    lines = []
    for number, label in ((2, 30), (0, 7), (1, 199)):  # not in order
        write_image(folder / "val" / "images" / f"val_{number}.JPEG", label, (64, 64), "L" if number == 1 else "RGB")
        lines.append(f"val_{number}.JPEG\t{classes[label]}{BOX}\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))


def write_qmnist(root: Path, writers: dict[str, list[int]]) -> None:
    """An image for each writer, by split; the extended labels are rows of eight big-endian 32-bit integers.

    Class (the image's number), HSF series, writer, digit of this writer, NIST class, global number, two zeros.
    """
    folder = root / "QMNIST" / "raw"
    folder.mkdir(parents=True)
    for split, found in writers.items():
        pixels = np.arange(len(found) * 784, dtype=np.uint32).astype(np.uint8).reshape(-1, 28, 28)
        header = struct.pack(">4i", 0x0803, *pixels.shape)
        (folder / f"qmnist-{split}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        rows = [[k % 10, 4, writer, k, 30 + k % 10, 1000 + k, 0, 0] for k, writer in enumerate(found)]
        header = struct.pack(">3i", 0x0C02, len(rows), 8)
        (folder / f"qmnist-{split}-labels-idx2-int").write_bytes(header + np.array(rows, dtype=">i4").tobytes())


def write_cifar(folder: Path, source: Any) -> np.ndarray:
    """Two noisy images in each file of torchvision's CIFAR-10 or CIFAR-100, labelled with the file's number and 9.

    Returns the (F, 2, 3072) bytes of all files, those of the test set last.
    """
    labels = "fine_labels" if source.meta["key"].startswith("fine") else "labels"
    files = [name for name, _ in (*source.train_list, *source.test_list)]
    pixels = np.random.default_rng(0).integers(0, 256, (len(files), 2, 3072), dtype=np.uint8)
    folder.mkdir(parents=True)
    (folder / source.meta["filename"]).write_bytes(pickle.dumps({source.meta["key"]: list("abcdefghij")}))
    for number, (name, rows) in enumerate(zip(files, pixels, strict=True)):
        (folder / name).write_bytes(pickle.dumps({"data": rows, labels: [number, 9]}))
    return pixels
