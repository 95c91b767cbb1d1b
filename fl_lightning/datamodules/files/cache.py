"""A cache of decoded images on disk: a later run reads them instead of decoding the files again."""

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
FORMAT = 2  # raise this number whenever the same files would decode to other bytes
ABANDONED = 3600.0  # seconds after which a half-written entry is taken to be abandoned


def cached(
    cache: str | None,
    folder: Path,
    kind: str,
    files: Sequence[str],
    shape: tuple[int, ...],
    decode: Callable[[], Tensor],
) -> Tensor:
    """Return decoded images: from the cache if the same files were decoded before, else from ``decode``.

    An entry of the cache is a safetensors file, named after the folder and the kind, the files' names, sizes, inodes
    and times of modification and of change, and the shape. An entry appears whole or not at all, and is read only if
    its checksum is right; a damaged entry is deleted with a warning and made again. Writing a new entry deletes the
    entries of the same folder and kind that were made from other files. Several processes may read and write at the
    same time. Images read from the cache lie in the file's own memory pages, which the processes on one machine share.

    Args:
        cache: folder of the entries; None to decode every time. In the default, ``$XDG_CACHE_HOME``, if set, takes the
            place of ``~/.cache``.
        folder: folder that holds the files.
        kind: text that tells apart the entries of one folder: the split and the way of decoding.
        files: paths of the files, in the order in which they are decoded; every path begins with the folder's.
        shape: shape of the decoded images.
        decode: function that decodes the files into a uint8 tensor of this shape.

    Returns:
        uint8 images of this shape, not to be written to.
    """
    if cache is None:
        return decode()
    prefix = _digest(folder.resolve(), kind)
    try:
        content = f"{prefix}-{_digest(FORMAT, *(_state(file, len(str(folder))) for file in files))}"
    except OSError:  # a file is gone or a link is broken: decoding has the better message
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
            f"expected to keep decoded images in {path.parent}, got {reason!r}: this run goes on, and the next run "
            "decodes the images again; name another folder (--data.cache DIR) or none (--data.cache null)"
        )
    return images


def cache_folder(cache: str) -> Path:
    """Return the absolute folder of the cache; ``$XDG_CACHE_HOME`` replaces the default's ``~/.cache`` if it is set."""
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home, "fl_lightning") if home and cache == CACHE else Path(cache).expanduser().absolute()


def _digest(*parts: object) -> str:
    return blake2b("\0".join(map(str, parts)).encode(errors="surrogateescape"), digest_size=10).hexdigest()


def _state(file: str, start: int) -> tuple[str | int, ...]:
    """Return what shows whether a file has changed or is another one of its name.

    Archives and copies may give many files one size and one time of modification; only the system sets the time of
    change and the inode.

    Args:
        file: path of the file.
        start: number of the path's first character that counts.
    """
    state = os.stat(file)  # noqa: PTH116  # twice as fast as Path.stat, and there are 100,000 files
    return file[start:], state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def _read(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """Read the images of an entry; None if there is no entry, or if it is damaged, in which case it is deleted."""
    images = torch.empty(0)
    checksum = None
    try:
        with safe_open(path, "pt") as entry:
            images = entry.get_tensor("images")
            checksum = (entry.metadata() or {}).get("crc32")
    except OSError:  # no entry; or no right to read the entry, and then writing fails and warns
        return None
    except SafetensorError:
        pass
    if images.dtype == torch.uint8 and images.shape == shape and checksum == _checksum(images):
        return images
    rank_zero_warn(f"{path} is damaged: the file is deleted and made again")
    with suppress(OSError):
        path.unlink()
    return None


def _checksum(images: Tensor) -> str:
    return str(zlib.crc32(images.numpy().reshape(-1).data))


def _write(path: Path, images: Tensor) -> None:
    """Write an entry, which appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In a folder, because safetensors may first write to a file of another name.
    with tempfile.TemporaryDirectory(".tmp", f"{path.stem}.", path.parent, ignore_cleanup_errors=True) as unfinished:
        new = Path(unfinished, path.name)
        save_file({"images": images}, new, {"crc32": _checksum(images)})
        with new.open("rb+") as file:  # otherwise a power failure could leave the new name on old content
            os.fsync(file.fileno())
        new.replace(path)


def _sweep(folder: Path, prefix: str, content: str) -> None:
    """Delete entries of ``prefix`` other than ``content``, and half-written entries that killed processes left."""
    for entry in folder.glob(f"{prefix}-*"):
        with suppress(FileNotFoundError):  # other processes may be sweeping, too
            if entry.suffix != ".tmp" and not entry.name.startswith(content):
                entry.unlink()
            elif entry.suffix == ".tmp" and time.time() - entry.stat().st_mtime > ABANDONED:
                shutil.rmtree(entry, ignore_errors=True)
