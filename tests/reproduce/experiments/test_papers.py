"""What configs say below ``paper``: rows, claims and figures find their cells; claims hold in the papers' numbers."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fl_lightning.callbacks import CoherenceMonitor, FedLAW, HessianMonitor, ImbalanceMonitor
from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import CONFIGS
from fl_lightning.fit.read_config import callbacks_of, config_of
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.experiments.papers import experiments, figures, find
from fl_lightning.reproduce.experiments.scale import at_scale
from fl_lightning.reproduce.outcome.claims import effects, has
from fl_lightning.reproduce.outcome.numbers import on_paper, printed, same, with_variances
from fl_lightning.reproduce.outcome.pictures import BY
from fl_lightning.runs.catalogue import in_papers

KNOWN = experiments()
IDS = [id for id, each in KNOWN.items() if each.rows]  # the papers', without controls of our own
CLAIMING = [id for id, each in KNOWN.items() if not each.tuning]  # all but the benchmark's, which ask a question
DRAWN = {each.id: each for each in [*KNOWN.values(), *figures()] if each.plot}
# The papers' tables as transcribed; where they are not at hand, the configs are not compared with them.
TABLES = Path(__file__).parents[4] / "shared" / "papers" / "tables.yaml"
SAMPLES = {"fedgh-slides/fig-output"}  # pictures without a number, which are not transcribed
SKETCHES = {"fedgh-paper/fig-1", "fedgh-paper/fig-3", "fedgam/fig-1"}


def points(experiment: Experiment) -> pd.DataFrame:
    """A run of every cell with seed 0, at every round that is read."""
    axes = list(dict.fromkeys(axis for cell in experiment.cells for axis in cell.labels))
    zeros = dict.fromkeys(experiment.measures, 0.0)
    labels = [{axis: cell.labels.get(axis) for axis in axes} for cell in experiment.cells]
    rounds = experiment.rounds or [1]
    if experiment.pooled:
        labels.append(dict(experiment.pooled))
    runs = pd.DataFrame([{**each, "round": round, "seed": 0, **zeros} for each in labels for round in rounds])
    return with_variances(runs, experiment.measures)


def numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: row[name] for name in in_papers() if row.get(name) is not None}


@cache
def transcribed() -> dict[str, Any]:
    if not TABLES.is_file():
        pytest.skip("the papers' tables are not at hand")
    return dict(yaml.safe_load(TABLES.read_text()))


@pytest.mark.parametrize("id", IDS)
def test_rows_are_those_of_the_transcription(id: str) -> None:
    theirs = {each["id"]: each["rows"] for each in transcribed()["experiments"]}
    if id not in theirs:
        pytest.skip(f"{id} is not among the papers' tables as transcribed")
    borrowed = KNOWN[id].rows[: len(KNOWN[id].rows) - len(theirs[id])]  # from the table with the same setting
    assert not borrowed or id == "fedgh-paper/fig-4"
    table = [(row["method"], row["top1"]) for row in KNOWN["fedgh-paper/table-1"].rows if row["alpha"] == 0.01]
    assert {(row["method"], row["top1"]) for row in borrowed} <= {*table}
    for our, their in zip(KNOWN[id].rows[len(borrowed) :], theirs[id], strict=True):
        assert dict(our) == {name: their[name] for name in our}
        assert numbers(dict(our)) == numbers(their)


def test_every_experiment_and_figure_of_the_papers_is_here_or_known_not_to_be() -> None:
    theirs = [each["id"] for each in transcribed()["experiments"]]
    assert theirs == [id for id in IDS if id in theirs]
    assert {*DRAWN} - SAMPLES | SKETCHES == {each["id"].rstrip("abc") for each in transcribed()["figures"]}
    assert not {*DRAWN} & SKETCHES


@pytest.mark.parametrize("id", IDS)
def test_every_printed_number_is_found_by_its_cell(id: str) -> None:
    """A cell has the row's label on each axis that both have; a row names nothing but axes, measures and its round."""
    experiment, notes = KNOWN[id], " ".join(KNOWN[id].notes)
    axes = {axis for cell in experiment.cells for axis in cell.labels}
    for row in experiment.rows:
        labels = [cell.labels for cell in experiment.cells]
        matching = [each for each in labels if all(same(row[axis], each[axis]) for axis in each if axis in row)]
        measures = {*in_papers(), *experiment.measures}
        for name, value in row.items():
            if name in measures and value is not None:
                assert matching, row
                assert all(printed(experiment, {**cell, "round": row.get("round")}, name) == value for cell in matching)
        unknown = set(row) - axes - measures - {"round"}
        told = [name in notes for name in unknown]
        assert all(told) if set(row) & measures else any(told), f"{unknown}: no axis, no measure, and no note"


