"""load_runs, compare and write_report: the same numbers, words and page as the command ``report``; refusals."""

import re
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

import pytest
from lib.command import run
from report.folders import config, write
from scipy import stats

from fl_lightning import ConfigurationError, compare, load_runs, write_report

pytestmark = pytest.mark.filterwarnings("ignore:.* of 4 rounds")  # the configs ask for more than the runs have
BASE = [[0.5, 0.6], [0.52, 0.64], [0.48, 0.62]]  # accuracies of two rounds by seed
OTHER = [[0.6, 0.7], [0.64, 0.72], [0.62, 0.7]]


def experiment(folder: Path, seeds: int = 3, **others: Any) -> Path:
    """Runs of FedAvg and FedNova, and of other rules with FedNova's accuracies."""
    for rule, accuracies in {"FedAvg": BASE, "FedNova": OTHER, **others}.items():
        for seed, values in enumerate(accuracies[:seeds], 1):
            rules = [] if rule == "FedAvg" else [rule]
            write(folder / rule / f"{seed}", {"val/top1": values}, config(*rules, seed=seed))
    return folder


def test_what_a_run_holds(tmp_path: Path) -> None:
    runs = load_runs(str(experiment(tmp_path)))
    assert [(each.method, each.seed) for each in runs] == [
        (name, s) for name in ("FedAvg", "FedNova") for s in (1, 2, 3)
    ]
    assert runs[0].path == tmp_path / "FedAvg" / "1"
    assert runs[0].metrics["val/top1"].to_dict() == {1: 0.5, 2: 0.6}
    assert runs[3].settings["rules"] == "FedNova"


def test_compare_says_what_the_command_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is that of scipy, on the means over the rounds: 0.65, 0.68, 0.66 against 0.55, 0.58, 0.55."""
    monkeypatch.chdir(experiment(tmp_path))
    result = compare(load_runs("."), metric="val/top1", baseline="FedAvg")
    assert result.p == pytest.approx(stats.ttest_rel([0.65, 0.68, 0.66], [0.55, 0.58, 0.55]).pvalue)
    assert run("report", ".").out.splitlines()[1:] == [result.verdict]
    assert result.table["method"].tolist() == ["FedAvg", "FedNova"]
    assert result.table["mean_p"][1] == result.p
    shown = result._repr_html_()  # in a notebook
    assert f"<p>{escape(result.verdict)}</p>" in shown
    assert re.findall(r"<td>(Fed\w+)</td>", shown) == ["FedAvg", "FedNova"]
    assert "<th>seeds</th>" in shown
    (tmp_path / "report.html").rename("command.html")
    write_report(load_runs("."), "mine/report.html")
    assert Path("mine/report.html").read_bytes() == Path("command.html").read_bytes()


def test_the_user_says_which_values_are_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedNova's values are higher; the command, the page and Python say the same of them."""
    monkeypatch.chdir(tmp_path)
    for rule, accuracies in {"": BASE, "FedNova": OTHER}.items():
        for seed, values in enumerate(accuracies, 1):
            rules = [rule] if rule else []
            write(tmp_path / f"{rule}{seed}", {"val/bce": values}, config(*rules, seed=seed))
    none = run("report", ".")
    assert none.out.splitlines()[1].startswith("No verdict: the runs do not say which values of val/bce are better")
    assert "beats" not in none.out + Path("report.html").read_text()
    lower = run("report", ".", "--lower_is_better", "val/bce").out.splitlines()[1]
    assert lower.startswith("FedNova falls short of FedAvg by")
    assert "FedNova falls short of FedAvg by +0.103" in Path("report.html").read_text()
    higher = run("report", ".", "--higher_is_better", "val/bce").out.splitlines()[1]
    assert higher.startswith("FedNova beats FedAvg by")
    assert compare(load_runs(".", lower_is_better=["val/bce"])).verdict == lower
    assert compare(load_runs(".", higher_is_better=["val/bce"])).verdict == higher


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--lower_is_better val/bec", "name metrics of the runs, got val/bec: did you mean val/bce?"),
        ("--lower_is_better val/bce --higher_is_better val/bce", "val/bce cannot be in lower_is_better and in"),
        ("--target 0.5", "target: it is not known which values of val/bce are better than 0.5: give --lower_is_better"),
    ],
)
def test_what_is_said_must_make_sense(tmp_path: Path, options: str, message: str) -> None:
    write(tmp_path / "run", {"val/bce": [0.5]}, config())
    result = run("report", tmp_path, *options.split())
    assert result.status == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_a_baseline_can_be_named_by_its_rules_and_their_arguments(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        for mu, values in ((0.1, BASE), (1.0, OTHER)):
            rule = config("FedProx", seed=seed)
            rule["trainer"]["callbacks"][0]["init_args"] = {"mu": mu}
            write(tmp_path / str(mu) / str(seed), {"val/top1": values[seed - 1]}, rule)
    runs = load_runs(tmp_path)
    assert runs[0].method == "FedProx(mu=0.1)"
    for baseline in ("mu=1.0", "FedProx(mu=1.0)"):
        assert compare(runs, baseline=baseline).verdict.startswith("mu=0.1 falls short of mu=1.0 by ")


def test_runs_that_are_left_out_or_unfinished_are_told(tmp_path: Path) -> None:
    """The configs ask for four rounds. Seed 1 of FedAvg was run twice."""
    write(experiment(tmp_path) / "again", {"val/top1": [0.5]}, config(seed=1))
    with pytest.warns(UserWarning, match="is left out|of 4 rounds") as told:
        compare(load_runs(tmp_path))
    texts = [str(each.message) for each in told]
    assert texts[0].endswith("has the same settings and seed.")
    assert "FedNova, seed 3 has 2 of 4 rounds." in texts


def test_refusals(tmp_path: Path) -> None:
    runs = load_runs(experiment(tmp_path, FedProx=OTHER))
    with pytest.raises(
        ConfigurationError, match="p is that of one method and a baseline, got 2 comparisons: see mean_p"
    ):
        _ = compare(runs).p
    with pytest.raises(ConfigurationError, match="got 0 comparisons"):
        _ = compare(runs[:3]).p
    two = compare([each for each in runs if each.method != "FedProx" and each.seed != 3])
    assert two.p != two.p, "two seeds give no p"
    for wrong in ([], "runs/mine", ["runs/mine"]):
        with pytest.raises(ConfigurationError, match=r"expected the runs of load_runs\(folder\), at least one, got "):
            compare(wrong)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigurationError, match="expected an HTML file that can be written"):
        write_report(runs, tmp_path)
    with pytest.raises(ConfigurationError, match="nowhere does not exist"):
        load_runs("nowhere")


def test_a_page_needs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)  # cannot be imported
    monkeypatch.delitem(sys.modules, "fl_lightning.report.page", raising=False)
    runs = load_runs(write(tmp_path / "run", {"val/top1": [0.5]}))
    with pytest.raises(ConfigurationError, match=r"^plotly is not installed: pip install 'fl-lightning\[report\]'$"):
        write_report(runs, tmp_path / "report.html")


@pytest.mark.slow
def test_a_comparison_needs_no_extra(tmp_path: Path) -> None:
    code = f"""
import sys, warnings
warnings.simplefilter("ignore")
sys.modules["plotly"] = sys.modules["jinja2"] = None  # cannot be imported
from fl_lightning import compare, load_runs
runs = load_runs({str(experiment(tmp_path))!r})
print(compare(runs).verdict[:19], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "FedNova beats FedAv False\n"
