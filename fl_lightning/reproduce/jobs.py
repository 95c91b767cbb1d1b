"""Jobs: cells with one seed each, which go on where they were stopped."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError, check_at_least
from fl_lightning.files import whole
from fl_lightning.fit.command import command
from fl_lightning.fit.messages import run_and_report
from fl_lightning.fit.read_config import config_of
from fl_lightning.inside import inside
from fl_lightning.report.compared.methods import differing_names
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.experiments.grid import option
from fl_lightning.runs.config.secrets import hidden_arguments
from fl_lightning.runs.config.settings import settings_fingerprint
from fl_lightning.runs.display.progress import ESTIMATE
from fl_lightning.runs.folder.checkpoints import last_of_run, sound_checkpoint
from fl_lightning.runs.folder.lock import held
from fl_lightning.runs.folder.run_folder import rounds_in
from fl_lightning.runs.reader import Run

FINGERPRINT_DIGITS = 16  # number of hexadecimal digits in a fingerprint of settings
LONGEST_NAME = 80  # largest number of characters of a cell's name in the name of its folder
FINISHED = "finished.json"  # name of the mark of a finished job, in the job's folder
LOG = "log.txt"  # name of the file with the output of the job's process
EXPERIMENT = "run"  # name of the folder of the run


@dataclass(frozen=True)
class Job:
    """One cell's training with one seed.

    Attributes:
        group: the experiment's id and the labels of the cell.
        arguments: the arguments of ``fl-lightning fit``, without seed and folder.
        seed: the run's seed.
        rounds: number of rounds of the run.
        folder: the job's folder; jobs of different experiments with the same settings and seed have the same folder.
        config: the run's whole config, as ``fit`` would read it.
    """

    group: tuple[str, ...]
    arguments: tuple[str, ...]
    seed: int
    rounds: int
    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the job in the progress display and in messages."""
        return f"{' '.join(self.group)} seed {self.seed}"

    @property
    def leaves_devices_open(self) -> bool:
        """Whether the run does not say which GPUs it takes."""
        return str(self.config.get("trainer", {}).get("devices", "auto")) in ("auto", "1")

    @property
    def finished(self) -> bool:
        """Whether the run has been trained to its end."""
        return inside(self.folder, FINISHED).is_file()

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts about a finished job: ``seconds`` (see :attr:`seconds`), ``seed``, ``arguments``, ``versions``."""
        path = inside(self.folder, FINISHED)
        try:
            return dict(json.loads(path.read_text()))
        except (TypeError, ValueError):
            raise ConfigurationError(f"{path} is damaged: delete it, and the run is trained again") from None

    @property
    def seconds(self) -> float:
        """Seconds that a finished job took, over all processes that trained it.

        The mark of a job that 0.3.0 finished has the seconds of its last process: its rounds may have taken longer.
        """
        return max(float(self.facts["seconds"]), self.seconds_of_rounds)

    @property
    def seconds_of_rounds(self) -> float:
        """Seconds that the rounds trained so far took, without what a process needs to start."""
        timings = self.run.timings
        return float(timings["seconds"].sum()) if len(timings) else 0.0

    @property
    def run(self) -> Run:
        """The run that the job trains, read anew until it is finished; the run's folder may not exist yet."""
        # A Run keeps what it has read: of a run under way, that must not be what the tables show in the end.
        return self._whole_run if self.finished else Run(self._run_folder)

    @cached_property
    def _whole_run(self) -> Run:
        return Run(self._run_folder)

    @property
    def _run_folder(self) -> Path:
        return self.folder / EXPERIMENT / "version_0"

    @property
    def rounds_done(self) -> int:
        """Number of rounds trained so far."""
        return rounds_in(self.run.folder)

    @property
    def log(self) -> Path:
        """The file with the output of the job's process."""
        return inside(self.folder, LOG)

    @property
    def failure(self) -> str:
        """One line about a failed job: its name, the last line of its log, and the path of the log."""
        last_words = next(reversed(self._lines), "the run left no message")
        return f"failed: {self.name}: {last_words} (full log: {self.log})"

    @property
    def estimate(self) -> str | None:
        """The log's last line that foretells how long a round and the run take; None before the first client."""
        return next((line for line in reversed(self._lines) if line.startswith(ESTIMATE)), None)

    @property
    def _lines(self) -> list[str]:
        return self.log.read_text(errors="replace").strip().splitlines() if self.log.is_file() else []


Pairs = Sequence[tuple[Cell, Job]]  # the jobs of an experiment, each with its cell
Planned = Sequence[tuple[Experiment, Pairs]]  # experiments, each with the jobs of its cells


def differing_axes(pairs: Pairs) -> list[str]:
    """Return the axes of the grid on which the labels of the cells differ, or that some cells lack."""
    return differing_names([cell.labels for cell, _ in pairs])


def finished_by_cell(pairs: Pairs) -> list[tuple[Mapping[str, Any], list[Job]]]:
    """Return the labels of each cell with its finished jobs, one for each seed, in the order of the cells."""
    # By labels and seed, because a sweep may name a value twice: its cell and its runs count once.
    cells: dict[tuple[tuple[str, Any], ...], dict[int, Job]] = {}
    for cell, job in pairs:
        if job.finished:
            cells.setdefault(tuple(cell.labels.items()), {})[job.seed] = job
    return [(dict(labels), list(jobs.values())) for labels, jobs in cells.items()]


