"""Reports runs, and reads the page as a reader without JavaScript finds it: sections, what they hold, numbers."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path

from command import rows, run

DIGITS = 5  # significant digits of the page's numbers
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
CONTENT = ("td", "figure", "pre")


class Page(HTMLParser):
    """A report's sections and numbers.

    Attributes:
        sections: heading of each section, and the number of its cells of tables, charts and texts.
        numbers: the numbers in tables, charts' data and attributes, to five digits.
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
        self._take(attributes.get("data-value") or "")

    def handle_data(self, data: str) -> None:
        if self._reads:
            self._take(data)

    def handle_endtag(self, tag: str) -> None:
        self._reads = True

    def _take(self, text: str) -> None:
        self.numbers.update(to_digits(float(number)) for number in NUMBER.findall(text))


def to_digits(value: float) -> float:
    """A number as the page has it."""
    return float(f"{value:.{DIGITS}g}")


def check_reported(folder: Path) -> None:
    """A run's report: every section has content, and every metric of the last round its number."""
    result = run("report", folder, "--out", "report.html")
    assert (result.status, result.err) == (0, "")
    page = Page(Path("report.html").read_text())
    assert page.sections, "no section"
    assert [name for name, held in page.sections.items() if not held] == []
    last = rows(folder / "metrics.csv")[-1]
    missing = {name for name, value in last.items() if math.isfinite(value) and to_digits(value) not in page.numbers}
    assert missing == set()
