"""Trials: train one round of each kind of cell in a temporary folder, to learn its metrics, time and file sizes."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.jobs import Job, train
from fl_lightning.reproduce.progress import announce
from fl_lightning.reproduce.tracker import pace

BY_ROUND = (".csv", ".txt")  # suffixes of the files of a run that grow with every round


@dataclass(frozen=True)
class Trial:
    """Holds the metrics, time and file sizes of a kind of cell, from one round or from a finished run.

    Attributes:
        metrics: names of the metrics.
        start: seconds until the first round begins.
        round: seconds of a round.
        once: bytes of the files of a run that do not grow with the rounds.
        each: bytes that a round adds to the files.
    """

    metrics: frozenset[str]
    start: float
    round: float
    once: float
    each: float

    def seconds(self, rounds: int) -> float:
        """Seconds of a run, or of the rest of a run."""
        return self.start + rounds * self.round

    def size(self, rounds: int) -> float:
        """Bytes of the files of a run."""
        return self.once + rounds * self.each


class Trials:
    """Tries one round of each kind of cell that is asked for, once.

    The runs of a kind have the same metrics and take about the same time. Runs that differ only in seed, partition,
    corruption, or in float arguments of models and rules (learning rates, weights of penalties), are of one kind.

    Args:
        jobs: all jobs. A kind with a finished job needs no trial.

    Attributes:
        failures: one line for each trial that failed.
        tried: number of trials that did not fail.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs: dict[str, list[Job]] = {}
        for job in jobs:
            self._jobs.setdefault(kind_of(job.config), []).append(job)
        self._found: dict[str, Trial | None] = {}
        self.failures: list[str] = []
        self.tried = 0

    def kinds(self, jobs: Iterable[Job]) -> list[str]:
        """Return the kinds of some of the jobs, in the order of the jobs."""
        return list(dict.fromkeys(kind_of(job.config) for job in jobs))

    def is_known(self, kind: str) -> bool:
        """Tell whether a kind needs no trial."""
        return kind in self._found or any(job.finished for job in self._jobs[kind])

    def of(self, kind: str) -> Trial | None:
        """Return the trial of a kind, which is run now if necessary; None if the trial failed."""
        if kind not in self._found:
            self._found[kind] = finished(self._jobs[kind]) or self._try(self._jobs[kind][0])
        return self._found[kind]

    def _try(self, job: Job) -> Trial | None:
        announce(f"trying a round of {' '.join(job.group)} …")
        try:
            trial = try_round(job)
        except ConfigurationError as error:
            self.failures.append(str(error))
            return None
        self.tried += 1
        return trial


def kind_of(config: Mapping[str, Any]) -> str:
    """Return the kind of a run with a config as text, see :class:`Trials`."""
    data = {name: each for name, each in _arguments(config["data"]).items() if name not in ("partition", "corruption")}
    trainer = {**config["trainer"], "callbacks": _without_floats(config["trainer"]["callbacks"])}
    parts = (config["data"]["class_path"], data, trainer, _without_floats(config["model"]))
    return json.dumps(parts, sort_keys=True, default=str)


def _without_floats(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_floats(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_floats(each) for each in value]
    return None if isinstance(value, float) else value


def _arguments(part: Any) -> Mapping[str, Any]:
    return (part.get("init_args") or {}) if isinstance(part, Mapping) else {}


def finished(jobs: Sequence[Job]) -> Trial | None:
    """Measure a finished run among jobs; None if no job is finished, or the run's files are damaged."""
    for job in jobs:
        try:
            if job.finished and (seconds := pace(job)) is not None:
                size = float(sum(_sizes(job.folder).values()))
                return Trial(frozenset(job.run.names), 0.0, seconds, size, 0.0)
        except ConfigurationError:  # the tables, made at the end, report the damage
            continue
    return None


def try_round(job: Job) -> Trial:
    """Train one whole round of a job in a temporary folder, evaluate once, and delete the folder.

    Raises:
        ConfigurationError: the round failed; the message is the last line of its log.
    """
    with tempfile.TemporaryDirectory(prefix="fl-lightning-") as folder:
        config = Path(folder, "trial.yaml")
        config.write_text(yaml.safe_dump(_for_one_round(job.config)), encoding="utf-8")
        trial = dataclasses.replace(job, arguments=(f"--config={config}",), rounds=1, folder=Path(folder, "job"))
        if failed := train([trial], 1, lambda *_: None):
            raise ConfigurationError(f"{' '.join(job.group)}: {failed[0].last_words}")
        return _measured(trial, job.config)


def _for_one_round(config: Mapping[str, Any]) -> dict[str, Any]:
    """Change a config to one round in which everything is logged, to the run folder alone."""
    changed: dict[str, Any] = json.loads(json.dumps(config))
    changed["trainer"] |= {"max_epochs": 1, "min_epochs": None, "check_val_every_n_epoch": 1, "logger": False}
    for arguments in _of_callbacks(changed):
        if arguments.get("every"):
            arguments["every"] = 1
    return changed


def _of_callbacks(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    callbacks = config["trainer"]["callbacks"] or []
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        if isinstance(callback, dict):
            yield callback.get("init_args") or {}


def _measured(trial: Job, config: Mapping[str, Any]) -> Trial:
    """Read the run folder of a trial; spread the work that is not done in every round over the rounds of a run."""
    times = trial.run.timings.iloc[-1]
    evaluated = 1 / (config["trainer"]["check_val_every_n_epoch"] or 1)
    looked = max((1 / every for each in _of_callbacks(config) if (every := each.get("every"))), default=1.0)
    seconds = times["local"] + times["server"] + looked * times["monitors"] + evaluated * times["rest"]
    start = max(float(trial.facts["seconds"]) - float(times["seconds"]), 0.0)
    sizes = _sizes(trial.folder)
    tables = [path for path in sizes if path.suffix in BY_ROUND and path != trial.log]
    growing = sum(map(len, (line for path in tables for line in path.read_bytes().splitlines(keepends=True)[-1:])))
    arrays = sum(size for path, size in sizes.items() if path.stem.endswith("_1") and path.suffix == ".npz")
    once = sum(sizes.values()) - growing - arrays
    return Trial(frozenset(trial.run.names), start, float(seconds), once, growing + looked * arrays)


def _sizes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
