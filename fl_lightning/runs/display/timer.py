"""RoundTimer: the time and the memory of every round."""

from __future__ import annotations

import csv
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from itertools import chain
from statistics import fmean, median
from typing import Any, cast

import psutil
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from typing_extensions import override

from fl_lightning.engine.devices.strategy import mean_of_devices, seconds_waited
from fl_lightning.engine.rules.callback import Monitor
from fl_lightning.engine.rules.server import Server
from fl_lightning.engine.updates.cohort import Cohort
from fl_lightning.errors import ConfigurationError
from fl_lightning.files import whole
from fl_lightning.inside import inside
from fl_lightning.runs.catalogue import Metric
from fl_lightning.runs.folder.files import MEND, TIMINGS, RoundTime
from fl_lightning.runs.folder.run_folder import run_folder

MIB = 2**20
SECONDS = "seconds of a round"  # title of W&B's panels
WALL = "Wall time since the last round ended, the sum of the parts below."
WAITING = "Seconds of local training in which devices waited for others, the mean over the devices; 0 on one device."
PARTS = {
    "local": "Local training; with several devices, until the last device has sent its updates.",
    "server": "Aggregation, the server's step, and the rules' `refine` and `on_round_end`.",
    "monitors": "The hooks of all monitors, except `loss`, which is part of local training.",
    "rest": "Evaluation, logging, checkpoints, other callbacks of Lightning.",
}
RECENT_ROUNDS = 100  # number of last rounds from which the pace of a run is computed
_NAMES = [field.name for field in fields(RoundTime)]
_LATER = {field.name: str(field.default) for field in fields(RoundTime) if field.default is not MISSING}


class RoundTimer(Monitor):
    """Times every round, and writes ``timings.csv`` in the run folder: one row per round, see :class:`RoundTime`.

    Times differ from run to run and so have their own file: ``metrics.csv`` depends on the seed alone. Other loggers
    get the times as ``time/seconds``, ``time/local``, ``time/server``, ``time/monitors`` and ``time/rest``, and
    ``time/waiting``, a part of ``time/local``. To split a round correctly, RoundTimer must be the first of the
    Trainer's callbacks; the command line puts RoundTimer first.

    Attributes:
        rounds: times of this fit's last rounds, at most ``RECENT_ROUNDS``.
    """

    metrics = (
        Metric("time/seconds", "Seconds of a round", formula=WALL, panel=SECONDS, axis="seconds"),
        Metric(
            "time/waiting", "Seconds in which devices wait for others", formula=WAITING, panel="waiting", axis="seconds"
        ),
        *(
            Metric(
                f"time/{part}", f"Seconds of a round: {part}", formula=words, panel=f"{SECONDS} by part", axis="seconds"
            )
            for part, words in PARTS.items()
        ),
    )

    streams = True

    def __init__(self) -> None:
        self.rounds: deque[RoundTime] = deque(maxlen=RECENT_ROUNDS)

    @property
    def mean(self) -> float:
        """Mean seconds per round of this fit's last rounds."""
        return fmean(row.seconds for row in self.rounds)

    @property
    def medians(self) -> str:
        """Medians over this fit's last rounds as text, such as "1.84 s/round (local 93%, server 2%, monitors 1%)"."""
        whole = median(row.seconds for row in self.rounds)
        shares = []
        for name in ("local", "server", "monitors"):
            share = median(getattr(row, name) for row in self.rounds) / whole
            if share >= 0.005 or name != "monitors":
                shares.append(f"{name} {share:.0%}")
        return f"{whole:.2f} s/round ({', '.join(shares)})"

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._file = inside(run_folder(trainer), TIMINGS)
        self._kept = self._rows_until(cast(Server, pl_module).rounds_done)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = time.perf_counter()
        self.rounds.clear()
        self._writes = trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]  # set outside its __init__
        if self._writes:
            with whole(self._file) as part, part.open("w", newline="") as file:
                csv.writer(file).writerows([_NAMES, *self._kept])

    def _rows_until(self, rounds: int) -> list[list[str]]:
        """Read the rows up to a resumed checkpoint's round, without the incomplete row of a killed process."""
        if not self._file.exists() or not rounds:
            return []
        try:
            with self._file.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if None not in row.values()]
            rows = [row for row in rows if int(row["round"]) <= rounds]
            kept = []
            for row in rows:
                complete = _LATER | row  # a file of an earlier version lacks the later columns
                kept.append([complete[name] for name in _NAMES])
            all(map(float, chain.from_iterable(kept)))
        except (KeyError, ValueError, csv.Error):
            raise ConfigurationError(f"{self._file} is damaged: expected a row of numbers per round; {MEND}") from None
        return kept

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = _working_time(pl_module)
        self._looked = cast(Server, pl_module).seconds_looking
        self._waited = seconds_waited(trainer)
        self._arrived = math.inf  # a round whose only client is left out aggregates nothing

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        self._arrived = _working_time(orchestrator)
        return cohort

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._stepped = _working_time(pl_module)  # after a round's last batch, this is the end of the server's work

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        orchestrator = cast(Server, pl_module)
        if orchestrator.rounds_done <= trainer.current_epoch:
            return  # the round was stopped half-way
        now = time.perf_counter()  # after validation
        arrived = min(self._arrived, self._stepped)
        gpu = torch.cuda.max_memory_allocated(pl_module.device) if pl_module.device.type == "cuda" else 0
        row = RoundTime(
            round=orchestrator.rounds_done,
            seconds=now - self._ended,
            local=arrived - self._began,
            server=self._stepped - arrived,
            monitors=orchestrator.seconds_looking - self._looked,
            memory_mib=psutil.Process().memory_info().rss / MIB,
            gpu_mib=gpu / MIB,
            waiting=mean_of_devices(trainer, seconds_waited(trainer) - self._waited),
        )
        self.rounds.append(row)
        self._ended = now
        if self._writes:
            with self._file.open("a", newline="") as file:
                csv.writer(file).writerow([f"{value:.6g}" for value in asdict(row).values()])
        times = {"seconds": row.seconds, **row.parts, "waiting": row.waiting}
        _log(trainer, row.round, {f"time/{name}": value for name, value in times.items()})


def _working_time(orchestrator: LightningModule) -> float:
    """Read a clock, in seconds, that stands still while monitors look."""
    return time.perf_counter() - cast(Server, orchestrator).seconds_looking


def _log(trainer: Trainer, round: int, times: Mapping[str, float]) -> None:
    """Log times of a round to all loggers but those that write ``metrics.csv``."""
    for logger in trainer.loggers:
        if not isinstance(logger, CSVLogger):
            logger.log_metrics({**times, "round": float(round)}, step=round)
