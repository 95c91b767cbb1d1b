"""Files that are written whole or not at all, and checkpoints whose damage is noticed."""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Trainer
from typing_extensions import override

from fl_lightning.errors import ConfigurationError

PART = ".part"  # ends the name of a file that is being written
SEAL = 64  # length of a seal: the SHA-256 of the file before the zip archive's comment, in hexadecimal digits
DAMAGED = "cannot be read, it is damaged or not a checkpoint: use another one of the run's checkpoints"
TAIL = struct.pack("<H", SEAL)  # length of the comment, at the end of an archive without one two zeros


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all: yield a temporary path to write to, then move the written file to ``path``.

    The temporary file lies beside ``path``, and is on the disk before the file takes its place, so that neither a
    kill nor a power failure leaves half a file. Missing folders are created. If the body raises, the file at ``path``
    stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}{PART}")
    part.unlink(missing_ok=True)  # a link would be followed
    try:
        yield part
        _flush(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _flush(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Write files into a folder when all are written: yield a temporary folder, then move its files to ``path``.

    Files of the same names in ``path`` are replaced, others stay. If the body raises, the folder stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}", suffix=PART) as part:
        yield Path(part)
        path.mkdir(exist_ok=True)
        for file in sorted(Path(part).iterdir()):
            _flush(file)
            file.replace(path / file.name)
    _flush(path)


def remove_parts(folder: Path) -> None:
    """Remove the temporary files of :func:`whole` that killed processes have left."""
    for part in folder.rglob(f"*{PART}"):
        part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    folder = path.is_dir()
    if folder and os.name == "nt":  # Windows opens no folders
        return
    opened = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class SealedCheckpoints(TorchCheckpointIO):
    """Writes checkpoints whole or not at all and seals them; refuses to load a damaged checkpoint.

    A seal is the checksum of the whole file, kept as the comment of the zip archive that every checkpoint is. A
    checkpoint without a seal, which another program has written, is checked by the checksums of the archive's parts.
    Places other than local files are left to Lightning.

    Checkpoints are deleted only in folders that this object has written to: the path of an earlier checkpoint, which a
    better one replaces, comes from the checkpoint that a run goes on from, and a forged one may name any file.
    """

    def __init__(self) -> None:
        super().__init__()
        self._folders = set[Path]()

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if _is_remote(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        self._folders.add(_folder_of(path))
        with whole(Path(path)) as part:
            torch.save(checkpoint, part)
            seal = _digest(part, len(TAIL))
            with part.open("r+b") as file:
                file.seek(-len(TAIL), os.SEEK_END)
                file.write(TAIL + seal)

    @override
    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a checkpoint.

        Raises:
            ConfigurationError: the file is damaged.
        """
        if not _is_remote(path) and Path(path).is_file() and is_damaged(Path(path)):
            raise ConfigurationError(f"{path} {DAMAGED}")
        return super().load_checkpoint(path, *args, **kwargs)

    @override
    def remove_checkpoint(self, path: Any) -> None:
        if _is_remote(path) or _folder_of(path) in self._folders:
            super().remove_checkpoint(path)


def seal_checkpoints(trainer: Trainer) -> None:
    """Make a Trainer write sealed checkpoints, unless the user has chosen another way of writing them."""
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
        trainer.strategy.checkpoint_io = SealedCheckpoints()


def is_damaged(checkpoint: Path) -> bool:
    """Tell whether a file is not a checkpoint, or has changed since it was written."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            seal = archive.comment
            return _digest(checkpoint, len(TAIL) + SEAL) != seal if len(seal) == SEAL else archive.testzip() is not None
    except Exception:  # of damaged headers, too, in zipfile's many ways
        return True


def _digest(path: Path, tail: int) -> bytes:
    """Return the seal of a file without its last ``tail`` bytes."""
    with (
        path.open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as content,
        memoryview(content) as view,
        view[:-tail] as body,
    ):
        return hashlib.sha256(body).hexdigest().encode()


def _folder_of(path: Any) -> Path:
    return Path(os.path.realpath(path)).parent


def _is_remote(path: Any) -> bool:
    return "://" in str(path)
