"""Line: a command line of ``fuzz.py`` with the files and the environment that it finds, and how it ended."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib.command import TINY, fit, run

LIMIT = 60  # seconds after which a command hangs; max_time ends a run that is merely long
MEMORY = 8 * 2**30  # bytes of address space that a command may take beyond the parent's
FINE = ("accepted", "refused")
RULES = "[{class_path: ConflictMonitor, init_args: {every: 1}}, {class_path: FedProx, init_args: {mu: 0.1}}]"
BOMB = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else '1'] * 9)}]" for n in range(12))


@dataclass(frozen=True)
class Line:
    """A command line.

    Attributes:
        arguments: the arguments of ``fl-lightning``.
        files: contents of files of the working directory, by path, in place of those that :func:`stage` writes.
        environment: variables of the environment, in addition to the parent's.
        shell: redirections, or ";", with which the line runs as a process of its own; "" runs it in a fork, which saves
            the seconds of the imports.
        gone: whether the working directory is deleted before the command starts, as a process of its own.
    """

    arguments: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    shell: str = ""
    gone: bool = False

    def __str__(self) -> str:
        """Write the line as a shell takes it, and name the files that differ."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        words += ["fl-lightning", *map(shlex.quote, self.arguments), self.shell, "(in a deleted folder)" * self.gone]
        return " ".join(filter(None, [*words, *(f"with {name}: {text[:600]!r}" for name, text in self.files.items())]))


def stage(folder: Path) -> None:
    """Fill a folder with a config, a run of it, and files that no command can use."""
    (folder / "folder").mkdir(parents=True)
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "empty").touch()
    (folder / "list.yaml").write_text("[1, 2]")
    (folder / "bomb.yaml").write_text(BOMB)
    (folder / "deep.yaml").write_text("[" * 5000)
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "loop").symlink_to("loop")
    with contextlib.chdir(folder):
        fit("--trainer.enable_progress_bar=false", "--trainer.callbacks", RULES, "--trainer.max_epochs=1")


def attempt(line: Line, staged: Path) -> dict[str, Any]:
    """Run a line in a copy of the staged folder, and say how it ended: ``end``, and in ``said`` what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        work, told = Path(folder, "place", "work"), Path(folder, "told.json")
        shutil.copytree(staged, work, symlinks=True)
        os.mkfifo(work / "fifo")
        for name, content in line.files.items():
            (work / name).write_bytes(content)
        result = _as_process(line, work) if line.shell or line.gone else _as_fork(line, work, told)
    return {"line": str(line), "command": line.arguments[0] if line.arguments else "", **result}


def _as_fork(line: Line, work: Path, told: Path) -> dict[str, Any]:
    process = multiprocessing.get_context("fork").Process(target=_child, args=(line, work, told))
    process.start()
    process.join(LIMIT)
    if hangs := process.is_alive():
        process.kill()
        process.join()
    if told.is_file():
        return dict(json.loads(told.read_text()))
    return {"end": "hang" if hangs else "death", "said": str(process.exitcode)}


def _child(line: Line, work: Path, told: Path) -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY,) * 2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    os.chdir(work)
    if line.gone:
        shutil.rmtree(work)
    os.environ.update(line.environment)
    try:
        ended = run(*line.arguments)
        result = _ending(ended.status, ended.err, ended.out) | {"warned": "; ".join(ended.warnings)[:300]}
    except BaseException:
        result = {"end": "traceback", "said": traceback.format_exc()[-3000:]}
    told.write_text(json.dumps(result))


def _as_process(line: Line, work: Path) -> dict[str, Any]:
    program = shlex.quote(str(Path(sys.executable).with_name("fl-lightning")))
    leave = f"rm -rf {shlex.quote(str(work))}; " if line.gone else ""
    command = ["bash", "-c", f'{leave}{program} "$@" {line.shell or ";"}', "bash", *line.arguments]
    paths = os.pathsep.join(str(Path(each).absolute()) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep))
    environment = {**os.environ, "PYTHONPATH": paths, **line.environment}
    try:
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"end": "hang", "said": ""}
    return _ending(done.returncode, *(text.decode(errors="replace") for text in (done.stderr, done.stdout)))


def _ending(status: int, err: str, out: str) -> dict[str, Any]:
    """Name an ending: refused means that each line of standard error states one mistake, in printable characters."""
    lines = err.splitlines()
    if "Traceback" in err + out or "Exception ignored" in err:
        end = "traceback"
    elif status == 0:
        end = "accepted"
    elif all(each.startswith("fl-lightning: error: ") and each.isprintable() for each in lines):
        # A dry run names on standard output what stands in its way; a broken pipe is silent.
        end = "refused" if lines or out or status > 128 else "no line"
    else:
        end = f"{len(lines)} lines"
    return {"end": end, "status": status, "said": err[-3000:]}
