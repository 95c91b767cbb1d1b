"""Runs the command line inside the test's process (a process of its own would take seconds), and leaves no trace."""

import contextlib
import csv
import gc
import io
import logging
import os
import resource
import socket
import subprocess
import sys
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch  # noqa: F401  # before rich, as the command line does: see fl_lightning/cli.py

from fl_lightning.cli import main

CHATTERERS = [
    logging.getLogger(f"lightning.{name}") for name in ("pytorch.utilities.rank_zero", "fabric.utilities.seed")
]

HANG = 1800  # seconds that only a process that hangs takes, however busy the machine

# Four clients of scikit-learn's digits: a round takes 0.1 s.
TINY = """
trainer:
  max_epochs: 2
  accelerator: cpu
model:
  client:
    class_path: ImageClassifier
    init_args:
      network: {class_path: TwoNN, init_args: {in_features: 64}}
      optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
data:
  class_path: Digits
  init_args:
    num_clients: 4
    partition: {class_path: Dirichlet, init_args: {alpha: 0.1}}
    batch_size: 32
"""


@dataclass(frozen=True)
class Result:
    """How a command ended.

    Attributes:
        status: the process's exit status.
        out: its standard output.
        err: its standard error, without warnings and Lightning's own log.
        warnings: the warnings' texts.
    """

    status: int
    out: str
    err: str
    warnings: tuple[str, ...]


def run(*args: object) -> Result:
    """``fl-lightning ARGS`` in the working directory."""
    out, err = io.StringIO(), io.StringIO()
    with restored() as caught, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([str(argument) for argument in args])
        except SystemExit as leaving:  # --print_config and --help leave this way
            status = int(leaving.code or 0)
    return Result(status, out.getvalue(), err.getvalue(), tuple(str(warning.message) for warning in caught))


def fit(*args: object, config: str = "tiny.yaml") -> Result:
    """``fl-lightning fit --config tiny.yaml ARGS``, which must end well."""
    result = run("fit", "--config", config, *args)
    assert result.status == 0, result.err
    return result


def fit_on(devices: int, *args: object, config: str = "tiny.yaml") -> None:
    """``fit`` on one device, or on several: real processes over gloo, forked from this one to save imports."""
    several = ("--trainer.strategy", "lib.in_forks.InForks", "--trainer.strategy.start_method", "fork")
    fit("--trainer.devices", devices, *(several if devices > 1 else ()), *args, config=config)


def process(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """``fl-lightning ARGS`` as a process of its own, where the process is the point."""
    command = [str(Path(sys.executable).with_name("fl-lightning")), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG, env={**os.environ, **environment})


def free_port() -> str:
    """A port of this machine that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def refused(*args: object) -> str:
    """The one line on standard error, without what every such line starts with."""
    result = run(*args)
    check_refused(result)
    return result.err.removeprefix("fl-lightning: error: ").removesuffix("\n")


def check_refused(result: Result) -> None:
    """Exit status 2, one printable line on standard error, no round done."""
    assert result.status == 2, (result.out, result.err)
    assert result.err.startswith("fl-lightning: error: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith("\n")
    assert result.err[:-1].isprintable(), "no escape sequences"
    assert "Traceback" not in result.err + result.out
    assert "round 1/2" not in result.out


def rows(file: Path | str) -> list[dict[str, float]]:
    """A metrics.csv, one dict a round; a cell without a value is left out."""
    with Path(file).open(newline="") as lines:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(lines)]


def contents(folder: Path | str = "runs") -> dict[str, bytes]:
    """The bytes of every file below a folder, by the file's path."""
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@contextlib.contextmanager
def restored() -> Iterator[list[warnings.WarningMessage]]:
    """Undo what a process may do to itself, and forget the modules that it found in its working directory."""
    argv, path, modules, environment = list(sys.argv), list(sys.path), set(sys.modules), dict(os.environ)
    filters = [list(logger.filters) for logger in CHATTERERS]
    try:
        with warnings.catch_warnings(record=True) as caught:
            yield caught
    finally:
        sys.argv[:], sys.path[:] = argv, path
        for logger, before in zip(CHATTERERS, filters, strict=True):
            logger.filters[:] = before
        os.environ.clear()
        os.environ.update(environment)
        forget(modules, Path.cwd())


def forget(before: Collection[str], folder: Path) -> None:
    """Forget the modules of a folder, except those named in ``before``; the package and its environment stay."""
    new = {name: str(getattr(sys.modules[name], "__file__", None)) for name in set(sys.modules) - set(before)}
    new = {name: file for name, file in new.items() if name.partition(".")[0] != "fl_lightning"}
    if mine := [name for name, file in new.items() if file.startswith(str(folder)) and sys.prefix not in file]:
        for name in mine:
            del sys.modules[name]
        gc.collect()  # their classes, which the parser would find by their short names


@contextlib.contextmanager
def limit(kind: int, value: int) -> Iterator[None]:
    """Limit what this process may take."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)
