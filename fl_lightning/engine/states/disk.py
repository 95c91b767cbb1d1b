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
from typing import Any, NamedTuple
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
ALONE = "give each run a folder of its own, by a logger or trainer.default_root_dir"
COLUMNS = ("numbers", "bytes", "checksums")  # names of an entry's values in a checkpoint


class Entry(NamedTuple):
    """Describes the file of a client's value: its number, size in bytes, and checksum."""

    number: int
    nbytes: int
    checksum: int


class DiskState(MutableMapping[str, Tensor]):
    """Maps names to tensors and keeps each client's tensor (``name/client``) in a file, memory-mapped on reading.

    Changes of clients' values are numbered, and a new value goes into a file of its own,
    ``name/client.<number>.safetensors``. The old file stays until a checkpoint that no longer needs the file is
    complete, so that a run may be killed at any moment and can resume from its last checkpoint. An older checkpoint
    may need files that have been deleted. Every value has a checksum, which is compared whenever the value is read,
    and for all values when a run resumes.

    A run that is resumed in its folder deletes the files of the rounds after its checkpoint, once a new checkpoint is
    complete. A run that is resumed in another folder links the files of the old folder, and leaves them unchanged.

    Args:
        writes: whether this process writes the files; the other processes only read them.
    """

    def __init__(self, writes: bool) -> None:
        self._writes = writes
        self._shared: dict[str, Tensor] = {}
        self._entries: dict[str, Entry] = {}
        self._unwritten: dict[str, Tensor] = {}  # values that another process may still be writing
        self._number = 0  # of the last change, and at least that of every file in the folder
        self._saved = 0  # number of the last change that a checkpoint holds
        self._replaced: list[str] = []  # files that the last checkpoint needs, and the next one does not
        self._unneeded: list[str] = []  # files that no checkpoint needs, deleted at the first change in the next round
        self._changed_in = 0  # round of the last change
        self._round: Callable[[], int] | None = None
        self._folder = Path()
        self._id = ""  # the folder's id, since runs that differ in one setting use the same file names

    def open(self, folder: Path, round: Callable[[], int]) -> None:
        """Set the folder of the files; only after this call may clients' tensors be set.

        Args:
            folder: the folder of the files, ``states/<rule>`` in the run folder.
            round: a function that returns the current round.

        Raises:
            ConfigurationError: a file that the checkpoint names is missing or damaged, or its folder now belongs to
                another run.
        """
        folder = folder.absolute()
        known = self._id
        self._id = _id(folder)
        self._round = round
        present = _files(folder)
        if self._entries and self._id != known:  # the run is resumed in another folder
            self._link_into(folder, lost=_id(self._folder) != known)
        self._folder = folder
        if self._entries and self._id == known:
            self._check_files()
            self._replaced += [file for file in present if _number(file) > self._number]
        self._number = max(self._number, *map(_number, present), 0)

    @property
    def nbytes(self) -> int:
        """Size of all clients' tensors in bytes."""
        return sum(entry.nbytes for entry in self._entries.values())

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor of the server, or a client's, which is read from its file unless it waits to be written.

        Raises:
            KeyError: there is no such tensor.
            ConfigurationError: the file is gone or damaged.
        """
        if name in self._shared:
            return self._shared[name]
        if name in self._unwritten:
            return self._unwritten[name]
        return self._read_file(name)

    def __contains__(self, name: object) -> bool:
        return name in self._shared or name in self._entries  # the inherited method would read the file

    def __setitem__(self, name: str, value: Tensor) -> None:
        if "/" not in name:
            self._shared[name] = value
            return
        self._begin_change(name)
        value = value.detach().to("cpu", copy=not self._writes).contiguous()
        self._entries[name] = Entry(self._number, value.nbytes, _checksum(value))
        if self._writes:
            self._write(self._path(name), value)
        else:
            self._unwritten[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._entries:
            self._begin_change(name)
        else:
            del self._shared[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._shared, *self._entries])

    def __len__(self) -> int:
        return len(self._shared) + len(self._entries)

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint's content, with numbers of files in place of the clients' tensors; empty without any."""
        self._saved = self._number
        self._unneeded += self._replaced
        self._replaced = []
        if not self:
            return {}
        table = torch.tensor([*self._entries.values()], dtype=torch.int64).reshape(-1, len(COLUMNS))
        return {
            "shared": dict(self._shared),
            "names": json.dumps(list(self._entries)),  # 100,000 names as one text are saved in a tenth of the time
            **{column: values.clone() for column, values in zip(COLUMNS, table.T, strict=True)},
            "replaced": [(0, file) for file in self._unneeded],  # a round beside each file, in older checkpoints
            "count": self._number,
            "folder": str(self._folder),
            "id": self._id,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the content from a checkpoint.

        Raises:
            ConfigurationError: the checkpoint names a file outside its folder.
        """
        rows = zip(*(saved[column].tolist() for column in COLUMNS), strict=True)
        self._entries = {name: Entry(*row) for name, row in zip(json.loads(saved["names"]), rows, strict=True)}
        self._unneeded = [file for _, file in saved["replaced"]]
        strange = [file for file in (*map(self._file, self._entries), *self._unneeded) if _is_odd(file)]
        if strange:
            raise ConfigurationError(
                f"the checkpoint names {strange[0]!r}, which is not a file of its client states: the checkpoint is "
                "damaged or forged; continue from another checkpoint of the run"
            )
        self._shared = dict(saved["shared"])
        self._number = self._saved = saved["count"]
        self._folder = Path(saved["folder"])
        self._id = saved["id"]

    def _file(self, name: str) -> str:
        return f"{name}.{self._entries[name].number}.safetensors"

    def _path(self, name: str) -> Path:
        return self._folder / self._file(name)

    def _read_file(self, name: str) -> Tensor:
        """Read a client's value from its file; refuse a file that is missing, or has another checksum."""
        path = self._path(name)
        with suppress(OSError, SafetensorError, KeyError):
            value = _value_in(path)
            if _checksum(value) == self._entries[name].checksum:
                return _value_in(path) if value.nbytes > LARGE else value  # mapped anew, it takes no memory until used
        state = "damaged" if path.is_file() else "gone"
        raise ConfigurationError(f"the client state {path} is {state}: {MEND}")

    def _check_files(self, lost: bool = False) -> None:
        """Read all files once; ``lost`` if their folder belongs to another run."""
        gone = [path for path in map(self._path, self._entries) if lost or not path.is_file()]
        if gone:
            raise ConfigurationError(
                f"the checkpoint needs {len(gone)} client states that are gone, such as {gone[0]}: go on from the "
                "run's last.ckpt, with the run folder where it was"
            )
        for name in self._entries:
            self._read_file(name)

    def _link_into(self, folder: Path, lost: bool) -> None:
        """Check all files, and link them into another folder; ``lost`` if their own now belongs to another run."""
        before = self._folder
        _files(before)  # refuses links that lead out
        self._check_files(lost)
        if self._writes and self._id:
            raise ConfigurationError(f"another run keeps its client states in {folder}: {ALONE}")
        self._folder = folder
        self._unneeded = []
        self._name_folder()
        for file in map(self._file, self._entries):
            _link(before / file, folder / file)

    def _begin_change(self, name: str) -> None:
        """Number a change of a client's value, and forget the value before, if any; its file is deleted later."""
        if self._round is None:
            raise RuntimeError(
                f"client states are set in server hooks, from aggregate to on_round_end: {name} was set too early"
            )
        check_name(name)
        round = self._round()
        if round != self._changed_in:
            self._changed_in = round
            self._end_last_round()
        self._number += 1
        if name in self._entries:
            if self._entries[name].number <= self._saved:  # a checkpoint needs the file
                self._replaced.append(self._file(name))
            else:
                self._unneeded.append(self._file(name))
            del self._entries[name]
            self._unwritten.pop(name, None)

    def _end_last_round(self) -> None:
        """Drop what the last round needed: all devices have finished it, and its checkpoints are complete."""
        self._unwritten.clear()
        if self._writes:
            for file in self._unneeded:
                (self._folder / file).unlink(missing_ok=True)
        self._unneeded = []

    def _write(self, path: Path, value: Tensor) -> None:
        if path.exists():  # only another run can have written it: numbers start above all existing ones
            raise ConfigurationError(f"another run keeps its client states in {self._folder}: {ALONE}")
        self._name_folder()
        path.parent.mkdir(parents=True, exist_ok=True)
        # A killed process may leave half a file: no checkpoint names the file, and no later file gets its number.
        save_file({"value": value}, path)

    def _name_folder(self) -> None:
        if self._writes and not self._id:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._id = uuid4().hex
            (self._folder / "id").write_text(self._id)


def check_name(name: str) -> None:
    """Refuse the name of a client's tensor that cannot name a file, or names the folder's own file ``id``."""
    parts = name.split("/")
    fits = all(part.strip(".") and "\0" not in part and len(os.fsencode(part)) <= 200 for part in parts)
    if not fits or parts[0] == "id":
        raise ConfigurationError(
            f"client states are named name/client, and kept in files of that name, got {name!r}: give a name "
            'of letters, such as "own", but not "id"'
        )


def client_bytes(state: MutableMapping[str, Tensor]) -> int:
    """Return the size in bytes of the tensors that a rule keeps for single clients."""
    if isinstance(state, DiskState):
        return state.nbytes
    return sum(value.nbytes for name, value in state.items() if "/" in name)


def _value_in(path: Path) -> Tensor:
    """Read the value in a file; a large file is mapped, so that it takes memory only while it is used.

    A small file is faster to read whole, and safetensors 0.8 leaks 28 bytes of memory for each file that it maps.
    """
    if path.stat().st_size > LARGE:
        return load_file(path)["value"]
    return load(path.read_bytes())["value"]


def _checksum(value: Tensor) -> int:
    """Compute the CRC-32 of a contiguous tensor's dtype, shape and bytes."""
    start = zlib.crc32(f"{value.dtype} {tuple(value.shape)}".encode())
    return zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, start)


def _is_odd(file: str) -> bool:
    """Tell whether a file is not ``name/client.<number>.safetensors`` below the folder."""
    path = Path(file)
    return path.is_absolute() or ".." in path.parts or not re.search(r"[^/]/[^/]+\.\d+\.safetensors$", file)


def _id(folder: Path) -> str:
    file = inside(folder, "id")
    return file.read_text() if file.is_file() else ""


def _files(folder: Path) -> list[str]:
    """Return the paths in a folder of its client states, complete or not; refuse links that lead out of the run."""
    run = folder.parents[1]
    files: list[str] = []
    for place, folders, names in os.walk(folder):
        for name in (*names, *folders):
            path = Path(place, name)
            if path.is_symlink():
                within(run, str(path.relative_to(run)))
        files += [str(Path(place, name).relative_to(folder)) for name in names]
    return [file for file in files if re.search(r"\.\d+\.safetensors$", file)]


def _number(file: str) -> int:
    return int(file.split(".")[-2])


def _link(source: Path, target: Path) -> None:
    """Make a hard link to a file; copy the file where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        pass  # another device was first
    except OSError:
        shutil.copyfile(source, target)
