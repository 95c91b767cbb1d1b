"""From run folders to means, intervals and the papers' numbers beside them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fl_lightning.fit.configs import Cell
from fl_lightning.reproduce.jobs import Job
from fl_lightning.reproduce.papers import Claim, Experiment
from fl_lightning.reproduce.results import collect, compare, measure, on_paper, printed, same

ROWS = (
    {"method": "A", "alpha": 0.1, "top1": 50.0},
    {"method": "B", "alpha": 0.1, "top1": 60.0},
    {"method": "A", "alpha": math.inf, "top1": 90.0},
    {"method": "B", "alpha": math.inf, "top1": None},
)


def experiment(rows: Sequence[Mapping[str, Any]] = ROWS, **facts: Any) -> Experiment:
    return Experiment("x/table-1", "X", "accuracy", "", tuple(rows), "x.yaml", **{"measures": ("top1",), **facts})


def trained(folder: Path, seed: int, top1: Sequence[float], **labels: Any) -> tuple[Cell, Job]:
    """A cell and a finished job of it, with these accuracies after rounds 1, 2, …"""
    job = Job((), (), seed, len(top1), folder / "-".join(map(str, labels.values())) / f"seed_{seed}")
    job.run.folder.mkdir(parents=True)
    rows = "".join(f"{round},{value}\n" for round, value in enumerate(top1, 1))
    (job.run.folder / "metrics.csv").write_text("round,val/top1\n" + rows)
    (job.folder / "finished.json").write_text(json.dumps({"seconds": 1.5}))
    return Cell(labels, ()), job


def test_a_measure_is_the_mean_of_the_last_rounds() -> None:
    """Rounds 1 to 40 have top-1 0.01 to 0.40: 40 % at the last, 35.5 % over the last ten, 20 % at round 20."""
    metrics = pd.DataFrame({"val/top1": [round / 100 for round in range(1, 41)]}, index=range(1, 41))
    assert measure(experiment(), metrics, "top1", 40) == pytest.approx(40)
    assert measure(experiment(last=10), metrics, "top1", 40) == pytest.approx(35.5)
    assert measure(experiment(), metrics, "top1", 20) == pytest.approx(20)
    assert measure(experiment(), metrics, "val/top1", 40) == pytest.approx(0.4)
    assert math.isnan(measure(experiment(), metrics, "gamma_learned", 40))


def test_gamma_is_the_mean_around_the_middle() -> None:
    """Of 200 rounds, 90 to 110: here γ is 1 in these and 0 elsewhere; of 20, rounds 1 to 20."""
    gamma = [float(90 <= round <= 110) for round in range(1, 201)]
    metrics = pd.DataFrame({"fedlaw/gamma": gamma}, index=range(1, 201))
    assert measure(experiment(last=10), metrics, "gamma_learned", 200) == 1
    assert measure(experiment(last=10), metrics, "gamma_learned", 20) == 0


def test_collects_finished_runs_alone(tmp_path: Path) -> None:
    done, started = trained(tmp_path, 1, [0.1, 0.5], method="A"), trained(tmp_path, 2, [0.1], method="A")
    (started[1].folder / "finished.json").unlink()
    results = collect(experiment(), [done, started])
    assert results.to_dict("records") == [
        {"method": "A", "round": 2, "seed": 1, "top1": 50.0, "seconds": 1.5, "folder": str(done[1].folder)}
    ]
    assert collect(experiment(), [started]).empty


def test_reads_the_rounds_that_rows_and_claims_name(tmp_path: Path) -> None:
    """Round 1 of a row, 2 and 3 of a claim; a run of two rounds has the first two."""
    rows = [{"method": "A", "round": 1, "top1": 11.0}]
    claim = Claim("", {"method": "A", "round": 3}, {"method": "A", "round": [1, 2]})
    named = experiment(rows, claims=(claim,))
    runs = [trained(tmp_path, 1, [0.1, 0.2, 0.3, 0.4], method="A"), trained(tmp_path, 2, [0.3, 0.4], method="A")]
    results = collect(named, runs)
    assert list(zip(results["seed"], results["round"], results["top1"].round(6), strict=True)) == [
        (1, 1, 10),
        (1, 2, 20),
        (1, 3, 30),
        (2, 1, 30),
        (2, 2, 40),
    ]
    compared = compare(named, results)
    assert compared["mean"].round(6).tolist() == [20, 30, 30]
    assert compared["seeds"].tolist() == [2, 2, 1]
    assert compared["paper"].tolist() == pytest.approx([11, math.nan, math.nan], nan_ok=True)


def test_a_run_shorter_than_all_named_rounds_is_read_at_its_end(tmp_path: Path) -> None:
    """As with --rounds 2: there is no number of the paper's for it."""
    named = experiment([{"method": "A", "round": 100, "top1": 11.0}])
    compared = compare(named, collect(named, [trained(tmp_path, 1, [0.1, 0.2], method="A")]))
    assert compared[["round", "mean"]].to_numpy().tolist() == [[2, 20]]
    assert math.isnan(compared["paper"].iloc[0])


