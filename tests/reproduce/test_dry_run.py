"""The dry run: the plan, its time and disk from rounds that were timed, and no trace."""

import re
import tempfile
from functools import partial
from pathlib import Path

import pytest
from command import TINY, contents, run

from fl_lightning.reproduce import dry_run
from fl_lightning.reproduce.dry_run import _estimated
from fl_lightning.reproduce.jobs import Folders, Job, plan
from fl_lightning.reproduce.trials import Trial, Trials

GRID = ["--grid", "data.partition.alpha=0.1,1.0", "--grid", "model.local_epochs=1,2"]


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()
    # Not tempfile.tempdir, where processes make sockets, whose paths must be short.
    monkeypatch.setattr(tempfile, "TemporaryDirectory", partial(tempfile.TemporaryDirectory, dir=tmp_path / "scratch"))
    Path("tiny.yaml").write_text(TINY)


def jobs(*options: str, rounds: int = 10, seeds: int = 1) -> list[Job]:
    arguments = ["--config=tiny.yaml", f"--trainer.max_epochs={rounds}", *options]
    return plan(["tiny"], arguments, range(seeds), Folders(Path("runs")), "tiny")


def test_it_tells_the_plan_and_leaves_nothing() -> None:
    """Two alphas share a kind, two numbers of epochs do not: two rounds are tried."""
    result = run("sweep", "--config", "tiny.yaml", *GRID, "--seeds", 2, "--dry-run")
    assert result.status == 0, result.err
    assert result.err == ""
    told = result.out.splitlines()
    assert told[0] == "planning tiny: 4 cells …"
    assert sum(line.startswith("trying a round of tiny ") for line in told) == 2
    assert "tiny: 4 cells, seeds 1 to 2: 8 runs" in told
    time, disk, passed = told[-3:]
    assert re.fullmatch(r"time: about \d+ s \(a first round of 2 kinds of cells was timed\)", time)
    assert re.fullmatch(r"disk: about [\d.]+ MB in runs/sweep \(checkpoints, metrics, arrays\); .* free", disk)
    assert passed == "pre-flight passed: configs, data and measures"
    assert list(contents(".")) == ["tiny.yaml"]
    assert not list(Path("scratch").glob("fl-lightning-*"))


def test_finished_runs_are_not_counted_again() -> None:
    """The time is that of the finished runs; two processes share two runs, one needs both."""
    assert run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--rounds", 2).status == 0
    before = contents("runs")
    result = run("sweep", "--config", "tiny.yaml", "--seeds", 3, "--rounds", 2, "--dry-run", "--jobs", 2)
    assert result.status == 0
    assert "tiny: 1 cell, seeds 1 to 3: 3 runs, 1 finished before" in result.out
    assert "2 runs at a time, if each is as fast as one alone (1 kind as in finished runs)" in result.out
    assert "trying" not in result.out
    done = run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--rounds", 2, "--dry-run")
    assert "tiny: 1 cell, seed 1: 1 run, 1 finished before" in done.out
    assert "time" not in done.out
    assert contents("runs") == before


def test_what_is_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    """A run of 10 rounds: 5 s to start and 10 rounds of 30 s, 305 s; 100 kB once and 10 times 10 kB.

    Of five such runs, three are dealt to the first of two processes: 915 s are 15 minutes. Two more runs, of a kind
    that was not tried, count as the mean of what is known.
    """
    known = Trial(frozenset(), 5.0, 30.0, 100_000.0, 10_000.0)
    same, other = jobs(seeds=5), jobs("--data.batch_size=16", seeds=2)
    trials = Trials([*same, *other])
    trials.tried = 1
    (kind,) = trials.kinds(same)
    time, disk = _estimated(same, {kind: known}, trials, 2, Path("runs"))
    assert time.startswith("time: about 15 minutes, 2 runs at a time")
    assert disk.startswith("disk: about 1.0 MB in runs ")
    time, disk = _estimated([*same, *other], {kind: known}, trials, 1, Path("runs"))
    assert time.startswith("time: about 36 minutes (")  # 7 times 305 s
    assert time.endswith("a first round of 1 kind of cells was timed, 1 kind estimated by the mean of the others)")
    assert disk.startswith("disk: about 1.4 MB")


