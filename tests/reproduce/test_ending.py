"""The table that ends a sweep, in narrow and in wide terminals."""

import io

import pytest
from rich.console import Console

from fl_lightning.report.numbers import NBSP
from fl_lightning.reproduce.ending import fitted
from fl_lightning.reproduce.tables import framed

HEAD = ["method", "last, %", "last − FedAvg, points", "mean over rounds, %", "mean − FedAvg, points", "seeds"]
HEAD += ["rounds to 60 %", "sent until 60 %", "trained until 60 %"]
FEDAVG = ["FedAvg", "60.2 ± 5.7", "", "48.5 ± 4.7", "", "5", "1 of 5 seeds", "–", "–"]
GH = [
    "GH",
    "76.2 ± 2.4",
    "+16.1 ± 4.9, p = 0.0024",
    "62.7 ± 3.8",
    "+14.2 ± 3.6, p < 0.001",
    "5",
    "6",
    "385.8 MB",
    "16 s",
]
ROWS = [
    [cell.replace(" ", NBSP).replace(f",{NBSP}", ", ").replace(f"{NBSP}(", " (") for cell in row]
    for row in (FEDAVG, GH)
]


@pytest.mark.parametrize(("width", "costs"), [(80, 1), (100, 3), (120, 3), (170, 3)])
def test_numbers_are_whole_and_the_last_costs_go_first(width: int, costs: int) -> None:
    file = io.StringIO()
    Console(file=file, width=width).print(framed("", *fitted(HEAD, ROWS, width)))
    shown = file.getvalue()
    assert "…" not in shown
    words = shown.split()
    assert {"60.2±5.7", "62.7±3.8", "+16.1±4.9", "p=0.0024", "+14.2±3.6", "p<0.001", "6"} <= set(words)
    assert ["385.8" in words, "16" in words] == [costs > 1, costs > 2]


def test_a_wide_terminal_breaks_no_head() -> None:
    assert fitted(HEAD, ROWS, 170)[0] == HEAD