@pytest.mark.parametrize("id", CLAIMING)
def test_claims_name_cells_and_are_supported_by_the_papers_own_numbers(id: str) -> None:
    """Each label is one of its axis', and there is exactly one pair of cells to compare for all other labels.

    Where the paper prints all of them, the effect has the claim's sign, or is within its margin.
    """
    experiment = KNOWN[id]
    whole = points(experiment)
    paper = on_paper(experiment, whole)
    assert experiment.claims
    for claim in experiment.claims:
        for axis, label in [*claim.higher.items(), *claim.than.items(), *claim.at.items()]:
            for each in label if isinstance(label, list) else [label]:
                assert any(same(each, value) for value in whole[axis]), f"{claim.text}: {axis} {each}"
        for theirs, all_cells in zip(effects(claim, paper), effects(claim, whole), strict=True):
            assert len(all_cells.values) == 1, claim.text
            printed_or_stated = len(theirs.values) or not math.isnan(claim.stated) or claim.by is not None
            assert printed_or_stated or "table" not in id or not experiment.rows, claim.text
            if theirs.cells == all_cells.cells:
                (effect,) = theirs.values
                assert abs(effect) < claim.by if claim.by is not None else effect > 0, f"{claim.text}: {theirs.than}"


@pytest.mark.parametrize("id", DRAWN)
def test_figures_name_panels_and_measures_that_exist(id: str) -> None:
    plot = DRAWN[id].plot
    documented = "".join(str(each.__doc__) for each in (FedLAW, CoherenceMonitor, HessianMonitor, ImbalanceMonitor))
    assert plot is not None
    assert all(axis in cell.labels for cell in DRAWN[id].cells for axis in plot.panels)
    assert bool(plot.measures) == (plot.kind not in ("surface", "detections", "partition"))
    assert all(plot.over in cell.labels for cell in DRAWN[id].cells) == (plot.kind == "labels")
    known = (
        {"gamma", "weights"}
        if plot.kind == "epochs"
        else {*in_papers(), *BY, "val/loss", "conflict/ratio", "hessian/eigenvalue_1"}
    )
    assert all(measure in known or measure in documented for measure in plot.measures)


def test_figures_of_other_experiments_show_the_cells_that_they_name() -> None:
    """By hand: 2 alphas, 6 gammas; 2 alphas; 2 methods; 2 methods; 2 methods, 4 alphas; 2 methods; 4 alphas, and 2 each
    with 1 and 5 local epochs; one; 8 methods, 2 networks, 2 alphas in three data sets; 3 partitions; 9 methods on 9.
    """
    counts = {"fig-1": 12, "fig-3": 2, "fig-4": 2, "fig-6": 2, "fig-9": 8, "fig-10": 2, "fig-11": 8, "fig-13": 1}
    counts |= dict.fromkeys(["fig-15", "fig-16", "fig-17"], 32)
    assert {each.id: len(each.cells) for each in figures("fedlaw")} == {f"fedlaw/{id}": n for id, n in counts.items()}
    assert [len(each.cells) for each in figures("fedgam")] == [3, 81]


def test_a_figure_of_another_experiment_has_its_settings_and_not_its_claims() -> None:
    (figure,), table = find("fedlaw/fig-13"), KNOWN["fedlaw/table-1"]
    assert (figure.config, figure.last, figure.rows, figure.claims) == (table.config, 10, table.rows, ())
    assert figure.source.endswith("Fig. 13")
    assert "The paper's numbers are those of fedlaw/table-1." in figure.notes
    assert figure.cells[0].options[-1] == (
        "--data.partition={class_path: HybridDirichlet, init_args: {alphas: [10, 0.1]}}"
    )


def test_a_figures_monitor_comes_before_the_rule_whose_epochs_a_scale_changes() -> None:
    """``trainer.callbacks.epochs`` is an option of the last callback."""
    (figure,) = find("fedlaw/fig-6")
    options = at_scale("laptop", figure).cells[-1].options
    at = [next(i for i, each in enumerate(options) if text in each) for text in ("Coherence", "FedLAW", "epochs=10")]
    assert at == sorted(at)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("fedmgc/figure-1", "fig-1"),
        ("fedlaw/figure-13", "fig-13"),
        ("fedgam", "table-3 table-4 table-5 fig-4 fig-5 fig-2 fig-3"),
        ("fedgam/", "table-3 table-4 table-5 fig-4 fig-5 fig-2 fig-3"),
        ("controls", "sham adapters dose fine_tuning length steps variates"),
    ],
)
def test_find_takes_an_id_or_a_document_tables_first(name: str, ids: str) -> None:
    document = name.partition("/")[0]
    assert [each.id for each in find(name)] == [f"{document}/{id}" for id in ids.split()]


