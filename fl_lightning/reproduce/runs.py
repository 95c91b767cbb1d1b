"""Runs of an experiment's cells: each in its own process, found again by its settings, gone on with after a stop."""

from __future__ import annotations

import atexit
import contextlib
import copy
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.errors import ConfigurationError
from fl_lightning.experiments import option

# Where and how a run is done, which does not change what comes out.
ELSEWHERE = {
    "": ("seed_everything", "experiment", "num_threads", "ckpt_path"),
    "trainer": ("accelerator", "devices", "num_nodes", "strategy", "logger", "default_root_dir", "enable_progress_bar"),
    "data": ("root", "download", "cache", "num_workers", "clients_per_batch", "seed"),
    "model": ("seed", "client_states"),
}
POLL_S = 0.5


@dataclass(frozen=True)
class Run:
    """One cell's training with one seed.

    Attributes:
        group: the experiment and the labels of its cell.
        arguments: of ``fl-lightning fit``, without seed and folder.
        seed: of everything.
        rounds: it takes.
        folder: its own; the same settings and seed have the same, whichever experiment asks.
    """

    group: tuple[str, ...]
    arguments: tuple[str, ...]
    seed: int
    rounds: int
    folder: Path

    @property
    def name(self) -> str:
        """What progress and failures call it."""
        return f"{' '.join(self.group)} seed {self.seed}"

    @property
    def finished(self) -> bool:
        """Whether it has been trained to its end."""
        return (self.folder / "finished.json").is_file()

    @property
    def metrics(self) -> Path:
        """Its ``metrics.csv``, which may not be there yet."""
        return self.folder / "run" / "version_0" / "metrics.csv"

    @property
    def rounds_done(self) -> int:
        """Rounds that its ``metrics.csv`` holds."""
        try:
            return max(len(self.metrics.read_text().splitlines()) - 1, 0)
        except OSError:
            return 0


def plan(group: Sequence[str], arguments: Sequence[str], seeds: Sequence[int], folder: Path) -> list[Run]:
    """The runs of one cell, one a seed.

    Args:
        group: the experiment and the labels of its cell.
        arguments: of ``fl-lightning fit``: a config and options.
        seeds: of everything.
        folder: where all runs lie.

    Raises:
        ConfigurationError: the arguments are no run's.
    """
    config = settings(arguments)
    folder = folder / fingerprint(config)
    rounds = int(config["trainer"]["max_epochs"])
    return [Run(tuple(group), tuple(arguments), seed, rounds, folder / f"seed_{seed}") for seed in seeds]


def settings(arguments: Sequence[str]) -> dict[str, Any]:
    """A run's whole config, defaults included.

    Raises:
        ConfigurationError: the arguments are no run's.
    """
    from fl_lightning.cli import main  # it imports this package

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(["fit", *arguments, "--print_config"])
        except SystemExit:  # the parser's way to leave when it has printed
            return dict(yaml.safe_load(out.getvalue()))
    raise ConfigurationError(err.getvalue().strip().rpartition("\n")[2].removeprefix("fl-lightning: error: "))


def fingerprint(config: dict[str, Any]) -> str:
    """Sixteen hexadecimal digits of all settings that make a difference to the result, but the seed."""
    config = copy.deepcopy(config)
    parts: dict[str, Any] = {"": {key: value for key, value in config.items() if not isinstance(value, dict)}}
    parts |= {key: value for key, value in config.items() if isinstance(value, dict)}
    for part, names in ELSEWHERE.items():
        for holder in (parts[part], parts[part].get("init_args")):
            for name in names:
                if isinstance(holder, dict):
                    holder.pop(name, None)
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()


def train(runs: Sequence[Run], jobs: int, report: Callable[[Sequence[Run]], None]) -> list[Run]:
    """Train what is not finished, several at a time.

    Args:
        runs: to be trained; those with the same folder are the same.
        jobs: how many processes, at least 1.
        report: called about twice a second with the runs under way.

    Returns:
        Those that failed; the end of their ``log.txt`` says why.
    """
    context = multiprocessing.get_context("forkserver")  # imports once, and each run is still a fresh process
    context.set_forkserver_preload(["fl_lightning.cli"])
    waiting = [run for run in {run.folder: run for run in runs}.values() if not run.finished]
    busy: dict[Any, Run] = {}
    failed: list[Run] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                process = context.Process(target=_work, args=(run := waiting.pop(0),), name=run.name)
                process.start()
                busy[process] = run
            wait([process.sentinel for process in busy], POLL_S)
            for process in [process for process in busy if process.exitcode is not None]:
                run = busy.pop(process)
                failed += [] if run.finished else [run]
            report(list(busy.values()))
    finally:
        for process in busy:
            process.terminate()
    return failed


def _work(run: Run) -> None:
    """The life of a process: one run, from where an earlier process left it."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    run.folder.mkdir(parents=True, exist_ok=True)
    log = (run.folder / "log.txt").open("a")
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log.fileno(), stream.fileno())
    began = time.monotonic()
    from fl_lightning.cli import main

    status = main(["fit", *run.arguments, *_own_arguments(run)])
    atexit._run_exitfuncs()  # multiprocessing leaves without them: W&B would not close its file
    if status == 0:
        facts = {"seconds": round(time.monotonic() - began, 1), "seed": run.seed, "arguments": run.arguments}
        facts |= {"versions": {name: version(name) for name in ("fl-lightning", "torch", "lightning")}}
        part = run.folder / "finished.json.part"
        part.write_text(json.dumps(facts, indent=1))
        part.replace(run.folder / "finished.json")
    sys.exit(status)


def _own_arguments(run: Run) -> list[str]:
    """Seed and folder; and the checkpoint to go on from, if there is one that can be read."""
    from fl_lightning.cli import check_readable

    arguments = [f"--seed_everything={run.seed}", f"--trainer.default_root_dir={run.folder}", "--experiment=run"]
    arguments += ["--trainer.enable_progress_bar=false", *_for_wandb(run)]
    checkpoint = run.metrics.parent / "checkpoints" / "last.ckpt"
    try:
        check_readable(checkpoint)
        return [*arguments, f"--ckpt_path={checkpoint}"]
    except ConfigurationError:  # stopped before its first round was over
        shutil.rmtree(run.folder / "run", ignore_errors=True)
        return arguments


def _for_wandb(run: Run) -> list[str]:
    """Where W&B is asked for: cells are its groups, labels its tags, and a run that is gone on with is the same run."""
    if not any("WandbLogger" in argument for argument in run.arguments):
        return []
    settings = {
        "group": " ".join(run.group),
        "name": run.name,
        "tags": [*run.group, f"seed {run.seed}"],
        "id": f"{run.folder.parent.name}-{run.seed}",
        "resume": "allow",
        "save_dir": str(run.folder),
    }
    return [option(f"trainer.logger.{name}", value) for name, value in settings.items()]


def _leave_with_parent() -> None:
    """End this process as soon as the one that started it is gone: two must not train the same run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
