"""RoundTimer: the parts of a round by a client, a rule and an evaluation of known length."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command import TINY, fit
from lightning.pytorch.loggers import CSVLogger
from toy import Linear, ToyData, trainer

import fl_lightning.runs.timer
from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator
from fl_lightning.runs.timer import RoundTimer

COLUMNS = ["round", "seconds", "local", "server", "memory_mib", "gpu_mib"]


class Clock(FederatedCallback):
    """A clock that stands still but where a round takes its time: a client 3 s, the server 5 s, what follows 7 s."""

    now = 0.0

    def on_client_end(self, orchestrator: FederatedOrchestrator, run: Any) -> None:
        self.now += 3

    def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
        self.now += 5
        return cohort

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.now += 7


def test_each_part_is_told_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients: 6 s of local training, 5 s of the server. What follows a round counts for the next one."""
    clock = Clock()
    monkeypatch.setattr(fl_lightning.runs.timer.time, "perf_counter", lambda: clock.now)
    run = trainer(RoundTimer(), clock, logger=CSVLogger(tmp_path), max_epochs=3)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=ToyData())
    monkeypatch.undo()
    table = pd.read_csv(Path(str(run.log_dir), "timings.csv"))
    assert list(table.columns) == COLUMNS
    assert list(table["round"]) == [1, 2, 3]
    assert list(table["local"]) == [6, 6, 6]
    assert list(table["server"]) == [5, 5, 5]
    assert list(table["seconds"]) == [11, 18, 18]
    assert (table["memory_mib"] > 10).all()


def test_a_resumed_run_goes_on_with_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of later rounds, and one that a killed process tore, are dropped."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    fit()
    file = Path("runs/tiny/version_0/timings.csv")
    before = file.read_text().splitlines()
    with file.open("a") as torn:
        torn.write("3,1,1,1,1,0\r\n4,1,")
    fit("--ckpt_path", "last", "--trainer.max_epochs", 4)
    after = file.read_text().splitlines()
    assert after[:3] == before[:3]
    assert [line.split(",")[0] for line in after[1:]] == ["1", "2", "3", "4"]
    assert after[3] != "3,1,1,1,1,0"
