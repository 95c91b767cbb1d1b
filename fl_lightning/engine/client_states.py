"""DiskState: the tensors that a rule keeps for its clients, in files instead of memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from safetensors.torch import load_file, save_file
from torch import Tensor

from fl_lightning.errors import ConfigurationError

FOLDER = "states"  # below the run folder


class DiskState(MutableMapping[str, Tensor]):
    """Maps names to tensors and keeps each client's tensor (``name/client``) in a file, memory-mapped on reading.

    A new value goes into a new file, ``name/client.<number>.safetensors``. The old file stays until a checkpoint that
    no longer needs the file is complete, so that a run may be killed at any moment and can resume from its last
    checkpoint. An older checkpoint may need files that have been deleted. A run that is resumed in another folder reads
    the files of the old folder and leaves them unchanged.

    Args:
        writes: whether this process writes the files; the other processes only read them.
    """

    def __init__(self, writes: bool) -> None:
        self._writes = writes
        self._shared: dict[str, Tensor] = {}
        self._files: dict[str, str] = {}  # without suffix; relative to the folder, or absolute in an old folder
        self._bytes: dict[str, int] = {}
        self._count = 0  # the number of the last file; no number is used twice
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
            folder: the folder of the files.
            round: a function that returns the current round.

        Raises:
            ConfigurationError: a file that the checkpoint names is missing, or its folder now belongs to another run.
        """
        before, known, lost = self._folder, self._id, False
        self._folder, self._round = folder.absolute(), round
        self._id, self._count = _id(self._folder), max(self._count, _highest_number(self._folder))
        if self._files and self._id != known:  # the run is resumed in another folder
            self._files, self._replaced = {name: str(before / file) for name, file in self._files.items()}, []
            lost = _id(before) != known
            self._name_folder()
        gone = [path for path in map(self._path, self._files.values()) if lost or not path.is_file()]
        if gone:
            raise ConfigurationError(
                f"the checkpoint needs {len(gone)} client states that are gone, such as {gone[0]}: go on from the "
                "run's last.ckpt, with the run folder where it was"
            )

    @property
    def nbytes(self) -> int:
        """Size of all clients' tensors in bytes."""
        return sum(self._bytes.values())

    def __getitem__(self, name: str) -> Tensor:
        if name in self._shared:
            return self._shared[name]
        if name in self._unwritten:
            return self._unwritten[name]
        return load_file(self._path(self._files[name]))["value"]

    def __contains__(self, name: object) -> bool:
        return name in self._shared or name in self._files  # the inherited method would read the file

    def __setitem__(self, name: str, value: Tensor) -> None:
        if "/" not in name:
            self._shared[name] = value
            return
        round = self._check(name)
        self._sweep(round)
        self._release(name, round)
        self._count += 1
        file = f"{name}.{self._count}"
        if self._writes:
            self._write(self._path(file), value)
        else:
            self._unwritten[name] = value.detach().to("cpu", copy=True)
        self._files[name], self._bytes[name] = file, value.nbytes

    def __delitem__(self, name: str) -> None:
        if name in self._shared:
            del self._shared[name]
        elif name in self._files:
            self._release(name, self._check(name))
        else:
            raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._shared, *self._files])

    def __len__(self) -> int:
        return len(self._shared) + len(self._files)

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint's content, with file names in place of the clients' tensors; empty without any tensor."""
        if self._round is not None:
            self._saved, self._saved_count = self._round() - 1, self._count
        if not self:
            return {}
        return {
            "shared": dict(self._shared),
            "files": dict(self._files),
            "bytes": dict(self._bytes),
            "replaced": list(self._replaced),
            "count": self._count,
            "saved": self._saved,
            "folder": str(self._folder),
            "id": self._id,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the content from a checkpoint.

        Raises:
            ConfigurationError: the checkpoint names a file that does not lie in a folder of client states.
        """
        self._shared, self._files, self._bytes = dict(saved["shared"]), dict(saved["files"]), dict(saved["bytes"])
        self._replaced = [(round, file) for round, file in saved["replaced"]]
        deleted = [file for _, file in self._replaced]
        strange = [file for file in self._files.values() if not _is_state_file(Path(file))]
        strange += [file for file in deleted if not _is_state_file(Path(file)) or Path(file).is_absolute()]
        if strange:
            raise ConfigurationError(
                f"the checkpoint names {strange[0]!r}, which is no file of its client states: it is damaged or forged; "
                "go on from another checkpoint of the run"
            )
        self._count = self._saved_count = saved["count"]
        self._saved, self._folder, self._id = saved["saved"], Path(saved["folder"]), saved["id"]

    def _path(self, file: str) -> Path:
        return self._folder / f"{file}.safetensors"

    def _check(self, name: str) -> int:
        """Return the current round; refuse to set a client's tensor too early or under a malformed name."""
        if self._round is None:
            raise RuntimeError(
                f"client states are set in server hooks, from aggregate to on_round_end: {name} too early"
            )
        if not all(part.strip(".") for part in name.split("/")):
            raise ValueError(f"client states are named name/client, got {name!r}")
        return self._round()

    def _write(self, path: Path, value: Tensor) -> None:
        if path.exists():  # only another run can have written it: numbers start above all existing ones
            raise ConfigurationError(
                f"another run keeps its client states in {self._folder} at this time: give each run a folder of its "
                "own, by a logger or trainer.default_root_dir"
            )
        self._name_folder()
        path.parent.mkdir(parents=True, exist_ok=True)
        # A killed process may leave half a file: no checkpoint names the file, and no later file gets its number.
        save_file({"value": value.detach().cpu().contiguous()}, path)

    def _name_folder(self) -> None:
        if self._writes and not self._id:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._id = uuid4().hex
            (self._folder / "id").write_text(self._id)

    def _release(self, name: str, round: int) -> None:
        """Forget a client's value, if any; its file is deleted later, when no checkpoint and no device needs it."""
        if name in self._files:
            file = self._files.pop(name)
            del self._bytes[name]
            self._unwritten.pop(name, None)
            if not Path(file).is_absolute():
                in_a_checkpoint = int(file.rpartition(".")[2]) <= self._saved_count
                self._replaced.append((round if in_a_checkpoint else 0, file))

    def _sweep(self, round: int) -> None:
        """Delete the files that no checkpoint needs, at the first change in a round.

        By then, all devices have finished the last round, and its checkpoints are complete.
        """
        if round == self._swept:
            return
        self._swept = round
        self._unwritten.clear()
        for file in [file for first, file in self._replaced if first <= self._saved] if self._writes else ():
            self._path(file).unlink(missing_ok=True)
        self._replaced = [(first, file) for first, file in self._replaced if first > self._saved]


def client_bytes(state: MutableMapping[str, Tensor]) -> int:
    """Size in bytes of the tensors that a rule keeps for single clients."""
    if isinstance(state, DiskState):
        return state.nbytes
    return sum(value.nbytes for name, value in state.items() if "/" in name)


def _is_state_file(file: Path) -> bool:
    """Whether a file is named ``name/client.<number>``, as this class names them, below a folder of client states."""
    names_folder = not file.is_absolute() or FOLDER in file.parts
    return names_folder and ".." not in file.parts and re.search(r"[^/]/[^/]+\.\d+$", str(file)) is not None


def _id(folder: Path) -> str:
    file = folder / "id"
    return file.read_text() if file.is_file() else ""


def _highest_number(folder: Path) -> int:
    names = (name for *_, names in os.walk(folder) for name in names)
    found = (re.search(r"\.(\d+)\.safetensors$", name) for name in names)
    return max((int(match[1]) for match in found if match), default=0)
