"""RoundTimer: where a run's time goes."""

from __future__ import annotations

import csv
import time
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import psutil
import torch
from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from fl_lightning.engine.callback import Monitor
from fl_lightning.engine.cohort import Cohort
from fl_lightning.engine.server import Server
from fl_lightning.runs.folder import TIMINGS, run_folder

MIB = 2**20


@dataclass(frozen=True)
class RoundTime:
    """Time and memory of one round.

    Attributes:
        round: number of the round: 1, 2, …
        seconds: wall time since the previous round ended: local training, server, evaluation, checkpoints.
        local: seconds of local training; with several devices, until the last device has sent its updates.
        server: seconds from the end of local training until the new global model is ready, monitors included.
        memory_mib: resident memory of this process at the end of the round, in MiB.
        gpu_mib: peak memory of tensors on this process's GPU so far, in MiB; 0 without a GPU.
    """

    round: int
    seconds: float
    local: float
    server: float
    memory_mib: float
    gpu_mib: float


class RoundTimer(Monitor):
    """Times every round, and writes ``timings.csv`` in the run folder: one row per round, see :class:`RoundTime`.

    Times differ from run to run and so have their own file: ``metrics.csv`` depends on the seed alone. RoundTimer must
    be the first of the Trainer's callbacks to split a round correctly; the command line puts it there.

    Attributes:
        rounds: times of the rounds of this fit.
    """

    def __init__(self) -> None:
        self.rounds: list[RoundTime] = []

    @property
    def mean(self) -> float:
        """Mean seconds per round of this fit."""
        return sum(row.seconds for row in self.rounds) / len(self.rounds)

    @property
    def spoken(self) -> str:
        """Summary of this fit's rounds so far, such as "1.84 s/round (local 93%, server 2%)"."""
        total = sum(row.seconds for row in self.rounds)
        local, server = (sum(getattr(row, part) for row in self.rounds) / total for part in ("local", "server"))
        return f"{self.mean:.2f} s/round (local {local:.0%}, server {server:.0%})"

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.rounds, self._ended = [], time.perf_counter()
        self._file = run_folder(trainer) / TIMINGS
        self._writes = trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]  # set outside its __init__
        if self._writes:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            kept = (
                self._read(cast(Server, pl_module).rounds_done) if self._file.exists() else []
            )  # the rounds up to the resumed checkpoint
            names = [field.name for field in fields(RoundTime)]
            with self._file.open("w", newline="") as file:
                csv.writer(file).writerows([names, *kept])

    def _read(self, rounds: int) -> list[list[str]]:
        """Read the rows up to a round, without an incomplete row that a killed process may leave."""
        with self._file.open(newline="") as file:
            rows = list(csv.reader(file))[1:]
        return [row for row in rows if len(row) == len(fields(RoundTime)) and int(row[0]) <= rounds]

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = time.perf_counter()

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        self._arrived = time.perf_counter()
        return cohort

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._stepped = time.perf_counter()  # after a round's last batch, this is the end of the server's work

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done = cast(Server, pl_module).rounds_done
        if done <= trainer.current_epoch:
            return  # the round was stopped half-way
        now = time.perf_counter()  # after validation
        gpu = torch.cuda.max_memory_allocated(pl_module.device) if pl_module.device.type == "cuda" else 0
        row = RoundTime(
            round=done,
            seconds=now - self._ended,
            local=self._arrived - self._began,
            server=self._stepped - self._arrived,
            memory_mib=psutil.Process().memory_info().rss / MIB,
            gpu_mib=gpu / MIB,
        )
        self.rounds.append(row)
        self._ended = now
        if self._writes:
            with self._file.open("a", newline="") as file:
                csv.writer(file).writerow([f"{value:.6g}" for value in asdict(row).values()])
