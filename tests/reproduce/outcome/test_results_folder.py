"""The folder of an experiment's results: what its tables say about the runs, and by which measure."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lib.job_folders import finished, waiting

from fl_lightning.reproduce.experiments.experiment import Cell, Claim, Experiment
from fl_lightning.reproduce.jobs import Job
from fl_lightning.reproduce.outcome.results_folder import write
from fl_lightning.reproduce.run_options import RunOptions
from fl_lightning.reproduce.sweep.arguments import arguments

ROWS = ({"method": "A", "top1": 50.0}, {"method": "B", "top1": 60.0})
PAPERS = Experiment(
    "x", "X", "accuracy", "It works.", ROWS, "", ("top1",), (Claim("B", {"method": "B"}, {"method": "A"}),)
)


def written(experiment: Experiment, jobs: Sequence[Job], *options: str) -> str:
    """Write the results of cells A, B, … with a job each into a folder ``out``; return the page in Markdown."""
    pairs = [(Cell({"method": name}, ()), job) for name, job in zip("ABC", jobs, strict=False)]
    Path("out").mkdir()
    write(experiment, pairs, Path("out"), RunOptions("fl-lightning …", Path("runs"), [1], options, (), 1, False))
    return Path("out/table.md").read_text()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def jobs(**metrics: list[float]) -> list[Job]:
    """Two finished jobs of different seeds, and one that waits."""
    return [finished(Path("a"), 2, **metrics), finished(Path("b"), 1, **metrics), waiting(Path("c"))]


def facts(page: str) -> list[str]:
    return [line.removeprefix("- ") for line in page.splitlines() if line.startswith("- ")]


def test_the_page_says_how_the_runs_were_made(capsys: pytest.CaptureFixture[str]) -> None:
    page = written(PAPERS, jobs(top1=[0.5]), "--data.root", "DIR", "--trainer.accelerator=cpu")
    assert facts(page) == [
        "`fl-lightning …`",
        "2 of 3 runs finished",
        "seeds 1, 2; torch 2.0",
        "2 s of training in all",
        "where the claims of all papers stand: fl-lightning reproduce --ledger",
    ]
    assert "not run" in page
    assert "results: out\n" in capsys.readouterr().out
    assert "changed" not in pd.read_csv("out/results.csv")
    assert not Path("out/comparison.csv").exists()


def test_the_page_says_which_settings_were_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """Also the ledger is told so; the picture of runs with other rounds has none of the paper's numbers."""
    page = written(PAPERS, jobs(top1=[0.4, 0.5]), "--trainer.max_epochs=2", "--num_threads=2")
    told = "settings in place of the config's: trainer.max_epochs 2: the paper's numbers belong to others"
    assert facts(page)[0] == told
    assert f"x: {told}\n" in capsys.readouterr().out
    assert set(pd.read_csv("out/results.csv")["changed"]) == {"trainer.max_epochs 2"}
    assert "paper" not in Path("out/curves.csv").read_text()


def test_the_page_says_at_which_scale_the_runs_are(capsys: pytest.CaptureFixture[str]) -> None:
    reduced = "Small scale, not the paper's: a hundred images"
    page = written(dataclasses.replace(PAPERS, scale="small", reduced=reduced, claims=()), jobs(top1=[0.4, 0.5]))
    assert facts(page)[0] == reduced
    assert f"x: {reduced}\n" in capsys.readouterr().out
    assert "paper" not in Path("out/curves.csv").read_text()


@pytest.mark.parametrize(
    ("named", "logged", "measure"),
    [((), "val/mae", "val/mae"), ((), "val/top1", ""), (("val/rmse",), "val/mae", "")],
)
def test_a_sweep_that_names_no_measure_takes_that_of_the_report(
    named: tuple[str, ...], logged: str, measure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A regression logs no accuracy: the first of its own validation metrics is tabulated, and a line says so."""
    sweep = Experiment("mine", "Sweep of mine", "", "", (), "", named)
    metrics: dict[str, Any] = {logged: [2.0], "val/rmse": [3.0], "val/errors/0": [1.0]}
    written(sweep, jobs(**metrics))
    told = f"mine: measured by {measure}, since the runs log no val/top1; --measures names others\n"
    assert (told in capsys.readouterr().out) == bool(measure)
    assert (named[0] if named else logged) in pd.read_csv("out/results.csv")
    assert Path("out/comparison.csv").is_file(), "a sweep ends with a comparison of its cells"


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ((), "No verdict: the runs do not say which values of val/bce are better: give --lower_is_better val/bce or"),
        (("--lower_is_better", "val/bce"), "B falls short of A by"),
        (("--higher_is_better", "val/bce"), "B beats A by"),
    ],
)
def test_a_sweep_takes_the_users_word_on_which_values_are_better(options: tuple[str, ...], verdict: str) -> None:
    """Cell B is 0.2 and a bit higher than A on each of three seeds."""
    Path("mine.yaml").touch()
    _, runs = arguments(["sweep", "--config", "mine.yaml", "--measures", "val/bce", *options])
    pairs = []
    for cell, level in (("A", 0.4), ("B", 0.6)):
        for seed in (1, 2, 3):
            job = finished(Path(cell), seed, **{"val/bce": [level + seed * (1 + level) / 100]})
            (job.run.folder / "config.yaml").write_text(f"seed_everything: {seed}")
            pairs.append((Cell({"method": cell}, ()), job))
    Path("out").mkdir()
    write(Experiment("x", "X", "val/bce", "", (), "", ("val/bce",)), pairs, Path("out"), runs)
    assert Path("out/comparison.md").read_text().startswith(verdict)
