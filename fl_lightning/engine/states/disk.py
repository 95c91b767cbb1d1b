"""DiskState: the tensors that a rule keeps for its clients, in files instead of memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from fl_lightning.errors import ConfigurationError
from fl_lightning.inside import inside, within

FOLDER = "states"  # below the run folder
LARGE = 2 << 20  # bytes above which a file is mapped
MEND = "continue from another checkpoint of the run, or start the run again"


class DiskState(MutableMapping[str, Tensor]):
    """Maps names to tensors and keeps each client's tensor (``name/client``) in a file, memory-mapped on reading.

    A new value goes into a new file, ``name/client.<number>.safetensors``. The old file stays until a checkpoint that
    no longer needs the file is complete, so that a run may be killed at any moment and can resume from its last
    checkpoint. An older checkpoint may need files that have been deleted. Every value has a checksum, which is compared
    whenever the value is read, and for all values when a run resumes.

    A run that is resumed in its folder deletes the files of the rounds after its checkpoint, once a new checkpoint is
    complete. A run that is resumed in another folder links the files of the old folder, and leaves them unchanged.

    Args:
        writes: whether this process writes the files; the other processes only read them.
    """

    def __init__(self, writes: bool) -> None:
        self._writes = writes
        self._shared: dict[str, Tensor] = {}
        self._numbers: dict[str, int] = {}  # number of each file; no number is used twice
        self._bytes: dict[str, int] = {}
        self._checksums: dict[str, int] = {}
        self._count = 0  # the last number
        self._replaced: list[tuple[int, str]] = []  # first round whose checkpoint does not need the file; the file
        self._saved = self._saved_count = 0  # the round and the count of the last checkpoint
        self._swept = 0  # the round in which files were last deleted
        self._unwritten: dict[str, Tensor] = {}  # values that another process may still be writing
        self._folder = Path()
        self._id = ""  # the folder's id, since runs that differ in one setting use the same file names
        self._round: Callable[[], int] | None = None

    def open(self, folder: Path, round: Callable[[], int]) -> None:
        """Set the folder of the files; only after this call may clients' tensors be set.

        Args:
            folder: the folder of the files, ``states/<rule>`` in the run folder.
            round: a function that returns the current round.

        Raises:
            ConfigurationError: a file that the checkpoint names is missing or damaged, or its folder now belongs to
                another run.
        """
        before, known = self._folder, self._id
        self._folder, self._round = folder.absolute(), round
        self._id, present = _id(self._folder), _files(self._folder)
        if self._numbers and self._id == known:
            self._check_files(self._folder)
            written_since = [file for file in present if _number(file) > self._count]
            self._replaced += [(self._saved + 1, file) for file in written_since]
        elif self._numbers:  # the run is resumed in another folder
            _files(before)  # refuses links that lead out
            self._check_files(before, lost=_id(before) != known)
            self._move_from(before)
        self._count = max(self._count, *map(_number, present), 0)

    @property
    def nbytes(self) -> int:
        """Size of all clients' tensors in bytes."""
        return sum(self._bytes.values())

    def __getitem__(self, name: str) -> Tensor:
        if name in self._shared:
            return self._shared[name]
        if name in self._unwritten:
            return self._unwritten[name]
        value = self._read(name, self._folder)
        if value.nbytes > LARGE:
            return _value_in(self._folder / self._file(name))  # mapped anew: what is not used takes no memory
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._shared or name in self._numbers  # the inherited method would read the file

    def __setitem__(self, name: str, value: Tensor) -> None:
        if "/" not in name:
            self._shared[name] = value
            return
        round = self._check(name)
        self._sweep(round)
        self._release(name, round)
        self._count += 1
        value = value.detach()
        self._numbers[name], self._bytes[name] = self._count, value.nbytes
        value = value.to("cpu", copy=not self._writes).contiguous()
        self._checksums[name] = _checksum(value)
        if self._writes:
            self._write(self._folder / self._file(name), value)
        else:
            self._unwritten[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._shared:
            del self._shared[name]
        elif name in self._numbers:
            self._release(name, self._check(name))
        else:
            raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._shared, *self._numbers])

    def __len__(self) -> int:
        return len(self._shared) + len(self._numbers)

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint's content, with numbers of files in place of the clients' tensors; empty without any."""
        if self._round is not None:
            self._saved, self._saved_count = self._round() - 1, self._count
        if not self:
            return {}
        return {
            "shared": dict(self._shared),
            "names": json.dumps(list(self._numbers)),  # 100,000 names as one text are saved in a tenth of the time
            "numbers": torch.tensor(list(self._numbers.values()), dtype=torch.int64),
            "bytes": torch.tensor(list(self._bytes.values()), dtype=torch.int64),
            "checksums": torch.tensor(list(self._checksums.values()), dtype=torch.int64),
            "replaced": list(self._replaced),
            "count": self._count,
            "saved": self._saved,
            "folder": str(self._folder),
            "id": self._id,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the content from a checkpoint.

        Raises:
            ConfigurationError: the checkpoint names a file outside its folder.
        """
        names = json.loads(saved["names"])
        self._numbers, self._bytes, self._checksums = (
            dict(zip(names, saved[each].tolist(), strict=True)) for each in ("numbers", "bytes", "checksums")
        )
        self._shared = dict(saved["shared"])
        self._replaced = [(round, file) for round, file in saved["replaced"]]
        strange = [file for file in (*map(self._file, names), *(file for _, file in self._replaced)) if _is_odd(file)]
        if strange:
            raise ConfigurationError(
                f"the checkpoint names {strange[0]!r}, which is not a file of its client states: the checkpoint is "
                "damaged or forged; continue from another checkpoint of the run"
            )
        self._count = self._saved_count = saved["count"]
        self._saved, self._folder, self._id = saved["saved"], Path(saved["folder"]), saved["id"]

    def _file(self, name: str) -> str:
        return f"{name}.{self._numbers[name]}.safetensors"

    def _read(self, name: str, folder: Path) -> Tensor:
        """Read a client's value from its file, and compare its checksum.

        Raises:
            ConfigurationError: the file is missing or damaged.
        """
        path = folder / self._file(name)
        try:
            value = _value_in(path)
            if _checksum(value) == self._checksums[name]:
                return value
        except (OSError, SafetensorError, KeyError):
            if not path.is_file():
                raise ConfigurationError(f"the client state {path} is gone: {MEND}") from None
        raise ConfigurationError(f"the client state {path} is damaged: {MEND}")

    def _check_files(self, folder: Path, lost: bool = False) -> None:
        """Read all files in a folder once; ``lost`` if the folder belongs to another run."""
        paths = [folder / self._file(name) for name in self._numbers]
        gone = [path for path in paths if lost or not path.is_file()]
        if gone:
            raise ConfigurationError(
                f"the checkpoint needs {len(gone)} client states that are gone, such as {gone[0]}: go on from the "
                "run's last.ckpt, with the run folder where it was"
            )
        for name in self._numbers:
            self._read(name, folder)

    def _move_from(self, before: Path) -> None:
        """Link all files of another folder."""
        if self._writes and self._id:
            raise self._shared_folder()
        self._replaced = []
        self._name_folder()
        for file in map(self._file, self._numbers):
            _link(before / file, self._folder / file)

    def _check(self, name: str) -> int:
        """Return the current round; refuse to set a client's tensor too early or under a malformed name."""
        if self._round is None:
            raise RuntimeError(
                f"client states are set in server hooks, from aggregate to on_round_end: {name} was set too early"
            )
        if not all(part.strip(".") for part in name.split("/")):
            raise ValueError(f"client states are named name/client, got {name!r}")
        return self._round()

    def _write(self, path: Path, value: Tensor) -> None:
        if path.exists():  # only another run can have written it: numbers start above all existing ones
            raise self._shared_folder()
        self._name_folder()
        path.parent.mkdir(parents=True, exist_ok=True)
        # A killed process may leave half a file: no checkpoint names the file, and no later file gets its number.
        save_file({"value": value}, path)

    def _shared_folder(self) -> ConfigurationError:
        return ConfigurationError(
            f"another run keeps its client states in {self._folder}: give each run a folder of its own, by a logger or "
            "trainer.default_root_dir"
        )

    def _name_folder(self) -> None:
        if self._writes and not self._id:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._id = uuid4().hex
            (self._folder / "id").write_text(self._id)

    def _release(self, name: str, round: int) -> None:
        """Forget a client's value, if any; its file is deleted later, when no checkpoint and no device needs it."""
        if name in self._numbers:
            in_a_checkpoint = self._numbers[name] <= self._saved_count
            self._replaced.append((round if in_a_checkpoint else 0, self._file(name)))
            del self._numbers[name], self._bytes[name], self._checksums[name]
            self._unwritten.pop(name, None)

    def _sweep(self, round: int) -> None:
        """Delete the files that no checkpoint needs, at the first change in a round.

        By then, all devices have finished the last round, and its checkpoints are complete.
        """
        if round == self._swept:
            return
        self._swept = round
        self._unwritten.clear()
        for file in [file for first, file in self._replaced if first <= self._saved] if self._writes else ():
            (self._folder / file).unlink(missing_ok=True)
        self._replaced = [(first, file) for first, file in self._replaced if first > self._saved]


