"""What papers.yaml says: its rows and claims find their cells, its claims hold in the papers' own numbers."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import Cell
from fl_lightning.reproduce.claims import effects
from fl_lightning.reproduce.papers import Experiment, experiments, find
from fl_lightning.reproduce.results import on_paper, printed, same
from fl_lightning.runs.catalogue import in_papers

IDS = [id for id, each in experiments().items() if each.rows]  # the papers', without controls of our own
# The papers' tables as transcribed; where they are not at hand, papers.yaml is not compared with them.
TABLES = Path(__file__).parents[3] / "shared" / "papers" / "tables.yaml"
WITHOUT_CLAIMS = {"fedlaw/table-11"}  # all of it is about a measure that is not read


@cache
def cells(id: str) -> list[Cell]:
    return experiments()[id].cells()


def points(experiment: Experiment) -> pd.DataFrame:
    """A run of every cell with seed 0, at every round that is read."""
    axes = list(dict.fromkeys(axis for cell in cells(experiment.id) for axis in cell.labels))
    zeros = dict.fromkeys(experiment.measures, 0.0)
    rounds = experiment.rounds or [1]
    labels = [{axis: cell.labels.get(axis) for axis in axes} for cell in cells(experiment.id)]
    return pd.DataFrame([{**each, "round": round, "seed": 0, **zeros} for each in labels for round in rounds])


def numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: row[name] for name in in_papers() if row.get(name) is not None}


@cache
def transcribed() -> dict[str, Any]:
    if not TABLES.is_file():
        pytest.skip("the papers' tables are not at hand")
    return {experiment["id"]: experiment for experiment in yaml.safe_load(TABLES.read_text())["experiments"]}


@pytest.mark.parametrize("id", IDS)
def test_every_printed_number_is_found_by_its_cell(id: str) -> None:
    """A cell has the row's label on each axis that both have; a row names nothing but axes, measures and its round."""
    experiment = experiments()[id]
    for row in experiment.rows:
        matching = [
            cell.labels
            for cell in cells(id)
            if all(same(row[axis], label) for axis, label in cell.labels.items() if axis in row)
        ]
        for name, value in numbers(dict(row)).items():
            assert matching, row
            assert all(printed(experiment, {**cell, "round": row.get("round")}, name) == value for cell in matching)
    axes = {axis for cell in cells(id) for axis in cell.labels}
    notes = " ".join(experiment.notes)
    for row in experiment.rows:
        unknown = set(row) - axes - {"round", *in_papers()}
        if any(name in row for name in in_papers()):
            assert all(name in notes for name in unknown), f"{unknown}: no axis, no measure, and no note says why"
        else:
            assert any(name in notes for name in unknown), f"{unknown}: nothing is read, and no note says why"


@pytest.mark.parametrize("id", IDS)
def test_every_claim_names_cells_of_the_grid(id: str) -> None:
    """Each label is one of its axis', and there is exactly one pair of cells to compare for all other labels."""
    experiment = experiments()[id]
    whole = points(experiment)
    assert bool(experiment.claims) != (id in WITHOUT_CLAIMS)
    for claim in experiment.claims:
        for axis, label in [*claim.higher.items(), *claim.than.items(), *claim.at.items()]:
            for each in label if isinstance(label, list) else [label]:
                assert any(same(each, value) for value in whole[axis]), f"{claim.text}: {axis} {each}"
        assert all(len(one.values) == 1 for one in effects(claim, whole)), claim.text


CLAIMS = [(experiment.id, claim) for experiment in experiments().values() for claim in experiment.claims]


@pytest.mark.parametrize("id", IDS)
def test_the_papers_own_numbers_support_its_claims(id: str) -> None:
    """Where they print them all: by its sign, or within its margin; one number a cell has no spread."""
    experiment = experiments()[id]
    paper = on_paper(experiment, points(experiment))
    for claim in experiment.claims:
        for comparison, whole in zip(effects(claim, paper), effects(claim, points(experiment)), strict=True):
            if comparison.cells == whole.cells:
                (effect,) = comparison.values
                supported = abs(effect) < claim.by if claim.by is not None else effect > 0
                assert supported, f"{claim.text}: {comparison.than}: {effect}"


def test_every_claim_about_a_table_was_compared_with_its_numbers() -> None:
    """The test above would pass if none were found."""
    tables = [(experiments()[id], claim) for id, claim in CLAIMS if "table" in id]
    assert len(tables) > 60
    for experiment, claim in tables:
        assert all(len(one.values) for one in effects(claim, on_paper(experiment, points(experiment)))), claim.text


@pytest.mark.parametrize("id", IDS)
def test_the_numbers_are_those_of_the_transcription(id: str) -> None:
    ours, theirs = experiments()[id].rows, transcribed()[id]["rows"]
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert dict(our) == {name: their[name] for name in our}
        assert numbers(dict(our)) == numbers(their)


def test_every_experiment_of_the_papers_is_here() -> None:
    assert list(transcribed()) == IDS
    assert len(IDS) == 32


def test_fedlaws_numbers_are_means_of_ten_rounds() -> None:
    """Of rounds 191 to 200, as its Table 1's setting says; all others are of one round."""
    assert {id: each.last for id, each in experiments().items() if each.last != 1} == {
        f"fedlaw/table-{number}": 10 for number in range(1, 12)
    }


def test_what_is_read_is_what_rows_and_claims_name() -> None:
    """Top-1 and top-3 at three rounds; min_cosine of a row and a metric of a claim; top-1 where nothing is printed."""
    known = experiments()
    assert (known["fedgh-slides/table-4"].measures, known["fedgh-slides/table-4"].rounds) == (
        ("top1", "top3"),
        [100, 200, 500],
    )
    assert known["fedgh-paper/fig-2"].measures == ("min_cosine", "conflict/ratio")
    assert known["fedgh-paper/fig-2"].rounds == []
    assert known["fedgh-paper/fig-4"].rounds == [75, 78, 100]
    assert known["fedlaw/table-11"].measures == ("top1",)


def test_find_takes_an_id_or_a_document() -> None:
    assert [each.id for each in find("fedmgc/fig-1")] == ["fedmgc/fig-1"]
    assert [each.id for each in find("fedgam/")] == [
        "fedgam/table-3",
        "fedgam/table-4",
        "fedgam/table-5",
        "fedgam/fig-4",
    ]
    with pytest.raises(ConfigurationError, match="did you mean fedgam/table-3"):
        find("fedgam/tabel-3")


def test_iid_is_the_infinite_alpha() -> None:
    """FedAvg's 90.87 of the slides' Table 2."""
    experiment = experiments()["fedgh-slides/table-2"]
    assert printed(experiment, {"alpha": math.inf, "method": "FedAvg", "round": 50}, "top1") == 90.87


def test_fedavg_without_a_proxy_set_stands_in_every_column() -> None:
    """Table 6: 75.24 beside each proxy set; FedDF's 74.04 only where the set is long-tailed and drawn from as it is."""
    experiment = experiments()["fedlaw/table-6"]
    paper = on_paper(experiment, points(experiment))
    iid = paper[paper["alpha"] == 100]
    assert iid[iid["method"] == "FedAvg"]["top1"].tolist() == [75.24]
    assert sorted(iid[iid["method"] == "FedDF"]["top1"]) == [73.31, 74.04, 76.2]
