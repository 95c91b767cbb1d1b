"""Decoded images on disk: a later run reads them instead of decoding them again."""

import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_warn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

CACHE = "~/.cache/fl_lightning"
FORMAT = 1  # to be raised whenever the same files would decode to other bytes
ABANDONED = 3600.0  # seconds after which nobody is still writing an entry


def cached(
    cache: str | None,
    folder: Path,
    kind: str,
    files: Sequence[str],
    shape: tuple[int, ...],
    decode: Callable[[], Tensor],
) -> Tensor:
    """What ``decode`` makes of some files, from the cache if it has been made of these very files before.

    An entry is a safetensors file named after the folder and the kind, after the files' names, sizes and times of
    modification, and after the shape. It appears whole or not at all, and is read back only if its checksum is right;
    one that is damaged is deleted with a warning and made again. When a new one is written, those of that folder and
    kind that were made of other files are deleted. Several processes may read and write at the same time. What is read
    lies in the file's own pages, which processes on one machine share.

    Args:
        cache: folder of the entries; None to decode every time. In the default, ``~/.cache`` stands for
            ``$XDG_CACHE_HOME`` where that is set.
        folder: where the files are.
        kind: what else tells one entry of that folder from another: the split, how it is decoded.
        files: their paths, which begin with the folder's, in the order in which they are decoded.
        shape: of the result.
        decode: gives uint8 of that shape.

    Returns:
        uint8 of that shape, not to be written to.
    """
    if cache is None:
        return decode()
    prefix = _digest(folder.resolve(), kind)
    try:
        content = f"{prefix}-{_digest(FORMAT, *(_state(file, len(str(folder))) for file in files))}"
    except OSError:  # a file is gone or a link leads nowhere, which decoding says best
        return decode()
    path = cache_folder(cache) / f"{content}-{'x'.join(map(str, shape))}.safetensors"
    if (images := _read(path, shape)) is not None:
        return images
    images = decode()
    try:
        _write(path, images)
        _sweep(path.parent, prefix, content)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        rank_zero_warn(
            f"expected to keep decoded images in {path.parent}, got {reason!r}: the run goes on and the next decodes "
            "again; name another folder or none (--data.cache DIR or null)"
        )
    return images


def cache_folder(cache: str) -> Path:
    """The folder that is meant."""
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home, "fl_lightning") if home and cache == CACHE else Path(cache).expanduser().absolute()


def _digest(*parts: object) -> str:
    return blake2b("\0".join(map(str, parts)).encode(errors="surrogateescape"), digest_size=10).hexdigest()


def _state(file: str, start: int) -> tuple[str, int, int]:
    """What changes when the file does; its name begins at ``start``."""
    found = os.stat(file)  # noqa: PTH116  # twice as fast as Path.stat, and there are 100,000 files
    return file[start:], found.st_size, found.st_mtime_ns


def _read(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """The entry, if there is a sound one."""
    images, checksum = torch.empty(0), None
    try:
        with safe_open(path, "pt") as entry:
            images, checksum = entry.get_tensor("images"), (entry.metadata() or {}).get("crc32")
    except OSError:  # not there, or not ours to read: then it cannot be written either, which is said there
        return None
    except SafetensorError:
        pass
    if images.dtype == torch.uint8 and images.shape == shape and checksum == _checksum(images):
        return images
    rank_zero_warn(f"{path} is damaged: it is deleted and made again")
    with suppress(OSError):
        path.unlink()
    return None


def _checksum(images: Tensor) -> str:
    return str(zlib.crc32(images.numpy().reshape(-1).data))


def _write(path: Path, images: Tensor) -> None:
    """Put the entry in its place, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder, because safetensors may write to a file of yet another name first.
    with tempfile.TemporaryDirectory(".tmp", f"{path.stem}.", path.parent, ignore_cleanup_errors=True) as unfinished:
        new = Path(unfinished, path.name)
        save_file({"images": images}, new, {"crc32": _checksum(images)})
        with new.open("rb+") as file:  # else a power cut could leave the new name on old blocks
            os.fsync(file.fileno())
        new.replace(path)


def _sweep(folder: Path, prefix: str, content: str) -> None:
    """Delete a place's entries of other content, and what killed processes have left half written."""
    for entry in folder.glob(f"{prefix}-*"):
        with suppress(FileNotFoundError):  # others may be sweeping, too
            if entry.suffix != ".tmp" and not entry.name.startswith(content):
                entry.unlink()
            elif entry.suffix == ".tmp" and time.time() - entry.stat().st_mtime > ABANDONED:
                shutil.rmtree(entry, ignore_errors=True)
