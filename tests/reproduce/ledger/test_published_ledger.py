"""The ledger in the documentation: what the command makes of the results beside it."""

from pathlib import Path

import pytest

from fl_lightning.reproduce.ledger.findings import Entry, ledger
from fl_lightning.reproduce.ledger.page import page_of

RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return ledger(RESULTS)


def test_the_ledger_is_made_from_the_results_beside_it(entries: list[Entry]) -> None:
    """``fl-lightning reproduce --ledger docs/results/ledger.md --out docs/results`` writes it anew."""
    page = RESULTS / "ledger.md"
    assert page.read_text(encoding="utf-8") == page_of(entries, RESULTS, page)


def test_every_paper_that_is_tried_has_a_page_with_its_figure(entries: list[Entry]) -> None:
    """Each page says what the paper claims, what came out, at which scale, and what we think."""
    for paper in {entry.paper for entry in entries if entry.experiment.rows and entry.best.seeds}:
        text = (RESULTS / f"{paper}.md").read_text(encoding="utf-8")
        assert f"](ledger.md#{paper})" in text
        assert f"(ledger-{paper}.png)" in text
