"""The ledger in the documentation: what the command makes of the results beside it."""

import math
import re
from pathlib import Path

import pytest
import yaml

from fl_lightning.reproduce.ledger.findings import Entry, counts, ledger, summary
from fl_lightning.reproduce.ledger.page import by_paper, page_of

RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return ledger(RESULTS)


def test_the_ledger_is_made_from_the_results_beside_it(entries: list[Entry]) -> None:
    """``fl-lightning reproduce --ledger docs/results/ledger.md --out docs/results`` writes it anew."""
    page = RESULTS / "ledger.md"
    assert page.read_text(encoding="utf-8") == page_of(entries, RESULTS, page)


def test_readme_results_and_changelog_count_as_the_ledger_does(entries: list[Entry]) -> None:
    for page in ("README.md", "docs/results/index.md", "CHANGELOG.md"):
        text = " ".join((RESULTS.parents[1] / page).read_text(encoding="utf-8").partition("\n## 0")[0].split())
        assert re.findall(r"Of \d+ claims: [^.]*\.", text) == [summary(entries)], page


def test_what_to_believe_is_written_for_the_present_verdicts(entries: list[Entry]) -> None:
    """Where this fails, write the paper's sentence anew, and then the counts for which it is true."""
    said = yaml.safe_load((RESULTS / "ledger.yaml").read_text(encoding="utf-8"))
    papers = by_paper(entries)
    assert {paper: each["verdicts"] for paper, each in said.items()} == {
        paper: list(counts(own).values()) for paper, own in papers.items()
    }
    assert all(len(each["believe"]) <= 150 for each in said.values())


def test_every_paper_that_is_tried_has_a_page_with_its_figure(entries: list[Entry]) -> None:
    """Each page says what the paper claims, what came out, at which scale, and what we think."""
    for paper in {entry.paper for entry in entries if entry.experiment.rows and not math.isnan(entry.best.p)}:
        text = (RESULTS / f"{paper}.md").read_text(encoding="utf-8")
        assert f"](ledger.md#{paper})" in text
        assert f"(ledger-{paper}.png)" in text