class Folders:
    """Finds the folders of cells, ``<name>-<fingerprint>``, by the fingerprint of their settings.

    A cell keeps its existing folder, whatever the name before the fingerprint: another table may have chosen the name.

    Args:
        folder: the folder of all cells, which need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []
        # In reverse order, so that of two folders with one fingerprint the first by name is the cell's.
        self._known = {path.name[-FINGERPRINT_DIGITS:]: path for path in paths}

    def of(self, fingerprint: str, name: str) -> Path:
        """Return a cell's folder by its fingerprint; a new folder begins with ``name``, made safe for file systems.

        >>> Folders(Path("runs")).of("0123456789abcdef", "fedlaw/table-1, alpha 0.1, FedProx(mu=0.1) + GH").name
        'fedlaw-table-1-alpha-0.1-FedProx-mu=0.1+GH-0123456789abcdef'
        """
        joined = re.sub(r"\W*\+\W*", "+", name)
        safe = re.sub(r"[^A-Za-z0-9.+=_]+", "-", joined)[:LONGEST_NAME].strip("-.")
        return self._known.setdefault(fingerprint, self.folder / f"{safe}-{fingerprint}")


def plan(
    group: Sequence[str], arguments: Sequence[str], seeds: Sequence[int], folders: Folders, name: str
) -> list[Job]:
    """Plan the jobs of one cell, one job per seed.

    Args:
        group: the experiment's id and the labels of the cell.
        arguments: the arguments of ``fl-lightning fit``: a config and options.
        seeds: the runs' seeds.
        folders: the folders of all cells.
        name: the name of the cell for readers, with which a new folder begins.

    Raises:
        ConfigurationError: ``fit`` would refuse the arguments.
    """
    config = config_of(arguments)
    folder = folders.of(settings_fingerprint(config), name)
    rounds = config["trainer"]["max_epochs"]
    check_at_least(1, **{"trainer.max_epochs": rounds})
    return [Job(tuple(group), tuple(arguments), seed, rounds, folder / f"seed_{seed}", config) for seed in seeds]


def train_job(job: Job, log_file: Path) -> int:
    """Train one job in this process, from where an earlier process stopped; a file gets the process's output.

    Returns:
        The exit status of the fit.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    log = log_file.open("a")
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log.fileno(), stream.fileno())
    return int(run_and_report(lambda arguments: _fit(job, arguments), ["fit", *job.arguments]))


def _fit(job: Job, arguments: Sequence[str]) -> int:
    """Train one job, unless another process trains the job or has finished the job meanwhile."""
    with held(job.folder):
        if job.finished:
            return 0
        began = time.monotonic()
        try:
            clear_run_without_round(job)
            before = job.seconds_of_rounds  # of earlier processes
            status = command([*arguments, *_own_arguments(job)])
        finally:
            atexit._run_exitfuncs()  # multiprocessing exits without these: W&B would not close its file
        if status == 0:
            facts = {
                "seconds": round(before + time.monotonic() - began, 1),
                "seed": job.seed,
                "arguments": hidden_arguments(job.arguments),
                "versions": {name: version(name) for name in ("fl-lightning", "torch", "lightning")},
            }
            # Whole or not at all: the mark of a finished job must not be half a file after a kill.
            with whole(inside(job.folder, FINISHED)) as part:
                part.write_text(json.dumps(facts, indent=1))
        return status


def clear_run_without_round(job: Job) -> None:
    """Delete the folder of a run that was stopped in its first round, and so has no checkpoint to go on from."""
    if job.run.folder.is_dir() and not last_of_run(job.run.folder).is_file():
        with held(job.run.folder):  # refused while a fit of the user's own trains the run
            shutil.rmtree(job.run.folder.parent)


def _own_arguments(job: Job) -> list[str]:
    """Make the arguments for seed, folder, W&B, and the checkpoint from which the run goes on, if there is one."""
    arguments = [
        f"--seed_everything={job.seed}",
        f"--trainer.default_root_dir={job.folder}",
        f"--experiment={EXPERIMENT}",
        *wandb_arguments(job),
    ]
    if last_of_run(job.run.folder).is_file():
        arguments.append(f"--ckpt_path={sound_checkpoint(job.run.folder)}")
    return arguments


def wandb_arguments(job: Job) -> list[str]:
    """Make the arguments for W&B, if used: cells are groups, labels are tags, and a continued job keeps its W&B run."""
    if not any("WandbLogger" in argument for argument in job.arguments):
        return []
    settings = {
        "group": " ".join(job.group),
        "name": job.name,
        "tags": [*job.group, f"seed {job.seed}"],
        "id": f"{job.folder.parent.name[-FINGERPRINT_DIGITS:]}-{job.seed}",
        "resume": "allow",
        "save_dir": str(job.folder),
    }
    return [option(f"trainer.logger.{name}", value) for name, value in settings.items()]