@pytest.mark.parametrize("name", ["fedlaw/fig-99", "fedlaw/fig", "fedlaw/figure-100", "fed"])
def test_find_refuses_others(name: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no experiment fed"):
        find(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("fedgh/table-2", "did you mean fedgh-slides/table-2 or fedgh-paper/table-2?"),
        ("fedgh", "did you mean fedgh-paper or fedgh-slides?"),
        ("fedlow/table-11", "did you mean fedlaw/table-11?"),
        ("x", "fl-lightning reproduce --list names all"),
    ],
)
def test_find_names_what_is_near(name: str, hint: str) -> None:
    """The same table in documents that begin so, documents that begin so, what is most similar, or nothing."""
    with pytest.raises(ConfigurationError) as refusal:
        find(name)
    assert str(refusal.value) == f"there is no experiment {name}: {hint}"


def test_what_is_read_is_what_rows_and_claims_name() -> None:
    """Top-1 and top-3 at three rounds; min_cosine of a row and a metric of a claim; top-1 where nothing is printed."""
    four, two = KNOWN["fedgh-slides/table-4"], KNOWN["fedgh-paper/fig-2"]
    assert (four.measures, four.rounds) == (("top1", "top3"), [100, 200, 500])
    assert (two.measures, two.rounds) == (("min_cosine", "conflict/ratio"), [20, 100])
    assert KNOWN["fedgh-paper/fig-4"].rounds == [75, 78, 100]
    assert "weights/size" in KNOWN["fedlaw/table-11"].measures
    last = {id: KNOWN[id].last for id in CLAIMING if KNOWN[id].last != 1}
    tables = {f"fedlaw/table-{number}": 10 for number in range(1, 12)}  # means of ten rounds, as Table 1 says
    figures = ("fedlaw/fig-2", "fedlaw/fig-5", "fedlaw/fig-7", "fedlaw/fig-8", "fedmgc/fig-1", "fedmgc/fig-2")
    ends = {
        **dict.fromkeys((*figures, "fedmgc/fig-4"), 10),
        "fedlaw/fig-12": 50,
        "fedlaw/fig-14": 200,
        "pfllib/table-1": 100,  # of 2,000
        "pfllib/baselines": 100,
        "controls/fine_tuning": 100,
        "controls/adapters": 5,
        "controls/dose": 13,  # the last four evaluations
        "controls/variates": 13,
    }
    assert last == {**tables, **ends}, "the ends of curves"


def test_labels_of_cells_and_rows() -> None:
    """IID is the infinite alpha: FedAvg's 90.87 of the slides' Table 2. FedAvg, without a proxy set, stands in every
    column: 75.24 of Table 6 beside each proxy set; FedDF's 74.04 only where the set is long-tailed and drawn as it is.
    """
    assert printed(KNOWN["fedgh-slides/table-2"], {"alpha": math.inf, "method": "FedAvg", "round": 50}, "top1") == 90.87
    paper = on_paper(KNOWN["fedlaw/table-6"], points(KNOWN["fedlaw/table-6"]))
    iid = paper[paper["alpha"] == 100]
    assert iid[iid["method"] == "FedAvg"]["top1"].tolist() == [75.24]
    assert sorted(iid[iid["method"] == "FedDF"]["top1"]) == [73.31, 74.04, 76.2]


@pytest.mark.parametrize("id", CLAIMING)
def test_the_laptop_scale_keeps_cells_for_every_claim(id: str) -> None:
    """Both sides of each claim are there, unless it is about cells that are all left out, such as another network."""
    experiment = at_scale("laptop", KNOWN[id])
    assert 0 < experiment.pace <= 1
    at = [{axis: label for axis, label in claim.at.items() if axis != "round"} for claim in experiment.claims]
    about = [any(has(cell.labels, each) for cell in experiment.cells) for each in at]
    kept = [claim for claim, some in zip(experiment.claims, about, strict=True) if some]
    assert kept or not experiment.claims
    sides = [side for claim in kept for side in (claim.higher, claim.than)]
    for axis, label in (item for side in sides for item in side.items() if item[0] != "round"):
        wanted = label if isinstance(label, list) else [label]
        pooled = {experiment.pooled.get(axis)} - {None}
        assert set(wanted) <= {cell.labels.get(axis) for cell in experiment.cells} | pooled, (axis, label)


PAPERS = [id for id in KNOWN if not id.startswith("benchmark/")]  # whose cells leave the draws of arguments out


@pytest.mark.parametrize("id", [pytest.param(id, marks=[pytest.mark.slow] * (id != "fedmgc/fig-1")) for id in PAPERS])
def test_callbacks_of_every_method_can_be_made_at_the_laptop_scale(id: str) -> None:
    experiment = at_scale("laptop", KNOWN[id])
    for cell in {str(cell.labels.get("method")): cell for cell in experiment.cells}.values():
        assert callbacks_of(config_of([f"--config={experiment.config}", *cell.options])) is not None


def test_a_paper_is_no_setting() -> None:
    """A run neither records what a paper prints nor depends on it."""
    config = config_of([f"--config={CONFIGS / 'papers' / 'fedmgc' / 'fig-1.yaml'}"])
    assert {"paper", "grid", "scale", "base"}.isdisjoint(config)