def test_compares_cell_by_cell_with_infinite_labels(tmp_path: Path) -> None:
    """A at 0.1: 40 and 60 %, mean 50; the paper has 50. A on IID data: 80 % against 90. B there: nothing printed."""
    runs = [trained(tmp_path, 1, [0.4], alpha=0.1, method="A"), trained(tmp_path, 2, [0.6], alpha=0.1, method="A")]
    runs += [trained(tmp_path, 1, [0.8], alpha=math.inf, method=method) for method in "AB"]
    compared = compare(experiment(), collect(experiment(), runs))
    assert compared["alpha"].tolist() == [0.1, math.inf, math.inf]
    assert compared["mean"].tolist() == pytest.approx([50, 80, 80])
    assert compared["seeds"].tolist() == [2, 1, 1]
    assert compared["difference"].tolist() == pytest.approx([0, -10, math.nan], nan_ok=True)


def test_a_cell_that_lacks_an_axis_comes_first_and_stays_a_cell(tmp_path: Path) -> None:
    """FedAvg has no proxy set: its label there is null, and "proxy" is an axis nevertheless."""
    runs = [trained(tmp_path, 1, [0.5], method="FedAvg"), trained(tmp_path, 1, [0.6], method="FedDF", proxy="even")]
    rows = [{"method": "FedAvg", "proxy": "even", "top1": 51.0}, {"method": "FedDF", "proxy": "even", "top1": 61.0}]
    compared = compare(experiment(rows), collect(experiment(rows), runs))
    assert list(compared.columns[:3]) == ["method", "proxy", "round"]
    assert compared["paper"].tolist() == [51, 61]


def test_a_cell_named_twice_counts_once(tmp_path: Path) -> None:
    """As by ``sweep --grid a=1,1``: one run of one seed, and so no interval."""
    run = trained(tmp_path, 1, [0.5], method="A")
    compared = compare(experiment(()), collect(experiment(()), [run, run]))
    assert compared[["mean", "seeds"]].to_numpy().tolist() == [[50, 1]]
    assert math.isnan(compared["half_width"].iloc[0])


def test_a_run_that_two_cells_share_counts_for_both(tmp_path: Path) -> None:
    _, run = trained(tmp_path, 1, [0.5], method="A")
    results = collect(experiment(), [(Cell({"method": name}, ()), run) for name in "AB"])
    assert compare(experiment(), results)["mean"].tolist() == [50, 50]
    assert results["folder"].nunique() == 1


def test_a_metric_that_was_not_logged_is_missing(tmp_path: Path) -> None:
    """FedAvg learns no γ."""
    named = experiment(measures=("top1", "gamma_learned"))
    compared = compare(named, collect(named, [trained(tmp_path, 1, [0.5], method="A", alpha=0.1)]))
    assert compared["seeds"].tolist() == [1, 0]
    assert math.isnan(compared["mean"].iloc[1])


def test_nothing_finished_compares_to_nothing() -> None:
    assert compare(experiment(), pd.DataFrame()).empty


def test_the_papers_numbers_of_the_same_cells() -> None:
    """Two seeds of one cell become one row; a number that is not printed is nan."""
    points = [("A", 0.1, 1), ("A", 0.1, 2), ("B", math.inf, 1)]
    ours = pd.DataFrame([{"method": m, "alpha": a, "round": 5, "seed": s, "top1": 1.0} for m, a, s in points])
    paper = on_paper(experiment(), ours)
    assert paper["top1"].tolist() == pytest.approx([50, math.nan], nan_ok=True)
    assert paper["seed"].tolist() == [0, 0]
    assert ours["top1"].tolist() == [1, 1, 1]


def test_labels_are_the_same_across_types() -> None:
    assert same(1, 1.0)
    assert same(math.inf, float("inf"))
    assert same(None, math.nan)
    assert not same("A", None)
    assert not same(0.1, math.inf)


def test_a_row_is_not_found_by_another_label() -> None:
    assert math.isnan(printed(experiment(), {"method": "A", "alpha": 0.2}, "top1"))
    assert printed(experiment(), {"method": "B", "alpha": 0.1, "new": 3}, "top1") == 60
