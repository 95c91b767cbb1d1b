"""Progress of many runs: a table that fits the terminal, lines elsewhere, failures at once."""

import io
import json
import re
from pathlib import Path

import pytest
from lib.command import TINY, run
from lib.job_folders import finished, under_way, waiting
from rich.console import Console

import fl_lightning.runs.display.progress
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.jobs import Job, Planned
from fl_lightning.reproduce.progress.display import lines_on_finished, table_of_cells, train_with_progress
from fl_lightning.reproduce.progress.tracker import Tracker
from fl_lightning.reproduce.workers import Here

GRID = "data.partition=[{class_path: IID}, {class_path: ClassesPerClient, init_args: {classes: 11}}]"


def sixty(folder: Path) -> Planned:
    """60 cells with one job each: 10 are finished, the 31st is under way in round 3 of 4, the others wait."""
    jobs: list[Job] = []
    for number in range(1, 61):
        here = folder / f"cell_{number}"
        if number <= 10:
            jobs.append(finished(here, top1=[0.5, 0.25]))
        else:
            jobs.append(under_way(here, top1=[0.5, 0.5, 0.75]) if number == 31 else waiting(here))
    experiment = Experiment("mine", "a source", "a metric", "", (), "mine.yaml", ("val/top1",))
    long = "a method with a long name, of which a narrow terminal shows the beginning"
    return [(experiment, [(Cell({long: number}, ()), job) for number, job in enumerate(jobs, 1)])]


def drawn(tracker: Tracker, width: int, height: int) -> list[str]:
    terminal = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with terminal.capture() as captured:
        terminal.print(table_of_cells(tracker, height))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [80, 100, 120, 170])
@pytest.mark.parametrize("height", [6, 12, 30, 100])
def test_the_table_fits_the_terminal(tmp_path: Path, width: int, height: int) -> None:
    """The job under way is there at any size, then the finished jobs, the last first.

    The bar and the cursor need a line each. Six lines leave room for two rows, a hundred for all 60 cells.
    """
    tracker = Tracker(sixty(tmp_path), 1)
    tracker.update([tracker.jobs[30]], [])
    head, *rows = drawn(tracker, width, height)
    assert 1 + len(rows) <= height - 2
    assert all(len(line) <= width for line in (head, *rows))
    assert head.split() == ["cell", "seeds", "val/top1", "under", "way"]
    busy = [row for row in rows if "round" in row]
    assert [re.sub(r".*31|.*… ", "", row).split() for row in busy] == [["0/1", "–", "round", "3/4:", "0.7500"]]
    shown = min(height - 4, 60)
    assert len([row for row in rows if "0/1" in row or "1/1" in row]) == shown
    assert len([row for row in rows if re.search(r"1/1 +0\.2500$", row)]) == min(shown - 1, 10)
    more = f"{60 - shown} more cells, {10 - min(shown - 1, 10)} of them finished"
    assert rows[-1] == more if shown < 60 else "0/1" in rows[-1]


def test_rows_show_seeds_means_failures_and_runs_under_way(tmp_path: Path) -> None:
    """The mean of the finished seeds, (0.5 + 0.75) / 2, and of those under way, (0.25 + 0.5) / 2 = 0.375."""
    jobs = [finished(tmp_path, 1, top1=[0.5]), finished(tmp_path, 2, top1=[0.75])]
    jobs += [under_way(tmp_path, 3, top1=[0.25]), under_way(tmp_path, 4, top1=[0.3, 0.5]), waiting(tmp_path, 5)]
    experiment = Experiment("mine", "a source", "a metric", "", (), "mine.yaml", ("val/top1",))
    tracker = Tracker([(experiment, [(Cell({}, ()), job) for job in jobs])], 2)
    tracker.update(jobs[2:4], jobs[4:])
    row = drawn(tracker, 80, 24)[1]
    assert re.split(" {2,}", row) == ["mine", "2/5, 1 failed", "0.6250", "round 1/4, 2/4: 0.3750"]


