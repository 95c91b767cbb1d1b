"""Reports runs, and reads the page as a reader without JavaScript finds it: sections, what they hold, numbers."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path

from fl_lightning.runs.catalogue import is_item
from lib.command import rows, run

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
MEASURES = (Path(__file__).parents[2] / "docs" / "reference" / "measures.md").read_text()
DOCUMENTED = [re.sub("<.*?>", "[^/]+", name) for name in re.findall(r"`([\w<>]+(?:/[\w<>]+)*)`", MEASURES)]
CONTENT = ("td", "li", "figure", "pre")


class Page(HTMLParser):
    """A report's sections and numbers.

    Attributes:
        sections: heading of each section, and the number of its cells of tables, items of lists, charts and texts.
        numbers: the numbers in texts, in charts and in tables.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sections: dict[str, int] = {}
        self.numbers: set[float] = set()
        self._reads = True
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self._reads = tag != "style" and (tag != "script" or attributes.get("type") == "application/json")
        if tag == "section":
            self.sections[str(attributes["aria-labelledby"])] = 0
        elif tag in CONTENT and self.sections:
            self.sections[next(reversed(self.sections))] += 1

    def handle_data(self, data: str) -> None:
        if self._reads:
            self.numbers.update(map(float, NUMBER.findall(data)))

    def handle_endtag(self, tag: str) -> None:
        self._reads = True

    def shows(self, name: str, value: float) -> bool:
        """Whether a metric's value is on the page: four digits of it, or three in heat maps of clients and classes.

        Ratios by layer after correction are in per cent alone.
        """
        if name.startswith("conflict/layer_after/"):
            return float(f"{100 * value:.2f}") in self.numbers
        return any(float(f"{value:.{digits}g}") in self.numbers for digits in ((4, 3) if is_item(name) else (4,)))


def check_documented(folder: Path) -> None:
    """Every metric of a run has its name in docs/reference/measures.md, where <k> and the like stand for anything."""
    unknown = [name for name in rows(folder / "metrics.csv")[-1] if not re.fullmatch("|".join(DOCUMENTED), name)]
    assert not unknown, f"not in docs/reference/measures.md: {unknown}"


def check_reported(folder: Path) -> None:
    """The report of all runs in a folder: every section has content, and every metric of a last round its number."""
    result = run("report", folder, "--out", folder / "report.html")
    assert (result.status, result.err) == (0, "")
    page = Page((folder / "report.html").read_text())
    assert page.sections, "no section"
    empty = [name for name, held in page.sections.items() if not held]
    assert not empty, f"sections without content: {empty}"
    for run_folder in {file.parent for file in folder.rglob("metrics.csv")}:
        last = rows(run_folder / "metrics.csv")[-1]
        missing = [name for name, value in last.items() if math.isfinite(value) and not page.shows(name, value)]
        assert not missing, f"not on the page: {missing} of {run_folder}"
