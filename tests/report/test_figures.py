"""``report --figures``: every chart of the page lies in the folder, with the numbers that it is drawn from."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lib.command import run
from report.folders import charts, config, large, write

from fl_lightning.report import page
from fl_lightning.report.numbers import as_csv


def figures(*runs: Path, out: Path) -> list[str]:
    """The names of the charts that were written, each in three kinds."""
    result = run("report", *runs, "--out", out / "page.html", "--figures", out / "figures")
    assert (result.status, result.err) == (0, "")
    kinds: dict[str, set[str]] = {}
    for path in (out / "figures").rglob("*"):
        if path.is_file() and path.stem != "comparison":
            kinds.setdefault(path.relative_to(out / "figures").with_suffix("").as_posix(), set()).add(path.suffix)
    assert all(each == {".pdf", ".svg", ".csv"} for each in kinds.values())
    counted = f"{len(kinds)} chart{'s' if len(kinds) > 1 else ''}"
    assert f"figures: {out / 'figures'} ({counted})" in result.out
    return sorted(kinds)


def test_every_experiment_has_a_folder_of_figures_and_comparisons(tmp_path: Path) -> None:
    """Two data sets, which cannot be compared. Seeds 1 and 2 of the first have losses 0.2, 0.4 and 0.4, 0.8: means 0.3
    and 0.6, and half an interval of 12.706 · 0.1 and · 0.2.
    """
    cosines = {"clients": [3, 5], "before": [[1, -0.5], [-0.5, 1]], "after": [[1, 0], [0, 1]]}
    for seed, values in enumerate(([0.2, 0.4], [0.4, 0.8])):
        write(tmp_path / f"runs/first/version_{seed}", {"val/loss": values}, config(seed=seed), cosines_2=cosines)
    for number, rule in enumerate(("FedNova", "Krum")):
        folder = tmp_path / f"runs/the second, one/version_{number}"
        write(folder, {"val/top1": [0.2, 0.4 + number]}, config(rule, alpha=1.0))
    names = figures(tmp_path / "runs", out=tmp_path)
    assert names == ["first/cosines", "first/val-loss", "the-second-one/val-top1"]
    assert "FedNova" in (tmp_path / "figures/the-second-one/comparison.tex").read_text()
    table = pd.read_csv(tmp_path / "figures/first/val-loss.csv")
    assert table[["method", "round", "seeds"]].to_numpy().tolist() == [["FedAvg", 1, 2], ["FedAvg", 2, 2]]
    assert table["mean"].tolist() == pytest.approx([0.3, 0.6])
    assert table["high"].tolist() == pytest.approx([0.3 + 1.27062, 0.6 + 2.54124], abs=1e-4)
    table = pd.read_csv(tmp_path / "figures/first/cosines.csv")
    before, after = (table[table["panel"] == f"FedAvg, {view}"] for view in ("before", "after correction"))
    assert before["cosine"].tolist() == pytest.approx([1, -0.5, -0.5, 1], abs=1 / 127)
    places = after[["client", "other client", "cosine"]].to_numpy().tolist()
    assert places == [[3, 3, 1], [5, 3, 0], [3, 5, 0], [5, 5, 1]]


@pytest.mark.slow
def test_every_chart_of_the_page(tmp_path: Path) -> None:
    """Curves, a heat map, bubbles, dots and bars, of two methods."""
    runs = [large(tmp_path / name, rounds=6, clients=5) for name in ("one", "two")]
    steps = np.linspace(-1, 1, 3)
    for folder in runs:
        np.savez(folder / "arrays" / "surface_6.npz", steps=steps, loss=1 + np.add.outer(steps**2, steps**2))
    (runs[1] / "config.yaml").write_text((runs[1] / "config.yaml").read_text().replace("Harmonization", "Other"))
    names = figures(*runs, out=tmp_path)
    assert names == sorted(charts((tmp_path / "page.html").read_text()))
    assert {"val-top1", "cosines", "partition", "fedlaw-weight", "surface", "scatter", "time"} <= {*names}


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", {"val/top1": [0.2, 0.4]})
    (tmp_path / "taken").write_text("")
    result = run("report", folder, "--figures", tmp_path / "taken")
    assert result.status == 2
    assert "--figures must be a folder that can be written" in result.err


# What a spreadsheet would take for a formula, what it takes for a number, and both as they are written.
CELLS: list[tuple[Any, str]] = [
    ("=HYPERLINK(A1)", "'=HYPERLINK(A1)"),
    ("+a", "'+a"),
    ("-a", "'-a"),
    ("@a", "'@a"),
    ("\t=a", "'\t=a"),
    ("-0.5", "-0.5"),
    ("a=b", "a=b"),
    (-0.5, "-0.5"),
    ("=a,b", '"\'=a,b"'),
]


def test_no_cell_of_a_csv_is_a_formula() -> None:
    for value, written in CELLS:
        assert as_csv(pd.DataFrame({"method": [value]})) == f"method\n{written}\n"
    assert as_csv(pd.DataFrame({"=1": [2]})) == "'=1\n2\n"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on the path to run the page's script with")
def test_no_cell_of_a_csv_that_the_page_saves_is_a_formula() -> None:
    script = (Path(page.__file__).parent / "js" / "export.js").read_text()
    lines = "\n".join(re.findall("^const (?:plain|cell|csv) = .*$", script, re.MULTILINE))
    asked = f"{lines}\nprocess.stdout.write(csv({json.dumps([[value] for value, _ in CELLS])}))"
    done = subprocess.run(["node", "-e", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{written}\n" for _, written in CELLS)