def test_a_line_for_each_run_and_each_cell(tmp_path: Path) -> None:
    """Three rounds of 120 s are left, one of the second job and two of the third.

    The standard error of 0.5 and 0.75 is 0.125, so the interval is 0.625 ± 12.706 · 0.125.
    """
    first, second = finished(tmp_path, 1, top1=[0.5]), under_way(tmp_path, 2, rounds=2, seconds=120, top1=[0.75])
    experiment = Experiment("mine", "a source", "a metric", "", (), "mine.yaml", ("val/top1",))
    pairs = [(Cell({"method": "GH"}, ()), job) for job in (first, second)]
    other = (Cell({"method": "FedAvg"}, ()), waiting(tmp_path / "other", rounds=2))
    tracker = Tracker([(experiment, [*pairs, other])], 1)
    tracker.update([second], [])
    assert lines_on_finished(tracker, first, 1) == ["1/3 GH seed 1: val/top1 0.5000; about 6 minutes left"]
    (second.run.folder / "metrics.csv").write_text("round,val/top1\n1,0.5\n2,0.75\n")
    (second.folder / "finished.json").write_text(json.dumps({"seconds": 1.0}))
    tracker.update([], [])
    assert lines_on_finished(tracker, second, 2)[1:] == ["GH: val/top1 0.6250 ± 1.5883 over 2 seeds"]


@pytest.fixture
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


SWEEP = ["sweep", "--config", "tiny.yaml", "--grid", GRID, "--seeds", 1, "--rounds", 2]


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_a_sweep_without_terminal_is_told_in_lines() -> None:
    """Each as it happens, all on standard output; eleven classes each cannot be had of ten."""
    result = run(*SWEEP)
    told = result.out.splitlines()
    assert result.err == ""
    assert told[:2] == ["planning tiny: 2 cells …", "2 runs; starting the first …"]
    assert re.fullmatch(r"the first of 2 runs: estimate: [\d.]+ s a round, [\d.]+ s for 2 rounds.*", told[2]), told[2]
    assert re.fullmatch(r"1/2 IID seed 1: val/top1 0\.\d{4}(; about [\d.]+ s left)?", told[3]), told[3]
    assert told[4].startswith("failed: tiny ClassesPerClient(classes=11)")
    assert re.search(r"^- [\d.]+ s of training in all$", Path("runs/sweep/tiny/table.md").read_text(), re.MULTILINE)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal."""
    text = io.StringIO()
    terminal = Console(file=text, force_terminal=True, width=80, height=24, color_system=None)
    monkeypatch.setattr(fl_lightning.runs.display.progress, "Console", lambda **_: terminal)
    return text


def shown(screen: io.StringIO) -> list[str]:
    """The lines that the terminal has shown, without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).replace("\r", "\n").splitlines()


def test_jobs_that_are_finished_already_take_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown measure is told before anything is trained."""
    experiment = Experiment("mine", "a source", "a metric", "", (), "mine.yaml", ("val/none",))
    assert train_with_progress([(experiment, [(Cell({}, ()), finished(tmp_path, 1, top1=[0.5]))])], Here(1), 1) == []
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "1 run, finished before"
    assert "val/none" in out[1]


def test_jobs_that_are_finished_already_are_in_the_live_table(tmp_path: Path, screen: io.StringIO) -> None:
    experiment = Experiment("mine", "a source", "a metric", "", (), "mine.yaml", ("val/top1",))
    assert train_with_progress([(experiment, [(Cell({}, ()), finished(tmp_path, 1, top1=[0.5]))])], Here(1), 1) == []
    lines = shown(screen)
    assert lines[0].rstrip() == "1 run, finished before"
    assert any(line.startswith("runs 1/1 ") for line in lines)
    assert any(re.match(r"mine +1/1 +0\.5000", line) for line in lines)


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_a_sweep_in_a_terminal_shows_a_live_table(screen: io.StringIO) -> None:
    """Bar and table are there from the first frame to the last; the failure stands above them."""
    result, lines = run(*SWEEP), shown(screen)
    bars = [line.split() for line in lines if line.startswith("runs ")]
    assert bars[0][:2] == ["runs", "0/2"]
    assert bars[0][-4:-2] == ["-:--:--", "left"]
    assert bars[-1][:4] == ["runs", "1/2,", "1", "failed"]
    assert any(re.match(r"IID +0/1 +–  round \d/2: ", line) for line in lines)
    assert any(re.match(r"IID +1/1 +0\.\d{4}", line) for line in lines)
    assert sum(line.startswith("the first of 2 runs: estimate: ") for line in lines) == 1
    assert any(line.startswith("failed: tiny ClassesPerClient(classes=11)") for line in lines)
    assert "1/2 IID" not in result.out, "plain lines would break the display"


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_one_is_not_several() -> None:
    result = run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--rounds", 1)
    assert result.out.startswith("planning tiny: 1 cell …\n1 run; starting the first …\n")
    text = Path("runs/sweep/tiny/table.md").read_text()
    assert "1 of 1 run finished" in text
    assert "settings in place of the config's: trainer.max_epochs 1" in text
