"""What the jobs have reached, and how long the rest takes."""

import dataclasses
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from lib.job_folders import finished, under_way, waiting

from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.jobs import Job, Planned
from fl_lightning.reproduce.progress.tracker import Tracker


class Clock:
    """A clock that is set."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all that happens in a test."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def planned(*cells: Sequence[Job], measures: tuple[str, ...] = ("val/top1",), id: str = "mine") -> Planned:
    """One experiment with a cell for each list of jobs, at alpha 1, 2, …"""
    experiment = Experiment(id, "a source", "a metric", "", (), "mine.yaml", measures)
    points = [Cell({"method": "GH", "alpha": number}, ()) for number in range(1, len(cells) + 1)]
    return [(experiment, [(cell, job) for cell, jobs in zip(points, cells, strict=True) for job in jobs])]


def test_rows_are_cells_named_by_what_differs(tmp_path: Path) -> None:
    """All cells have the same method, so that only alpha tells them apart; two experiments also need their ids."""
    one, two = [waiting(tmp_path / "one", 1), waiting(tmp_path / "one", 2)], [waiting(tmp_path / "two")]
    tracker = Tracker(planned(one, two), 1)
    assert [(row.name, row.jobs) for row in tracker.rows] == [("alpha 1", one), ("alpha 2", two)]
    both = Tracker([*planned(one), *planned(one, two, id="other")], 1)
    assert [row.name for row in both.rows] == ["mine", "other alpha 1", "other alpha 2"]
    assert both.jobs == [*one, *two], "a job of two experiments is one job"


def test_a_value_twice_in_a_sweep_is_one_job(tmp_path: Path) -> None:
    job = waiting(tmp_path)
    ((experiment, pairs),) = planned([job])
    (row,) = Tracker([(experiment, [*pairs, *pairs])], 1).rows
    assert row.jobs == [job]


def test_values_of_finished_jobs_and_of_jobs_under_way(tmp_path: Path) -> None:
    """The last of a finished job's rounds, in per cent for a paper's measure; else the newest value that is there."""
    jobs = [
        finished(tmp_path, 1, top1=[0.25, 0.5]),
        under_way(tmp_path, 2, top1=[0.25, 0.75, math.nan]),
        waiting(tmp_path, 3),
        finished(tmp_path, 4, top1=[0.25]),
    ]
    (jobs[3].run.folder / "metrics.csv").write_text("round,val/to")  # damaged
    for measure, factor in (("val/top1", 1), ("top1", 100)):
        tracker = Tracker(planned(jobs, measures=(measure,)), 1)
        tracker.update([jobs[1]], [])
        (row,) = tracker.rows
        assert [tracker.value(row, job) for job in jobs] == pytest.approx(
            [0.5 * factor, 0.75 * factor, math.nan, math.nan], nan_ok=True
        )
        assert [tracker.rounds(job) for job in jobs] == [2, 3, 0, 1]


def test_what_is_new_is_told_once(tmp_path: Path) -> None:
    before, now, lost = finished(tmp_path, 1), under_way(tmp_path, 2, top1=[0.5]), waiting(tmp_path, 3)
    tracker = Tracker(planned([before, now, lost]), 2)
    assert tracker.update([now, lost], []) == ([], [])
    (now.folder / "finished.json").write_text(json.dumps({"seconds": 60.0}))
    assert tracker.update([now], [lost]) == ([now], [lost])
    assert list(tracker.finished) == [before.folder, now.folder]
    assert tracker.busy == [], "its process has not ended yet"
    assert tracker.update([], [lost]) == ([], [])


def test_time_left_of_a_few_jobs(tmp_path: Path, clock: Clock) -> None:
    """Rounds of 40 s; two jobs have done two and three of four rounds, a third waits, with two processes.

    The first process needs 80 s for the first job; the second 40 s for the second job, and then 160 s for the third.
    Nothing is known before any round. A failed job takes no time.
    """
    tracker = Tracker(planned([waiting(tmp_path / "new")]), 2)
    tracker.update([], [])
    assert tracker.left() is None
    jobs = [under_way(tmp_path, 1, top1=[0.5] * 2), under_way(tmp_path, 2, top1=[0.5] * 3), waiting(tmp_path, 3)]
    tracker = Tracker(planned(jobs), 2)
    tracker.update(jobs[:2], [])
    assert tracker.left() == 200
    tracker.update(jobs[:2], jobs[2:])
    assert tracker.left() == 80
    assert tracker.done() == 2 / 4 + 3 / 4


def test_time_left_runs_down_while_rounds_take_long(tmp_path: Path, clock: Clock) -> None:
    """One job with two rounds of 40 s left: 80 s, 30 s later 50 s, and 40 s as long as the third round goes on."""
    job = under_way(tmp_path, top1=[0.5] * 2)
    tracker = Tracker(planned([job]), 1)
    left = []
    for clock.seconds in (0, 30, 100):
        tracker.update([job], [])
        left.append(tracker.left())
    assert left == [80, 50, 40]
    clock.seconds = 110
    assert tracker.left() == 30, "between two updates"


def test_each_cell_has_its_own_pace(tmp_path: Path, clock: Clock) -> None:
    """Finished runs of four rounds took 160 s and 40 s, their start included.

    Another seed of each takes as long; a cell without a round takes their mean, 100 s.
    """
    slow, fast = under_way(tmp_path / "slow", top1=[0.5]), under_way(tmp_path / "fast", top1=[0.5])
    for job, seconds in ((slow, 160), (fast, 40)):
        (job.folder / "finished.json").write_text(json.dumps({"seconds": seconds}))
    rest = [waiting(tmp_path / "slow", 2), waiting(tmp_path / "fast", 2), waiting(tmp_path / "new")]
    tracker = Tracker(planned([slow, rest[0]], [fast, rest[1]], [rest[2]]), 1)
    tracker.update([], [])
    assert tracker.left() == 160 + 40 + 100


def test_the_first_estimate_is_told_once(tmp_path: Path) -> None:
    """As soon as a job's log has it; an option of the command joins the advice on long runs."""
    jobs, told = [waiting(tmp_path, seed) for seed in (1, 2)], []
    tracker = Tracker(planned(jobs), 2, "--scale laptop")
    estimate = "estimate: 2 minutes a round; make it shorter by --a"
    for job, text in zip(jobs, ("loading Digits …", estimate), strict=True):
        job.folder.mkdir(parents=True)
        job.log.write_text(f"{text}\nround 1/4\n")
    for busy in (jobs[:1], jobs, jobs):
        tracker.update(busy, [])
        told.append(tracker.news)
    assert told == [[], [f"the first of 2 runs: {estimate} or --scale laptop"], []]
    alone = Tracker(planned(jobs[1:]), 1)
    alone.update(jobs[1:], [])
    assert alone.news == [estimate]


