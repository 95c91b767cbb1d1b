"""Clients with names in a report: in tables, texts and figures; test_browser.py looks at them on the page."""

import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from lib.command import run
from report.folders import NAMES, charts, config, tables, write

from fl_lightning.report.compared.methods import make_methods
from fl_lightning.report.content.arrays import cosines
from fl_lightning.report.content.by_round import client_names
from fl_lightning.report.content.charts import NumberedMetrics, over_rounds
from fl_lightning.report.content.clients import partition
from fl_lightning.report.drawing.on_paper import draw
from fl_lightning.runs.reader import read_runs

MATRIX = [[1, -0.5, 0.2, 0.1], [-0.5, 1, 0.3, 0.2], [0.2, 0.3, 1, -0.9], [0.1, 0.2, -0.9, 1]]  # one conflict each


def folder(path: Path, names: Sequence[str] | None = NAMES, rule: str = "FedLAW", clients: int = 4) -> Path:
    """Clients of two rounds."""
    values = {f"fedlaw/weight/{k}": [0.1 * k, 0.2 * k] for k in range(4)}
    values |= {f"clients/top1/{k}": [0.5, 0.1 * (k + 1)] for k in range(4)}
    held = {"sizes": [4, 3, 2, 1][:clients], "counts": [[4, 0], [0, 3], [1, 1], [1, 0]][:clients]}
    held |= {} if names is None else {"names": names}
    similar = {"clients": range(4), "before": MATRIX, "after": MATRIX}
    return write(path, {"val/top1": [0.5, 0.6], **values}, config(rule), partition=held, cosines_2=similar)


def test_tables_and_texts_have_the_names(tmp_path: Path) -> None:
    """Weights in the last round are 0, 0.2, 0.4, 0.6: the largest is client 3's."""
    assert run("report", folder(tmp_path / "run"), "--out", tmp_path / "page.html").status == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    (found,) = re.findall(r'<script type="application/json" id="part-data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(found)["names"] == NAMES
    (weights,) = charts(text)["fedlaw-weight"]["frames"]["runs"][0]["frames"]
    assert weights["text"] == [{"largest in the last round": "0.6 (client bern)", "smallest": "0 (client oslo)"}]
    assert weights["y"] == [0, 1, 2, 3], "numbers, which the page's choice of clients goes by"
    (dots,) = charts(text)["scatter"]["figure"]["data"]
    assert dots["text"] == [f"client {name}, seed 1" for name in NAMES]
    assert [row[1] for row in tables(text)["Clients: conflict and accuracy"][1:]] == dots["text"]


def test_figures_have_the_names(tmp_path: Path) -> None:
    """Whole in the CSV files; along the axes up to 16 letters, which find room in the smallest plot of bubbles."""
    methods = make_methods(read_runs([folder(tmp_path / "run")]))[0]
    plots = [each.plot for each in (cosines(methods), partition(methods)) if each]
    weights = over_rounds(methods, NumberedMetrics("fedlaw/weight", "client", "Weights", "Caption."))
    assert weights
    similar, held, weighed = (plot.table() for plot in (*plots, weights.plot))
    assert similar["client"].tolist() == NAMES * 4
    assert similar["other client"].tolist() == [name for name in NAMES for _ in range(4)]
    assert held["client"].tolist() == weighed["client"].tolist() == NAMES * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (axes,) = draw(plots[1]).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["oslo", "lyon, hôpital d…", "17", "bern"]


@pytest.mark.parametrize(("others", "clients"), [(None, 4), (NAMES[::-1], 4), (NAMES[:3], 3)])
def test_runs_that_disagree_show_numbers(others: Sequence[str] | None, clients: int, tmp_path: Path) -> None:
    folder(tmp_path / "a")
    assert client_names(make_methods(read_runs([tmp_path]))[0]) == NAMES
    folder(tmp_path / "b", others, "FedNova", clients)
    assert client_names(make_methods(read_runs([tmp_path]))[0]) is None


@pytest.mark.parametrize("clients", [10_000, 10_001])
def test_more_clients_than_a_page_names(clients: int, tmp_path: Path) -> None:
    partition = {"sizes": np.ones(clients, int), "names": [f"client number {k}" for k in range(clients)]}
    methods = make_methods(read_runs([write(tmp_path / "run", {"val/loss": [1.0]}, partition=partition)]))[0]
    assert (client_names(methods) is None) == (clients > 10_000)
