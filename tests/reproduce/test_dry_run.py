"""The dry run: the plan, the time that begun runs tell, and no trace."""

import re
from pathlib import Path

import pytest
from command import TINY, contents, run
from job_folders import under_way, waiting

from fl_lightning.fit.configs import Cell
from fl_lightning.reproduce.papers import Experiment
from fl_lightning.reproduce.preflight import dry_run

GRID = ["--grid", "data.partition.alpha=0.1,1.0", "--grid", "model.local_epochs=1,2"]


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


def test_it_tells_the_plan_and_leaves_nothing() -> None:
    result = run("sweep", "--config", "tiny.yaml", *GRID, "--seeds", 2, "--dry-run")
    assert result.status == 0, result.err
    assert result.err == ""
    assert result.out.splitlines() == [
        "planning tiny: 4 cells …",
        "tiny: 4 cells, seeds 1 to 2: 8 runs",
        "time: unknown until a run has begun",
        "pre-flight passed: configs, callbacks and data",
    ]
    assert list(contents(".")) == ["tiny.yaml"]


def test_finished_runs_tell_the_time_and_are_not_counted_again() -> None:
    assert run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--rounds", 2).status == 0
    before = contents("runs")
    result = run("sweep", "--config", "tiny.yaml", "--seeds", 3, "--rounds", 2, "--dry-run", "--jobs", 2)
    assert result.status == 0
    assert "tiny: 1 cell, seeds 1 to 3: 3 runs, 1 finished before" in result.out
    assert re.search(r"^time: about [\d.]+ s, 2 runs at a time, if each is as fast as one alone$", result.out, re.M)
    done = run("sweep", "--config", "tiny.yaml", "--seeds", 1, "--rounds", 2, "--dry-run")
    assert "tiny: 1 cell, seed 1: 1 run, 1 finished before" in done.out
    assert "time" not in done.out
    assert contents("runs") == before


def test_time_of_runs_that_have_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds of 120 s: three of four are left of the first run, four each of two others; 22 minutes."""
    experiment = Experiment("mine", "a source", "a metric", "", (), "mine.yaml", ("val/top1",))
    jobs = [under_way(tmp_path, 1, seconds=120, top1=[0.5]), waiting(tmp_path, 2), waiting(tmp_path, 3)]
    assert dry_run([(experiment, [(Cell({}, ()), job) for job in jobs])], [], [], 1) == 0
    assert "time: about 22 minutes\n" in capsys.readouterr().out


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


def test_reproduce_has_it_too() -> None:
    """A figure of partitions trains nothing; two tables are told together."""
    ids = ["fedlaw/fig-13", "fedgh-slides/table-2"]
    result = run("reproduce", *ids, "--data.root", "nowhere", "--data.download", "false", "--dry-run")
    assert result.status == 2
    assert "fedlaw/fig-13: 1 cell, drawn without training" in result.out
    assert "fedgh-slides/table-2: 10 cells, seeds 1 to 3: 30 runs" in result.out
    assert "in total: 30 different runs; 30 to train" in result.out
    assert not Path("runs").exists()