def test_the_first_round_chooses_the_measure_of_a_sweep_that_names_none(tmp_path: Path) -> None:
    """The usual one until then, and for runs that log it."""
    new, usual = waiting(tmp_path / "new"), under_way(tmp_path / "usual", top1=[0.5], **{"val/mae": [2.0]})
    regression = under_way(tmp_path / "other", **{"val/mae": [2.0]})
    for job, chosen in ((usual, "val/top1"), (regression, "val/mae")):
        tracker = Tracker(planned([new], [job], measures=()), 1)
        assert [row.measure for row in tracker.rows] == ["val/top1"] * 2
        tracker.update([job], [])
        assert [row.measure for row in tracker.rows] == [chosen] * 2


def test_measures_are_looked_for_after_the_first_validation(tmp_path: Path) -> None:
    """A run that validates every second round has logged no val/top1 after the first, which is no mistake."""
    job = under_way(tmp_path, 1, **{"train/loss": [0.5]})
    rare = dataclasses.replace(job, config={"trainer": {"check_val_every_n_epoch": 2}})
    trackers = [Tracker(planned([each]), 1) for each in (rare, job)]
    for tracker, each in zip(trackers, (rare, job), strict=True):
        tracker.update([each], [])
    assert trackers[0].news == []
    assert "the runs log no val/top1" in trackers[1].news[0]