def client_bytes(state: MutableMapping[str, Tensor]) -> int:
    """Return the size in bytes of the tensors that a rule keeps for single clients."""
    if isinstance(state, DiskState):
        return state.nbytes
    return sum(value.nbytes for name, value in state.items() if "/" in name)


def _value_in(path: Path) -> Tensor:
    """Read the value in a file; a large file is mapped, so that it takes memory only while it is used.

    A small file is faster to read whole, and safetensors 0.8 leaks 28 bytes of memory for each file that it maps.
    """
    return (load_file(path) if path.stat().st_size > LARGE else load(path.read_bytes()))["value"]


def _checksum(value: Tensor) -> int:
    """Compute the CRC-32 of a contiguous tensor's dtype, shape and bytes."""
    start = zlib.crc32(f"{value.dtype} {tuple(value.shape)}".encode())
    return zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, start)


def _is_odd(file: str) -> bool:
    """Tell whether a file is not ``name/client.<number>.safetensors`` below the folder."""
    path = Path(file)
    named = re.search(r"[^/]/[^/]+\.\d+\.safetensors$", file) is not None
    return path.is_absolute() or ".." in path.parts or not named


def _id(folder: Path) -> str:
    file = inside(folder, "id")
    return file.read_text() if file.is_file() else ""


def _files(folder: Path) -> list[str]:
    """Return the files of client states in a folder, complete or not, with paths relative to the folder.

    Raises:
        ConfigurationError: a link leads out of the run folder.
    """
    found, run = [], folder.parents[1]
    for place, folders, names in os.walk(folder):
        paths = [Path(place, name) for name in (*names, *folders)]
        for link in [path for path in paths if path.is_symlink()]:
            within(run, str(link.relative_to(run)))
        found += [str(path.relative_to(folder)) for path in paths[: len(names)]]
    return [file for file in found if re.search(r"\.\d+\.safetensors$", file)]


def _number(file: str) -> int:
    return int(file.split(".")[-2])


def _link(source: Path, target: Path) -> None:
    """Make a hard link to a file; copy the file where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another device was first
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:
            shutil.copyfile(source, target)
