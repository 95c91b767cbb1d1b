"""The gate: what runs miss if a paper's effect cannot show in them, told from single methods alone."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lib.job_folders import finished, waiting
from lib.made_results import BETTER, A, B, runs

from fl_lightning.reproduce.experiments.experiment import Cell, Claim, Experiment, Gate
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.reproduce.outcome.claims import has
from fl_lightning.reproduce.outcome.gate import gate_row, parts_not_recorded, why_not_tested, with_columns
from fl_lightning.reproduce.outcome.numbers import collect
from fl_lightning.reproduce.outcome.verdict import judge

# A is FedAvg, and has 70 % in the paper: half of the distance from 10 % is covered at 40 %.
ROWS = ({**A, "top1": 70.0}, {**B, "top1": 75.0})
GATE = Gate(fedavg=A)
PAPER = Experiment("x", "X", "", "", ROWS, "", ("top1",), (BETTER,), GATE, scale="laptop")


def results(a: float = 50, b: float = 50, **columns: Any) -> pd.DataFrame:
    """Three seeds of A and B, with columns of the gate, chance at 10 % if there are any."""
    made = runs({"A": [a] * 3, "B": [b] * 3})
    if not columns:
        return made
    columns = {"accuracy": made["top1"], "chance": 10.0, **columns}
    return made.assign(**{f"gate/{name}": value for name, value in columns.items()})


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (50, 50, ""),
        (40, 20, ""),
        (50, 19.9, "B is at 20 % with seed 1, chance at 10 %"),
        (39, 50, "FedAvg is at 39 %, the paper's at 70 %"),
        (15, 50, "A is at 15 % with seed 1, chance at 10 %; FedAvg is at 15 %, the paper's at 70 %"),
    ],
)
def test_what_the_accuracies_say(a: float, b: float, words: str) -> None:
    """Also of published results, which have no other columns."""
    assert why_not_tested(PAPER, BETTER, results(a, b)) == words
    assert (
        why_not_tested(PAPER, BETTER, results(a, b, fall=0.1)).replace(
            ", and FedAvg's training loss still falls, by 10% in a fifth of the rounds", ""
        )
        == words
    )


def test_the_papers_own_rounds_are_enough() -> None:
    assert why_not_tested(dataclasses.replace(PAPER, scale=""), BETTER, results(39, 50, fall=0.1)) == ""


def test_one_seed_at_chance_is_enough_and_only_the_claims_own_cells_count() -> None:
    cells = {(1, "A"): [50.0] * 3, (1, "B"): [50, 50, 11], (2, "A"): [50.0] * 3, (2, "B"): [50.0] * 3}
    made = runs(cells, "alpha", "method")
    assert why_not_tested(PAPER, BETTER, made) == "alpha 1, B is at 11 % with seed 3, chance at 10 %"
    assert why_not_tested(PAPER, Claim("", B, A, at={"alpha": 2}), made) == ""


def test_fedavg_counts_beside_the_claims_cells() -> None:
    """FedAvg is at 30 % at alpha 1 and at 60 % at alpha 2, of which a claim about C and B has one, or both."""
    cells = {(alpha, method): [30.0 * alpha] * 3 for alpha in (1, 2) for method in "ABC"}
    made, c = runs(cells, "alpha", "method"), {"method": "C"}
    assert why_not_tested(PAPER, Claim("", B, c, at={"alpha": 2}), made) == ""
    assert why_not_tested(PAPER, Claim("", B, c, at={"alpha": 1}), made) == "FedAvg is at 30 %, the paper's at 70 %"
    assert why_not_tested(PAPER, Claim("", {**B, "alpha": 2}, {**c, "alpha": 1}), made) == "", "45 % on average"
    assert why_not_tested(PAPER, BETTER, made.assign(alpha=made["alpha"].where(made["method"] != "A"))) == ""


def test_a_loss_that_has_stopped_falling_is_far_enough() -> None:
    assert why_not_tested(PAPER, BETTER, results(30, 50, fall=0.04)) == ""
    words = "FedAvg's training loss still falls, by 12% in a fifth of the rounds"
    assert (
        why_not_tested(PAPER, BETTER, results(30, 50, fall=0.12))
        == f"FedAvg is at 30 %, the paper's at 70 %, and {words}"
    )
    bare = dataclasses.replace(PAPER, rows=())
    assert why_not_tested(bare, BETTER, results(30, 50, fall=0.12)) == words, "a paper without numbers"
    assert why_not_tested(bare, BETTER, results(30, 50)) == "", "nothing is recorded by which to judge"


def test_a_rule_that_did_nothing() -> None:
    """The side with the larger dose counts; a claim that both sides are equal may hold because of it."""
    gated = dataclasses.replace(PAPER, gate=dataclasses.replace(GATE, dose={"conflict/ratio": 0}))
    nothing, some = results(fall=0.0, dose=0.005), results(fall=0.0, dose=[math.nan] * 3 + [0.02] * 3)
    assert why_not_tested(gated, BETTER, nothing) == "conflict/ratio is 0, as without the rule"
    assert why_not_tested(gated, dataclasses.replace(BETTER, by=0.5), nothing) == ""
    assert why_not_tested(gated, BETTER, some) == ""
    assert why_not_tested(gated, BETTER, results(fall=0.0, dose=math.nan)) == "", "no side has this rule"


def test_the_papers_regime() -> None:
    gated = dataclasses.replace(PAPER, gate=dataclasses.replace(GATE, overfits=True))
    words = "FedAvg does not overfit: its validation loss is 1.1 times its training loss"
    assert why_not_tested(gated, BETTER, results(gap=[1.1] * 3 + [9] * 3)) == words
    assert why_not_tested(gated, BETTER, results(gap=[1.6] * 3 + [1] * 3)) == ""


def test_a_claim_whose_runs_miss_the_gate_is_never_opposite() -> None:
    """B is clearly below A, at chance."""
    (finding,) = judge(dataclasses.replace(PAPER, scale=""), results(50, 10))
    assert (finding.verdict, finding.why) == ("withheld", "B is at 10 % with seed 1, chance at 10 %")
    assert (finding.effect, finding.seeds) == (-40, 3)
    assert math.isnan(finding.p)


def test_what_published_results_do_not_record() -> None:
    gated = dataclasses.replace(PAPER, gate=Gate(dose={"conflict/ratio": 0}, overfits=True))
    later = ["the fall of FedAvg's training loss", "what the rules did", "whether FedAvg overfits"]
    assert parts_not_recorded(gated, BETTER, results()) == later
    assert parts_not_recorded(PAPER, BETTER, results(fall=0.1)) == []
    assert parts_not_recorded(PAPER, BETTER, results(fall=[math.nan] + [0.1] * 5)) == later[:1], "one run of FedAvg"
    assert parts_not_recorded(PAPER, BETTER, results(fall=[0.1] * 5 + [math.nan])) == [], "FedAvg's loss is asked for"
    assert parts_not_recorded(PAPER, BETTER, results().rename(columns={"top1": "val/loss"})) == ["accuracy", later[0]]
    assert (
        why_not_tested(gated, Claim("", B, A, measure="val/loss"), results().rename(columns={"top1": "val/loss"})) == ""
    )


def test_the_record_of_other_cells_is_not_asked_for() -> None:
    made = runs({(alpha, method): [50.0] * 3 for alpha in (1, 2) for method in "AB"}, "alpha", "method")
    made["gate/fall"] = made["alpha"].map({1: math.nan, 2: 0.1})
    assert parts_not_recorded(PAPER, Claim("", B, A, at={"alpha": 1}), made) == ["the fall of FedAvg's training loss"]
    assert parts_not_recorded(PAPER, Claim("", B, A, at={"alpha": 2}), made) == []


def test_runs_without_a_record_beside_runs_with_one_are_judged_by_their_accuracy() -> None:
    """Of B's seeds the first has none, and is at chance."""
    mixed = results(
        50, 50, accuracy=[50.0] * 3 + [math.nan, 50.0, 50.0], chance=[10.0] * 3 + [math.nan, 10.0, 10.0], fall=0.1
    )
    mixed.loc[3, "top1"] = 10.0
    assert why_not_tested(PAPER, BETTER, mixed) == "B is at 10 % with seed 1, chance at 10 %"


