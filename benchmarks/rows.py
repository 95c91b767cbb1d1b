"""The table's rows: as cells, as JSON, and as the table of docs/results/performance.md."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from benchmarks import environments

HEADER = ("group", "case", "figure", "ratio", "lowest–highest", "aim", "note")
START, END = "<!-- benchmarks -->\n", "<!-- end -->"
LIBRARIES = ("fl-lightning", "torch", "lightning", "numpy")


@dataclass(frozen=True)
class Row:
    """One figure.

    Args:
        group: the group of benchmarks, one of ``benchmarks.__main__.GROUPS``.
        case: the model and the clients, or the config, rule or file, that was timed.
        figure: numerator and denominator of the ratio.
        ratio: the median over turns; None if the figure could not be measured.
        lowest: the lowest ratio of a turn.
        highest: the highest ratio of a turn.
        aim: "≤ x" or "≥ x", or None.
        note: seconds behind the ratio, or why there is no ratio.
    """

    group: str
    case: str
    figure: str
    ratio: float | None = None
    lowest: float | None = None
    highest: float | None = None
    aim: str | None = None
    note: str = ""

    @classmethod
    def over(
        cls, turns: list[float], group: str, case: str, figure: str, aim: str | None = None, note: str = ""
    ) -> "Row":
        """Make the row of the ratios of several turns."""
        return cls(group, case, figure, median(turns), min(turns), max(turns), aim, note)

    def cells(self) -> tuple[str, ...]:
        """Return what the table shows, in the order of ``HEADER``."""
        spread = (
            "" if self.lowest is None or self.highest is None else f"{_number(self.lowest)}–{_number(self.highest)}"
        )
        ratio = "–" if self.ratio is None else _number(self.ratio)
        return self.group, self.case, self.figure, ratio, spread, self._judged(), self.note

    def _judged(self) -> str:
        if self.aim is None:
            return ""
        sign, bound = self.aim.split()
        missed = self.ratio is not None and (self.ratio > float(bound) if sign == "≤" else self.ratio < float(bound))
        return f"{self.aim}, missed" if missed else self.aim


def _number(ratio: float) -> str:
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"


def markdown(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def duration(seconds: float) -> str:
    """Write seconds in a unit that suits them.

    >>> duration(0.0042), duration(12.34)
    ('4.2 ms', '12.3 s')
    """
    if seconds < 1e-4:
        return f"{1e6 * seconds:.0f} µs"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.{0 if seconds >= 0.1 else 1}f} ms"


def record(rows: list[Row], quick: bool) -> dict[str, Any]:
    """Return what the JSON file holds: the rows, the machine, the versions and the date."""
    machine = {
        "cpu": torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
    }
    versions = (
        {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES} | environments.versions()
    )
    return {
        "date": f"{date.today():%Y-%m-%d}",
        "quick": quick,
        "machine": machine,
        "versions": versions,
        "rows": [asdict(row) for row in rows],
    }


def write_page(page: Path, file: Path) -> None:
    """Replace the table of a Markdown page, between its markers, by the one of a JSON file."""
    saved = json.loads(file.read_text())
    machine, text = saved["machine"], page.read_text()
    lines = [HEADER, ("---",) * len(HEADER), *(Row(**row).cells() for row in saved["rows"])]
    table = "\n".join(map(markdown, lines))
    when = (
        f"Measured on {saved['date']}{', with few repetitions (`--quick`)' if saved['quick'] else ''}, on one thread "
        f"of {machine['cpu']} ({machine['cores']} cores, {machine['memory_gb']} GB), with "
        f"{', '.join(f'{name} {number}' for name, number in saved['versions'].items())}."
    )
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{START}{when}\n\n{table}\n{END}{after}")