def test_runs_under_way_need_the_rest() -> None:
    """Three of ten rounds are done: 5 s and 7 times 30 s."""
    (job,) = jobs()
    job.run.folder.mkdir(parents=True)
    (job.run.folder / "metrics.csv").write_text("round,val/top1\n1,0.1\n2,0.1\n3,0.1\n")
    trials = Trials([job])
    (kind,) = trials.kinds([job])
    trial = Trial(frozenset(), 5.0, 30.0, 0.0, 0.0)
    assert _estimated([job], {kind: trial}, trials, 1, Path("runs"))[0].startswith("time: about 4 minutes")


def test_the_budget_ends_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any time, the only trial is the one that finds the measure."""
    monkeypatch.setattr(dry_run, "BUDGET_S", 0.0)
    result = run("sweep", "--config", "tiny.yaml", *GRID, "--seeds", 1, "--dry-run")
    assert "a first round of 1 kind of cells was timed, 1 kind estimated by the mean of the others" in result.out


def test_a_round_that_fails_is_told() -> None:
    """Eleven classes each cannot be had of ten."""
    grid = "data.partition=[{class_path: ClassesPerClient, init_args: {classes: 11}}]"
    result = run("sweep", "--config", "tiny.yaml", "--grid", grid, "--seeds", 1, "--dry-run")
    assert result.status == 1
    assert "time and disk: unknown, since no round could be tried" in result.out
    assert re.search("^pre-flight failed: tiny Classes.*expected classes <= 10", result.out, re.MULTILINE)
    assert not Path("runs").exists()


def test_missing_data_are_told_once() -> None:
    """Both cells, all seeds, one data set: one line. What a run downloads is no obstacle."""
    command = ["sweep", "--config", "mnist_gh.yaml", "--grid", "data.partition.alpha=0.1,1", "--data.root", "nowhere"]
    refused = run(*command, "--dry-run", "--data.download", "false")
    assert refused.status == 2
    assert refused.out.count("expected MNIST in ") == 1
    assert "pre-flight failed: expected MNIST in " in refused.out
    comes = run(*command, "--dry-run")
    assert comes.status == 0
    assert comes.out.count("expected MNIST in ") == 1
    assert "to download: expected MNIST in " in comes.out
    assert not Path("nowhere").exists()


def test_time_of_the_runs_that_have_their_data() -> None:
    """Two of three cells have theirs: as long as these two alone, but for what a trial differs by."""
    Path("mixed.yaml").write_text(
        "base: tiny.yaml\nexperiment: mixed\ngrid:\n  data:\n    here: {}\n    also here: {data.batch_size: 16}\n"
        "    elsewhere: {data: {class_path: MNIST, init_args: {root: nowhere}}}\n"
    )
    result = run("sweep", "--config", "mixed.yaml", "--seeds", 2, "--dry-run")
    assert result.status == 0, result.err
    assert "without data: 2 runs, which the next lines leave out\n" in result.out
    assert re.search(r"^time: about .* \(a first round of 2 kinds of cells was timed\)$", result.out, re.MULTILINE)
    assert re.search(r"^to download: expected MNIST in .* \(for mixed\)$", result.out, re.MULTILINE)


def test_reproduce_has_it_too() -> None:
    """A figure of partitions trains nothing; two tables are told together."""
    command = [
        "reproduce",
        "fedlaw/fig-13",
        "fedgh-slides/table-2",
        "--data.root",
        "nowhere",
        "--data.download",
        "false",
    ]
    result = run(*command, "--dry-run")
    assert result.status == 2
    assert "fedlaw/fig-13: 1 cell, drawn without training" in result.out
    assert "fedgh-slides/table-2: 10 cells, seeds 1 to 3: 30 runs" in result.out
    assert "in total: 30 different runs; 30 to train" in result.out
    assert not Path("runs").exists()
