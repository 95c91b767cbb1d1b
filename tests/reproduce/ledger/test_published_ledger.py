"""The ledger in the documentation: what the command makes of the results beside it."""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from fl_lightning.reproduce.ledger.findings import Entry, apart, folder_of, ledger, summary
from fl_lightning.reproduce.ledger.page import by_paper, pages_of
from fl_lightning.reproduce.outcome.claims import effects
from fl_lightning.reproduce.outcome.numbers import RESULTS as FILE
from fl_lightning.reproduce.outcome.numbers import axes_of, read
from fl_lightning.reproduce.outcome.verdict import HOLDS, OPPOSITE, decide

RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return ledger(RESULTS)


def test_the_ledger_is_made_from_the_results_beside_it(entries: list[Entry]) -> None:
    """``fl-lightning reproduce --ledger docs/results/ledger.md --out docs/results`` writes it anew."""
    page = RESULTS / "ledger.md"
    pages = pages_of(entries, RESULTS, page)
    assert len(pages) == 1 + len(by_paper(entries))
    assert {path: path.read_text(encoding="utf-8") for path in pages} == pages


def test_readme_and_results_count_as_the_ledger_does(entries: list[Entry]) -> None:
    for page in ("README.md", "docs/results/index.md"):
        text = (RESULTS.parents[1] / page).read_text(encoding="utf-8")
        assert text.count("At the paper's setting") == text.count(summary(entries)) == 1, page


def test_the_rows_of_counts_sum_to_the_headline(entries: list[Entry]) -> None:
    """The first lines count every claim of the papers once, and so do the rows of the first table, column by column."""
    head, table = (RESULTS / "ledger.md").read_text(encoding="utf-8").split("</div>")[0].split("<div", 1)
    at_the_setting, all_claims = map(int, re.findall(r"(\d+)\s+of\s+(\d+)\s+claims", head)[0])
    stand_ins, not_run = int(re.findall(r"alone (\d+) were", head)[0]), int(re.findall(r"Not run\*\*: (\d+)", head)[0])
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    rows = {row[0]: [int(re.match(r"\d+", cell)[0]) for cell in row[1:5]] for row in cells}  # type: ignore[index]
    whole = [all_claims, at_the_setting, stand_ins, not_run]
    assert sum(whole[1:]) == whole[0] == sum(entry.is_papers for entry in entries)
    papers = [row for name, row in rows.items() if name != "all papers" and "(ours)" not in name]
    assert [sum(column) for column in zip(*papers, strict=True)] == whole == rows["all papers"]


def test_no_verdict_of_a_stand_in_is_called_the_papers(entries: list[Entry]) -> None:
    """Words by the ledger; and whether it is a stand-in by the folder, which only ``--scale`` fills."""
    for entry in entries:
        for scale, finding in entry.findings.items():
            assert (finding.stand_in is not None) == (scale != "full" and finding.verdict != "not run")
            own = (
                {"holds", "too small", "opposite", "differs"}
                if scale == "full"
                else {"holds on the stand-in", "not on the stand-in"}
            )
            assert finding.verdict in own | {"withheld", "open", "not run"}


def test_what_to_believe_is_written_for_the_present_verdicts(entries: list[Entry]) -> None:
    """Where this fails, write the paper's sentence anew, and then the counts for which it is true."""
    said = yaml.safe_load((RESULTS / "ledger.yaml").read_text(encoding="utf-8"))
    papers = by_paper(entries)
    assert {paper: each["verdicts"] for paper, each in said.items()} == {
        paper: apart(own).counts() for paper, own in papers.items()
    }
    assert all(len(each["believe"]) <= 200 for each in said.values())


def test_every_paper_that_is_tried_has_a_page_with_its_figure(entries: list[Entry]) -> None:
    """Each page says what the paper claims, what came out, at which scale, and what we think."""
    for paper in {entry.paper for entry in entries if entry.experiment.rows and not math.isnan(entry.best.p)}:
        text = (RESULTS / f"{paper}.md").read_text(encoding="utf-8")
        assert f"](ledger.md#{paper})" in text
        assert f"(ledger-{paper}.png)" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "place", "taken_out", "percent"),
    [
        ("fedgh-slides", "setting", False, 6),
        ("fedgh-slides", "setting", True, 3),
        ("fedgh-slides", "stand-in", False, 6),
        ("fedgh-slides", "stand-in", True, 3),
        ("fedlaw", "stand-in", True, 3),
    ],
)
def test_labels_that_are_shuffled_within_seeds_decide_nothing(
    entries: list[Entry], paper: str, place: str, taken_out: bool, percent: int
) -> None:
    """The check against luck, for each ledger apart: of all claims in 100 shuffles, few seem decided.

    Decided is above half of the paper's, or below 0.

    An effect of 0 is rightly smaller than half of the paper's, so that verdict does not count here. FedLAW's effects
    are taken out first: labels of two cells that are exchanged in each of three seeds leave a large effect in place,
    or turn it, one time in four, and as they are its claims miss the limit (6.7 %).
    """
    places = apart(by_paper(entries)[paper])
    run = places.at_the_setting if place == "setting" else places.on_a_stand_in
    tested = [entry for entry in run if not math.isnan(entry.best.p)]
    own = [entry for entry in tested if entry.claim.by is None and entry.claim.number is None]
    draw, decided = np.random.default_rng(0), 0
    for entry in own:
        claim, results = entry.claim, read(folder_of(RESULTS, entry.scale, entry.experiment.id) / FILE)
        results = without_effects(results, claim.measure) if taken_out else results
        axes = {*claim.higher, *claim.than} - {"round"} or {"round"}
        for _ in range(100):
            found = [each.values for each in effects(claim, shuffled(results, sorted(axes), draw))]
            verdict = decide(found, [max(0.0, entry.best.paper / 2)] * len(found), None)[0]
            decided += verdict in (HOLDS, OPPOSITE)
    print(f"{paper}, {place}: {decided} of {100 * len(own)}")
    assert decided <= percent * len(own)


def without_effects(results: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Leave of a measure what the seeds of a cell differ by, as large as it is expected to be."""
    cells = results.groupby(axes_of(results), dropna=False)[measure]
    count = cells.transform("count")
    apart = (results[measure] - cells.transform("mean")) * (count / (count - 1).clip(lower=1)) ** 0.5
    return results.assign(**{measure: apart})


def shuffled(results: pd.DataFrame, axes: list[str], draw: np.random.Generator) -> pd.DataFrame:
    """Exchange the labels that runs have on some axes, all axes together, among the runs of each seed."""
    parts = []
    for _, part in results.groupby("seed"):
        labels, place = part[axes].drop_duplicates(), part.groupby(axes, dropna=False, sort=False).ngroup()
        found = labels.iloc[draw.permutation(len(labels))[place]]
        parts.append(part.assign(**{axis: found[axis].to_numpy() for axis in axes}))
    return pd.concat(parts)
