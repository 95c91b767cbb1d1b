"""RoundTimer: the parts of a round by a client, a rule and an evaluation of known length."""

import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command import TINY, fit
from lightning.pytorch.loggers import CSVLogger
from toy import Linear, ToyData, trainer

from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator
from fl_lightning.runs.timer import RoundTimer

COLUMNS = ["round", "seconds", "local", "server", "memory_mib", "gpu_mib"]


class Slow(FederatedCallback):
    """Sleeps where it is told to, and nowhere else."""

    def __init__(self, local: float, server: float, after: float) -> None:
        self.local, self.server, self.after = local, server, after

    def on_client_end(self, orchestrator: FederatedOrchestrator, run: Any) -> None:
        time.sleep(self.local)

    def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
        time.sleep(self.server)
        return cohort

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        time.sleep(self.after)


@pytest.mark.parametrize("part", ["local", "server", "after"])
def test_each_part_is_told_from_the_others(part: str, tmp_path: Path) -> None:
    """Two clients that sleep 0.15 s each are 0.3 s of local training and none of the server's, and so on.

    A sleep lasts at least as long as asked for; the other part, with nothing to do, is far below it, or the parts would
    be mixed up. What comes after a round counts for the next one.
    """
    seconds = 0.15 if part == "local" else 0.3
    timer = RoundTimer()
    slow = Slow(**{"local": 0.0, "server": 0.0, "after": 0.0, part: seconds})
    run = trainer(timer, slow, logger=CSVLogger(tmp_path), max_epochs=2)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=ToyData())
    table = pd.read_csv(Path(str(run.log_dir), "timings.csv"))
    last = table.iloc[-1]
    assert list(table.columns) == COLUMNS
    assert list(table["round"]) == [1, 2]
    assert (last["local"] >= 0.3) == (part == "local")
    assert (last["server"] >= 0.3) == (part == "server")
    assert last["seconds"] >= max(0.3, last["local"] + last["server"])
    assert last["memory_mib"] > 10


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
