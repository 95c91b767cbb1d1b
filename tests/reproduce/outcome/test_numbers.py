"""From run folders to means, intervals and the papers' numbers beside them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lib.job_folders import finished, under_way, waiting

from fl_lightning.reproduce.experiments.experiment import Cell, Claim, Experiment
from fl_lightning.reproduce.jobs import Job
from fl_lightning.reproduce.outcome.numbers import collect, compare, measure, on_paper, printed, same, unknown_measures

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
    return Cell(labels, ()), finished(folder / "-".join(map(str, labels.values())), seed, top1=top1)


def test_a_measure_is_the_mean_of_the_last_rounds(tmp_path: Path) -> None:
    """Rounds 1 to 40 have top-1 0.01 to 0.40: 40 % at the last, 35.5 % over the last ten, 20 % at round 20."""
    run = finished(tmp_path, top1=[round / 100 for round in range(1, 41)]).run
    assert measure(experiment(), run, "top1", 40) == pytest.approx(40)
    assert measure(experiment(last=10), run, "top1", 40) == pytest.approx(35.5)
    assert measure(experiment(), run, "top1", 20) == pytest.approx(20)
    assert measure(experiment(), run, "val/top1", 40) == pytest.approx(0.4)
    assert math.isnan(measure(experiment(), run, "gamma_learned", 40))


def test_a_measure_may_be_the_difference_of_two(tmp_path: Path) -> None:
    """The gap between 90 % in training and 80 % in testing: 10 points; no gap where one of them is not logged."""
    run = finished(tmp_path, **{"global_train/top1": [0.9], "val/top1": [0.8]}).run
    assert measure(experiment(), run, "train_top1 - top1", 1) == pytest.approx(10)
    assert math.isnan(measure(experiment(), run, "train_top1 - gamma_learned", 1))
    assert printed(experiment(), {"method": "B"}, "top1 - top1") == 0


def test_a_measure_may_be_the_rounds_to_a_value(tmp_path: Path) -> None:
    """The best so far is 50, 80, 80 and 90 %: 65 is half way from round 1 to 2, 85 half way from 3 to 4, 95 not there.

    The value of a round itself is reached in this round: 80 in round 2, and 50 in the first.
    """
    run = finished(tmp_path, top1=[0.5, 0.8, 0.7, 0.9]).run
    rounds = {value: measure(experiment(), run, f"rounds to top1 {value}", 9) for value in (40, 50, 65, 80, 85, 90)}
    assert rounds == pytest.approx({40: 1, 50: 1, 65: 1.5, 80: 2, 85: 3.5, 90: 4})
    assert math.isnan(measure(experiment(), run, "rounds to top1 95", 9))
    assert math.isnan(measure(experiment(), run, "rounds to gamma_learned 1", 9))
    assert printed(experiment([{"method": "A", "rounds to top1 90": 4}]), {"method": "A"}, "rounds to top1 90") == 4


def test_gamma_is_the_mean_around_the_middle(tmp_path: Path) -> None:
    """Of 200 rounds, 90 to 110: here γ is 1 in these and 0 elsewhere; of 20, rounds 1 to 20."""
    run = finished(tmp_path, **{"fedlaw/gamma": [float(90 <= round <= 110) for round in range(1, 201)]}).run
    assert measure(experiment(last=10), run, "gamma_learned", 200) == 1
    assert measure(experiment(last=10), run, "gamma_learned", 20) == 0


def test_collects_finished_runs_alone(tmp_path: Path) -> None:
    done, started = trained(tmp_path, 1, [0.1, 0.5], method="A"), under_way(tmp_path, 2, top1=[0.1])
    results = collect(experiment(), [done, (done[0], started)])
    assert results.to_dict("records") == [
        {"method": "A", "round": 2, "seed": 1, "top1": 50.0, "seconds": 1.0, "folder": str(done[1].folder)}
    ]
    noted = collect(experiment(noted=("val/top1", "bytes/total")), [done])
    assert list(noted.columns) == ["method", "round", "seed", "top1", "val/top1", "bytes/total", "seconds", "folder"]
    assert noted.loc[0, "val/top1"] == 0.5
    assert math.isnan(noted.loc[0, "bytes/total"])  # not logged
    assert collect(experiment(), [(done[0], started)]).empty
    assert compare(experiment(), pd.DataFrame()).empty


def test_seconds_are_those_of_all_processes(tmp_path: Path) -> None:
    """Three rounds of 40 s, of which the process that finished the job knows the last 50 s alone."""
    job = under_way(tmp_path, rounds=3, seconds=40, top1=[0.1, 0.2, 0.3])
    (job.folder / "finished.json").write_text('{"seconds": 50.0}')
    assert collect(experiment(), [(Cell({"method": "A"}, ()), job)])["seconds"].tolist() == [120]


def test_a_measure_may_be_a_variance_along_an_axis(tmp_path: Path) -> None:
    """Accuracies of 50, 60 and 70 %: 200 / 3 points², in the row of the largest label; seed 2 lacks a label.

    The paper's 40, 42 and 44 give 8 / 3. B's numbers are half printed, and A's of seed 1 alike on both data sets.
    """
    cells, runs = [], []
    for data in ("X", "Y"):
        for share, top1 in ((0.2, 0.5), (0.4, 0.6), (1.0, 0.7)):
            for seed in (1, 2):
                cell, job = trained(tmp_path, seed, [top1], data=data, method="A", share=share)
                if seed == 1:
                    cells.append(cell)
                if (data, share, seed) != ("Y", 0.2, 2):
                    runs.append((cell, job))
    name = "top1 variance along share"
    rows = [
        {"data": "X", "method": "A", "share": share, "top1": top1} for share, top1 in ((0.2, 40), (0.4, 42), (1, 44))
    ]
    varied = experiment(rows, measures=("top1", name), cells=tuple(cells))
    results = collect(varied, runs)
    known = results[results[name].notna()]
    assert known[["data", "share", "seed"]].to_numpy().tolist() == [["X", 1.0, 1], ["X", 1.0, 2], ["Y", 1.0, 1]]
    assert known[name].tolist() == pytest.approx([200 / 3] * 3)
    compared = compare(varied, results).query("measure == @name and share == 1")
    assert compared["mean"].tolist() == pytest.approx([200 / 3] * 2)
    assert compared["paper"].tolist() == pytest.approx([8 / 3, math.nan], nan_ok=True)
    (alone,) = {job for cell, job in runs if (cell, job.seed) == (cells[0], 1)}
    assert collect(varied, [(cells[0], alone)])[name].isna().all(), "one label does not vary"


def test_reads_the_rounds_that_rows_and_claims_name(tmp_path: Path) -> None:
    """Round 1 of a row, 2 and 3 of a claim; a run of two rounds has the first two.

    A run shorter than all of them is read at its end, as with --rounds 2, for which the paper prints nothing.
    """
    rows = [{"method": "A", "round": 1, "top1": 11.0}]
    claim = Claim("", {"method": "A", "round": 3}, {"method": "A", "round": [1, 2]})
    named = experiment(rows, claims=(claim,))
    runs = [trained(tmp_path, 1, [0.1, 0.2, 0.3, 0.4], method="A"), trained(tmp_path, 2, [0.3, 0.4], method="A")]
    results = collect(named, runs)
    found = list(zip(results["seed"], results["round"], results["top1"].round(6), strict=True))
    assert found == [(1, 1, 10), (1, 2, 20), (1, 3, 30), (2, 1, 30), (2, 2, 40)]
    compared = compare(named, results)
    assert compared["mean"].round(6).tolist() == [20, 30, 30]
    assert compared["seeds"].tolist() == [2, 2, 1]
    assert compared["paper"].tolist() == pytest.approx([11, math.nan, math.nan], nan_ok=True)
    late = experiment([{"method": "A", "round": 100, "top1": 11.0}])
    compared = compare(late, collect(late, runs[1:]))
    assert compared[["round", "mean"]].to_numpy().tolist() == [[2, 40]]
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
    """FedAvg has no proxy set: its label there is null, and "proxy" is an axis nevertheless. Neither logs a γ."""
    runs = [trained(tmp_path, 1, [0.5], method="FedAvg"), trained(tmp_path, 1, [0.6], method="FedDF", proxy="even")]
    rows = [{"method": "FedAvg", "proxy": "even", "top1": 51.0}, {"method": "FedDF", "proxy": "even", "top1": 61.0}]
    both = experiment(rows, measures=("top1", "gamma_learned"))
    compared = compare(both, collect(both, runs))
    assert list(compared.columns[:3]) == ["method", "proxy", "round"]
    assert compared["paper"].tolist() == pytest.approx([51, math.nan, 61, math.nan], nan_ok=True)
    assert compared["seeds"].tolist() == [1, 0, 1, 0]


def test_a_run_counts_once_in_each_cell(tmp_path: Path) -> None:
    """As by ``sweep --grid a=1,1``: one run of one seed, and so no interval; another cell may share the run."""
    cell, job = trained(tmp_path, 1, [0.5], method="A")
    results = collect(experiment(()), [(cell, job), (cell, job), (Cell({"method": "B"}, ()), job)])
    compared = compare(experiment(()), results)
    assert compared[["mean", "seeds"]].to_numpy().tolist() == [[50, 1], [50, 1]]
    assert compared["half_width"].isna().all()
    assert results["folder"].nunique() == 1


def test_the_papers_numbers_of_the_same_cells() -> None:
    """Two seeds of one cell become one row; a number that is not printed is nan."""
    points = [("A", 0.1, 1), ("A", 0.1, 2), ("B", math.inf, 1)]
    ours = pd.DataFrame([{"method": m, "alpha": a, "round": 5, "seed": s, "top1": 1.0} for m, a, s in points])
    paper = on_paper(experiment(), ours)
    assert paper["top1"].tolist() == pytest.approx([50, math.nan], nan_ok=True)
    assert paper["seed"].tolist() == [0, 0]
    assert math.isnan(printed(experiment(), {"method": "A", "alpha": 0.2}, "top1"))
    assert printed(experiment(), {"method": "B", "alpha": 0.1, "new": 3}, "top1") == 60


def test_labels_are_the_same_across_types() -> None:
    assert same(1, 1.0)
    assert same(None, math.nan)
    assert same(10, "10")
    assert not same("A", None)
    assert not same(0.1, math.inf)


def test_correlations_over_the_clients_of_two_runs(tmp_path: Path) -> None:
    """Of six clients with the same data in both runs, whose weights have the same mean: as NumPy has them together."""
    draw = np.random.default_rng(0)
    size = draw.uniform(1, 9, 6)
    weights = draw.uniform(0, 1, (2, 6))
    weights *= 2 / weights.sum(1, keepdims=True)
    weights[1] = weights[1].mean() + 0.3 * (weights[1] - weights[1].mean())  # the spreads are unlike
    balance = draw.uniform(1, 9, 6)
    names = ("weights/size", "weights/balance", "weights/size - weights/balance")
    facts = {"measures": names, "noted": ("weights/spread",), "pooled": {"epochs": "both"}}
    found, pairs = {}, []
    for name, factor in (("weights/size", size), ("weights/balance", balance)):
        found[name] = np.corrcoef(np.r_[weights[0], weights[1]], np.r_[factor, factor])[0, 1]
    for epochs, own in enumerate(weights):
        logged = {"weights/size": np.corrcoef(own, size)[0, 1], "weights/balance": np.corrcoef(own, balance)[0, 1]}
        values = {name: [value] for name, value in (logged | {"weights/spread": own.std()}).items()}
        pairs.append((Cell({"epochs": str(epochs)}, ()), finished(tmp_path / str(epochs), **values)))
    table = collect(experiment(**facts), pairs).set_index("epochs")
    assert list(table.index) == ["0", "1", "both"]
    both = table.loc["both"]
    assert both["weights/size"] == pytest.approx(found["weights/size"])
    assert both["weights/size - weights/balance"] == pytest.approx(found["weights/size"] - found["weights/balance"])
    assert abs(both["weights/size"] - table["weights/size"].iloc[:2].mean()) > 0.01, "no mere mean"
    alone = collect(experiment(**facts), [pairs[0], (pairs[1][0], waiting(tmp_path / "none"))])
    assert list(alone["epochs"]) == ["0"], "both runs or none"
    assert list(collect(experiment(**facts), pairs[:1])["epochs"]) == ["0"], "one cell, as with --subset"


def test_measures_that_no_run_logs_are_named(tmp_path: Path) -> None:
    """What some cells log is known, as is the number of a client that is not in the first cohort; a paper's are all."""
    runs = [
        under_way(tmp_path, 1, top1=[0.5]),
        finished(tmp_path, 2, **{"conflict/ratio": [0.5], "clients/top1/3": [1]}),
    ]
    asked = ("val/topp1", "top1", "conflict/ratio", "clients/top1/0", "nothing")
    log = "clients/top1/*, conflict/ratio, val/top1"
    assert unknown_measures(experiment((), measures=asked), runs) == [
        f"x/table-1: the runs log no nothing, but {log}",
        f"x/table-1: the runs log no val/topp1, but {log}; did you mean val/top1?",
    ]
    assert unknown_measures(experiment(measures=asked), runs) == []
    both = [finished(tmp_path, 4, **{"val/loss_step": [1], "val/loss_epoch": [2]})]
    (of_both,) = unknown_measures(experiment((), measures=("val/loss",)), both)
    assert of_both.endswith("; did you mean val/loss_epoch?")
    (joined,) = unknown_measures(experiment((), measures=("val/loss_step,val/loss_epoch",)), both)
    assert joined.endswith("; name several with a space between them: --measures val/loss_step val/loss_epoch")
    assert unknown_measures(experiment((), measures=asked), [waiting(tmp_path, 3)]) == [], "none has begun"