def test_columns_of_runs(tmp_path: Path) -> None:
    """Ten rounds: losses fall from 4 by 0.4 a round, so 0.8 and 0.4 after 1.6 and 1.2: 1 - 0.6/1.4.

    The validation loss is 2.4 and 0.6 in the last two rounds, the conflict ratio 0.5 in every other round.
    """
    losses = [4 - 0.4 * round for round in range(10)]
    ended = finished(
        tmp_path,
        top1=[0.1] * 9 + [0.6],
        **{"train/loss": losses, "val/loss": [9.0] * 8 + [2.4, 0.6], "conflict/ratio": [0.5, 0.0] * 5},
    )
    job = dataclasses.replace(ended, config={"model": {"client": {"init_args": {"num_classes": 100}}}})
    gated = dataclasses.replace(PAPER, gate=Gate(dose={"conflict/ratio": 0}))
    pairs = [(Cell(A, ()), job), (Cell(B, ()), waiting(tmp_path, 2))]
    (row,) = with_columns(gated, pairs, collect(gated, pairs)).to_dict("records")
    found = {name: row[f"gate/{name}"] for name in ("accuracy", "chance", "fall", "gap", "dose")}
    assert found == pytest.approx({"accuracy": 60, "chance": 1, "fall": 0.5714, "gap": 2.5, "dose": 0.25})
    assert list(with_columns(dataclasses.replace(gated, claims=()), pairs, collect(gated, pairs))) == [
        *("method", "round", "seed", "top1", "seconds", "folder")
    ]
    boxes = [(Cell(A, ()), finished(tmp_path / "boxes", **{"val/map50": [0.25, 0.5]}))]
    (row,) = with_columns(gated, boxes, collect(gated, boxes)).to_dict("records")
    assert (row["gate/accuracy"], row["gate/chance"]) == (50, 0)
    assert math.isnan(row["gate/fall"])


def test_configs_name_fedavgs_cells_and_metrics() -> None:
    """A paper's base says what its gate is; a table may say more."""
    for each in experiments().values():
        assert not each.claims or [cell for cell in each.cells if has(cell.labels, each.gate.fedavg)]
    found = {id: each.gate for id, each in experiments().items()}
    assert found["fedlaw/table-7"] == Gate(dose={"fedlaw/gamma": 1}, overfits=True)
    assert found["fedlaw/table-9"] == Gate(fedavg={"gamma": 1.0}, overfits=True)
    assert found["controls/length"] == Gate(dose={"conflict/ratio": 0}) == found["choices/fedgh-slides"]
    assert found["fedgam/table-4"] == Gate()


def test_what_is_seen() -> None:
    """FedAvg's means alone, but for the dose; a dash where nothing is recorded."""
    assert gate_row(PAPER, results(50, 60)) == ["50 %", "70 %", "–", "–", "–"]
    recorded = results(50, 60, fall=0.12, gap=1.5, dose=[0.2, 0.4, 0.6] * 2)
    assert gate_row(PAPER, recorded) == ["50 %", "70 %", "12%", "1.5", "0.4"]
