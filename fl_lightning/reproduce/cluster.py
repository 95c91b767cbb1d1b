"""OnCluster: trains each job as a job of SLURM, by submitit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from fl_lightning.errors import ConfigurationError
from fl_lightning.inside import inside
from fl_lightning.reproduce.jobs import Job, train_job
from fl_lightning.reproduce.workers import POLL_S, Workers
from fl_lightning.runs.folder.slurm import alive
from fl_lightning.runs.folder.yaml_text import read_yaml

SUBMITIT = "submitit"  # in the folder of all results, the folder of submitit's files
SUBMITTED = "submitted.txt"  # in a job's folder, the id of its job in SLURM
REQUEUES = 10**6  # of a job whose time is up: if submitit gave up, it would raise an error in the client that trains
ASK_S = 10  # seconds from one question to SLURM to the next
OWN = "slurm_array_parallelism"  # the parameter of submitit that --jobs sets


@dataclass(frozen=True)
class Training:
    """The function that submitit calls on a node. A requeued one goes on from the run's last checkpoint.

    Attributes:
        job: the job to train.
    """

    job: Job

    def __call__(self) -> int:
        """Train the job, and return the exit status of its fit."""
        return train_job(self.job, self.job.log)

    def checkpoint(self) -> Any:
        """Return what is to be called after a requeue."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class OnCluster(Workers):
    """Trains jobs as jobs of SLURM, which gets all of them at once, as one array.

    Jobs that an earlier command has submitted, and that it did not live to see end, are waited for.

    Args:
        file: YAML file with submitit's parameters (``timeout_min``, ``mem_gb``, ``gpus_per_node``,
            ``slurm_partition``, …).
        at_once: number of jobs that may run at a time.
        out: folder of all results, which the nodes must see.

    Raises:
        ConfigurationError: submitit is not installed, there is no such file or parameter, or there is no SLURM.
    """

    def __init__(self, file: Path, at_once: int, out: Path) -> None:
        import submitit

        parameters = read_parameters(file)
        self._at_once = at_once
        try:
            self._executor = submitit.AutoExecutor(out.absolute() / SUBMITIT, "slurm", slurm_max_num_timeout=REQUEUES)
            self._executor.update_parameters(**parameters, **{OWN: at_once})
        except Exception as error:  # submitit raises NameError, RuntimeError, ValueError, AssertionError and its own
            raise ConfigurationError(f"{file}: {' '.join(str(error).split())}") from error
        self._busy: dict[Path, Job] = {}  # by folder
        self._ids: dict[Path, str] = {}  # of the jobs in SLURM, by folder
        self._asked = time.monotonic()

    @property
    @override
    def about(self) -> str:
        return f"the runs are jobs of SLURM, {self._at_once} at a time"

    @property
    @override
    def busy(self) -> Sequence[Job]:
        return list(self._busy.values())

    @override
    def room(self, waiting: int) -> int:
        return waiting

    @override
    def start(self, jobs: Sequence[Job]) -> None:
        self._busy |= {job.folder: job for job in jobs}
        self._ids |= submitted_before(jobs)
        new = [job for job in jobs if job.folder not in self._ids]
        if not new:
            return
        with self._executor.batch():
            submitted = [self._executor.submit(Training(job)) for job in new]
        for job, own in zip(new, submitted, strict=True):
            self._ids[job.folder] = str(own.job_id)
            job.folder.mkdir(parents=True, exist_ok=True)
            inside(job.folder, SUBMITTED).write_text(str(own.job_id))

    @override
    def collect(self) -> list[Job]:
        time.sleep(POLL_S)
        over = {folder for folder, job in self._busy.items() if job.finished}
        if self._ids and time.monotonic() - self._asked > ASK_S:
            still = alive(self._ids.values())
            over |= {folder for folder, id in self._ids.items() if id not in still}
            self._asked = time.monotonic()
        for folder in over:
            self._ids.pop(folder, None)
        return [self._busy.pop(folder) for folder in over]

    @override
    def stop(self) -> None:
        import submitit

        for id in self._ids.values():
            submitit.SlurmJob(self._executor.folder, id).cancel(check=False)


def submitted_before(jobs: Sequence[Job]) -> dict[Path, str]:
    """Return the ids, by folder, of the jobs that an earlier command has submitted to SLURM, and that live."""
    known: dict[Path, str] = {}
    for job in jobs:
        with suppress(FileNotFoundError):
            known[job.folder] = inside(job.folder, SUBMITTED).read_text()
    living = alive(known.values()) if known else set()
    return {folder: id for folder, id in known.items() if id in living}


def read_parameters(file: Path) -> dict[str, Any]:
    """Read the file of ``--on``; refuse what is not a mapping, and what ``--jobs`` says."""
    try:
        content = read_yaml(file, file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--on {file}: {error.strerror}") from None
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{file}: expected submitit's parameters, as in timeout_min: 60, got {content}")
    if OWN in content:
        raise ConfigurationError(f"{file}: {OWN} is what --jobs says: leave it out")
    parameters = dict(content)
    if parameters.pop("cluster", "slurm") != "slurm":
        raise ConfigurationError(
            f"{file}: expected cluster: slurm, got {content['cluster']}: leave --on out to train on this machine, "
            "--jobs runs at a time"
        )
    return parameters
