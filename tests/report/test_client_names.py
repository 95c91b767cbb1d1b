"""Clients with names in a report: on the page, in a browser, and in figures for a paper."""

import csv
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command import run
from report.folders import charts, config, tables, write
from report.test_browser import ARGUMENTS, CHROMIUM, PATIENCE, draw_all

NAMES = ["oslo", "lyon, hôpital de la <b>Croix</b>", "17", "bern"]  # a comma, markup, a number, and all unsorted
MATRIX = [[1, -0.5, 0.2, 0.1], [-0.5, 1, 0.3, 0.2], [0.2, 0.3, 1, -0.9], [0.1, 0.2, -0.9, 1]]  # one conflict each


def folder(path: Path, names: Sequence[str] | None = NAMES, rule: str = "FedLAW", seed: int = 1) -> Path:
    """Four clients of two rounds."""
    values = {f"fedlaw/weight/{k}": [0.1 * k, 0.2 * k] for k in range(4)}
    values |= {f"clients/top1/{k}": [0.5, 0.1 * (k + 1)] for k in range(4)}
    partition = {"sizes": [4, 3, 2, 1], "counts": [[4, 0], [0, 3], [1, 1], [1, 0]]}
    named = {} if names is None else {"names": list(names)}
    cosines = {"clients": range(4), "before": MATRIX, "after": MATRIX}
    return write(
        path,
        {"val/top1": [0.5, 0.6], **values},
        config(rule, seed=seed),
        partition=partition | named,
        cosines_2=cosines,
    )


def page(*runs: Path, out: Path) -> str:
    result = run("report", *runs, "--out", out)
    assert result.status == 0, result.err
    return out.read_text(encoding="utf-8")


def names(text: str) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="part-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)["names"]


def test_tables_and_texts_have_the_names(tmp_path: Path) -> None:
    """Weights in the last round are 0, 0.2, 0.4, 0.6: the largest is client 3's."""
    text = page(folder(tmp_path / "run"), out=tmp_path / "page.html")
    assert names(text) == NAMES
    (weights,) = charts(text)["fedlaw-weight"]["frames"]["runs"][0]["frames"]
    assert weights["text"] == [{"largest in the last round": "0.6 (client bern)", "smallest": "0 (client oslo)"}]
    assert weights["y"] == [0, 1, 2, 3], "numbers, which the page's choice of clients goes by"
    (dots,) = charts(text)["scatter"]["figure"]["data"]
    assert dots["text"] == [f"client {name}, seed 1" for name in NAMES]
    assert [row[1] for row in tables(text)["Clients: conflict and accuracy"][1:]] == dots["text"]


@pytest.mark.parametrize("others", [None, NAMES[::-1], NAMES[:3]])
def test_runs_that_disagree_show_numbers(others: Sequence[str] | None, tmp_path: Path) -> None:
    if others is not None and len(others) < 4:
        with np.load(folder(tmp_path / "b", None, "FedNova") / "arrays/partition.npz") as arrays:
            less = {name: arrays[name][:3] for name in arrays}
        np.savez(tmp_path / "b/arrays/partition.npz", **less, names=others)
    else:
        folder(tmp_path / "b", others, "FedNova")
    text = page(folder(tmp_path / "a"), tmp_path / "b", out=tmp_path / "page.html")
    assert names(text) is None
    assert "client oslo" not in text
    assert "client 0, seed 1" in text


def test_more_clients_than_a_page_names(tmp_path: Path) -> None:
    many = 10_001
    partition = {"sizes": np.ones(many, int), "names": [f"client number {k}" for k in range(many)]}
    text = page(write(tmp_path / "run", {"val/loss": [1.0]}, partition=partition), out=tmp_path / "page.html")
    assert names(text) is None


def test_figures_have_the_names(tmp_path: Path) -> None:
    """Whole in the CSV files; along the axes up to 16 letters, which find room in the smallest plot of bubbles."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run("report", folder(tmp_path / "run"), "--figures", tmp_path / "figures")
    assert (result.status, result.err) == (0, "")
    cosines = pd.read_csv(tmp_path / "figures/cosines.csv", dtype=str)
    assert cosines["client"].tolist() == NAMES * 4
    assert cosines["other client"].tolist() == [name for name in NAMES for _ in range(4)]
    weights = pd.read_csv(tmp_path / "figures/fedlaw-weight.csv", dtype=str)
    assert weights["client"].tolist() == NAMES * 2
    held = pd.read_csv(tmp_path / "figures/partition.csv", dtype=str)
    assert held["client"].tolist() == NAMES * 2
    for name in ("cosines", "partition", "fedlaw-weight"):
        drawn = (tmp_path / f"figures/{name}.svg").read_text(encoding="utf-8")
        assert ">bern<" in drawn
        assert ">lyon, hôpital d…<" in drawn


sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install playwright")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page of one run in a browser, all drawn; it must not complain."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on the path to look at the page with")
    out = tmp_path_factory.mktemp("named") / "page.html"
    page(folder(out.parent / "run"), out=out)
    complaints: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE)
        opened = browser.new_page()
        opened.set_default_timeout(PATIENCE)
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.goto(out.as_uri())
        draw_all(opened)
        yield opened
        browser.close()
    assert complaints == []


def test_the_table_of_clients_has_names_and_numbers(shown: Any) -> None:
    """Sorted by name: numbers before letters."""
    table = shown.locator(".roster table")
    assert table.locator("tbody th").all_text_contents() == ["17", "bern", NAMES[1], "oslo"]
    assert table.locator("tbody tr td:nth-of-type(1)").all_text_contents() == ["2", "3", "1", "0"]
    assert table.locator("thead th").all_text_contents()[:3] == ["client", "number", "examples"]


def test_charts_have_names_along_their_axes(shown: Any) -> None:
    """Long ones are cut, and stay different by their numbers."""
    labels = ["oslo", "lyon, hôpi… 1", "17", "bern"]
    for key in ("cosines", "fedlaw-weight"):
        assert shown.evaluate("key => document.getElementById(`${key}-plot`).data[0].y", key) == labels
    axis = shown.evaluate("document.getElementById('partition-plot').layout.xaxis")
    assert axis["ticktext"] == labels
    assert shown.evaluate("document.getElementById('partition-plot').data[0].text")[0] == "oslo"


def test_clients_are_chosen_by_name(shown: Any) -> None:
    """Oslo is client 0, "17" the name of client 2; 3 is a number. A name with a comma is typed as a number."""
    field = shown.get_by_label("Clients to point out")
    assert field.get_attribute("placeholder") == f"e.g. {NAMES[0]}, {NAMES[1]}"
    field.fill("OSLO, 17, 3, nowhere")
    assert shown.locator(".roster tr.chosen th").all_text_contents() == ["17", "bern", "oslo"]
    for name in ("oslo", "17", "bern", NAMES[1]):
        shown.locator(".roster").get_by_role("button", name=f"Point out client {name}").click()
    assert field.input_value() == "1"
    field.fill("")


def test_the_csv_of_a_chart_has_whole_names(shown: Any) -> None:
    figure = shown.locator("figure", has=shown.locator("#cosines-plot"))
    with shown.expect_download() as download:
        figure.locator("button[data-kind=CSV]").click()
    rows = list(csv.reader(Path(download.value.path()).read_text(encoding="utf-8").splitlines()))
    assert [row[3] for row in rows[1:5]] == NAMES
    assert {row[4] for row in rows[1:]} == {*NAMES}
