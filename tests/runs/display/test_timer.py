"""RoundTimer: the parts of a round by a client, a rule, monitors and an evaluation of known length."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lib.toy import Linear, Quadratic, ToyData, trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fl_lightning.runs.display.timer
from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator, Monitor
from fl_lightning.runs.display.timer import RoundTimer
from fl_lightning.runs.folder.files import RoundTime
from fl_lightning.runs.folder.run_folder import RunFolder

COLUMNS = ["round", "seconds", "local", "server", "monitors", "memory_mib", "gpu_mib", "waiting"]
PARTS = ["seconds", "local", "server", "monitors", "rest"]


class Clock(FederatedCallback):
    """A clock that stands still but where a round takes its time.

    A client takes 3 s; the server 5 s to aggregate, 2 s for its step, 1 s to refine the model; what follows 7 s.
    """

    now = 0.0

    def on_client_end(self, orchestrator: FederatedOrchestrator, run: Any) -> None:
        self.now += 3

    def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
        self.now += 5
        return cohort

    def update(self, orchestrator: FederatedOrchestrator, cohort: Cohort, update: Any) -> Any:
        self.now += 2
        return update

    def refine(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
        self.now += 1

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.now += 7


class Looking(Monitor):
    """Looks for 10 s before a client, 20 s after it, 40 s before the server's step and 80 s after it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_client_start(self, orchestrator: Any, run: Any) -> None:
        self.clock.now += 10

    def on_client_end(self, orchestrator: Any, run: Any) -> None:
        self.clock.now += 20

    def aggregate(self, orchestrator: Any, cohort: Cohort) -> Cohort:
        self.clock.now += 40
        return cohort

    def on_round_end(self, orchestrator: Any, cohort: Cohort) -> None:
        self.clock.now += 80


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fl_lightning.runs.display.timer.time, "perf_counter", lambda: clock.now)
    return clock


def test_each_part_is_told_from_the_others(tmp_path: Path, clock: Clock) -> None:
    """Two clients: 2 · 3 s of local training, 5 + 2 + 1 s of the server, 2 · (10 + 20) + 40 + 80 s of the monitor.

    What follows a round counts for the next one.
    """
    timer = RoundTimer()
    run = trainer(timer, Looking(clock), clock, logger=CSVLogger(tmp_path), rounds=3)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=ToyData())
    table = pd.read_csv(Path(str(run.log_dir), "timings.csv"))
    assert list(table.columns) == COLUMNS
    assert list(table["round"]) == [1, 2, 3]
    assert list(table["local"]) == [6, 6, 6]
    assert list(table["server"]) == [8, 8, 8]
    assert list(table["monitors"]) == [180, 180, 180]
    assert list(table["seconds"]) == [194, 201, 201]
    assert (table["memory_mib"] > 10).all()
    assert timer.medians == "201.00 s/round (local 3%, server 4%, monitors 90%)"
    assert timer.mean == (194 + 201 + 201) / 3


@pytest.mark.parametrize(
    ("seconds", "mean", "spoken"),
    [
        # two rounds of 2 s, and one whose monitor looked for 20 s
        ([(2.0, 0.0), (2.0, 0.0), (22.0, 20.0)], 26 / 3, "2.00 s/round (local 50%, server 5%)"),
        # of a long run, the last 100 rounds alone
        ([(1.0, 0.0)] * 150 + [(2.0, 0.0)] * 100, 2.0, "2.00 s/round (local 50%, server 5%)"),
    ],
)
def test_a_run_tells_the_pace_of_its_last_rounds(seconds: list[tuple[float, float]], mean: float, spoken: str) -> None:
    """The mean foretells the rest; the medians are told, so that one slow round does not speak for all."""
    timer = RoundTimer()
    timer.rounds.extend(RoundTime(n, whole, 1.0, 0.1, looked, 0.0, 0.0) for n, (whole, looked) in enumerate(seconds))
    assert timer.mean == pytest.approx(mean)
    assert timer.medians == spoken


def test_other_loggers_get_the_times_and_metrics_csv_does_not(tmp_path: Path, clock: Clock) -> None:
    """Round 2 of one client's data in every part, as in timings.csv; the rest are the 7 s after round 1."""
    board = TensorBoardLogger(tmp_path)
    run = trainer(RoundTimer(), Looking(clock), clock, logger=[RunFolder(tmp_path), board], rounds=2)
    run.fit(FederatedOrchestrator(Linear(2)), datamodule=ToyData())
    board.experiment.flush()
    events = EventAccumulator(board.log_dir).Reload()
    logged = {name: {each.step: each.value for each in events.Scalars(f"time/{name}")} for name in PARTS}
    assert {name: values[2] for name, values in logged.items()} == dict(zip(PARTS, [201, 6, 8, 180, 7], strict=True))
    assert all(set(values) == {1, 2} for values in logged.values())
    assert "time/" not in Path(str(run.log_dir), "metrics.csv").read_text()


class Failing(Quadratic):
    """Its only client fails in round 1."""

    def on_train_start(self) -> None:
        if self.trainer.lightning_module.round == 1:  # type: ignore[operator]
            raise ValueError("no data")


def test_a_skipped_round_has_its_time(tmp_path: Path) -> None:
    """All is local: nothing is aggregated."""
    timer = RoundTimer()
    run = trainer(timer, default_root_dir=tmp_path, rounds=2)
    with pytest.warns(UserWarning, match="round 1 is skipped"):
        run.fit(FederatedOrchestrator(Failing()), datamodule=ToyData(participation=1))
    first, second = timer.rounds
    assert first.server == 0 < first.local < first.seconds
    assert second.server > 0


def test_a_resumed_run_goes_on_with_its_rows(tmp_path: Path) -> None:
    """Rows of later rounds, and one that a killed process tore, are dropped."""
    run, orchestrator = trainer(RoundTimer(), default_root_dir=tmp_path, rounds=2), FederatedOrchestrator(Quadratic())
    run.fit(orchestrator, datamodule=ToyData())
    file = tmp_path / "timings.csv"
    before = file.read_text().splitlines()
    with file.open("a") as torn:
        torn.write("3,1,1,1,1,1,0\r\n4,1,")
    run.fit_loop.max_epochs = 4
    run.fit(orchestrator, datamodule=ToyData())
    after = file.read_text().splitlines()
    assert after[:3] == before
    assert [line.split(",")[0] for line in after[1:]] == ["1", "2", "3", "4"]
    assert after[3] != "3,1,1,1,1,1,0"
