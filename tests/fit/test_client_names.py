"""Hospitals in a table, by the command line: their names in the overview, in messages and in the report."""

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import contents, fit, rows, run
from report.folders import charts, tables

HOSPITALS = ["bern", "lyon, hôpital de la Croix", "oslo", "rome"]
YAML = """
trainer:
  max_epochs: 2
  accelerator: cpu
  callbacks:
    - {class_path: FaultInjection, init_args: {fault: raise, clients: [2], rounds: [2]}}
    - {class_path: ConflictMonitor, init_args: {every: 1}}
    - {class_path: ClientMonitor}
    - {class_path: PersonalEvaluation}
model:
  client:
    class_path: ImageClassifier
    init_args:
      num_classes: 2
      network: {class_path: LogisticRegression, init_args: {in_features: 2, num_classes: 2}}
      optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
data:
  class_path: Table
  init_args: {train: patients.csv, client: hospital, target: ill, test_share: 0.2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """80 patients, 20 of each hospital."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    with Path("patients.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "age", "weight", "ill"])
        for number in range(80):
            age, weight = draw.gauss(0, 1), draw.gauss(0, 1)
            writer.writerow([HOSPITALS[number % 4], age, weight, int(age > weight)])
    Path("tiny.yaml").write_text(YAML)
    return tmp_path / "runs/tiny/version_0"


def read(page: Path) -> str:
    result = run("report", page.parent, "--out", page)
    assert result.status == 0, result.err
    return page.read_text(encoding="utf-8")


def test_names_are_in_the_overview_the_messages_and_the_report(folder: Path) -> None:
    """Metrics keep the numbers, by which the run folder records the names."""
    shown = run("data", "--config", "tiny.yaml").out
    for number, name in enumerate(HOSPITALS):
        (line,) = [line for line in shown.splitlines() if name in line]
        assert line.split("│")[1:4] == [f"{number:>7} ", f" {name:<26}", f"{16:>9} "]
    said = fit().warnings
    assert "round 2: client 2 (oslo) is left out: ClientFailure: injected fault" in said
    assert {f"clients/loss/{k}" for k in range(4)} <= rows(folder / "metrics.csv")[0].keys()
    with np.load(folder / "arrays/partition.npz") as arrays:
        assert arrays["names"].tolist() == HOSPITALS
    page = read(folder / "report.html")
    drawn = charts(page)
    conflict = next(rows for caption, rows in tables(page).items() if caption.startswith("Clients: conflict"))
    assert [row[1] for row in conflict[1:]] == [f"client {name}, seed 1" for name in HOSPITALS]
    assert [frame["clients"] for frame in drawn["cosines"]["frames"]["runs"][0]["frames"]] == [[0, 1, 2, 3], [0, 1, 3]]


def test_names_change_no_file_but_those_that_hold_them(folder: Path) -> None:
    """Other names, given as an option: the same metrics and cosines."""
    plain = ["--trainer.enable_progress_bar", "false"]
    fit("--experiment", "one", *plain)
    fit("--experiment", "two", *plain, "--data.client_names", "[a, b, c, d]")
    one, two = (contents(f"runs/{name}/version_0/arrays") for name in ("one", "two"))
    same = [Path(path).name for path in one if one[path] == two[path.replace("/one/", "/two/")]]
    assert sorted(same) == ["cosines_1.npz", "cosines_2.npz"]
    first, second = (rows(f"runs/{name}/version_0/metrics.csv") for name in ("one", "two"))
    for before, after in zip(first, second, strict=True):
        timed = [name for name in before if name.startswith("time/")]
        assert {name: before[name] for name in before if name not in timed} == {
            name: after[name] for name in after if name not in timed
        }


def test_a_run_that_goes_on_may_have_other_names(folder: Path) -> None:
    """The newest ones are recorded."""
    fit("--trainer.max_epochs", 1)
    assert run("fit", "--config", "tiny.yaml", "--ckpt_path", "last", "--data.client_names", "[a, b, c, d]").status == 0
    assert len(rows(folder / "metrics.csv")) == 2
    with np.load(folder / "arrays/partition.npz") as arrays:
        assert arrays["names"].tolist() == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("[a, b]", "expected client_names to be 4 names, one for each client, got 2: correct them"),
        ("[a, b, a, c]", "expected client_names to differ, got 'a' for clients 0 and 2: rename one"),
        ("oslo", "data.client_names: expected a list or null, got oslo"),
    ],
)
@pytest.mark.parametrize("command", ["fit", "data"])
def test_names_that_do_not_fit_are_refused_in_one_line(command: str, names: str, said: Any, folder: Path) -> None:
    result = run(command, "--config", "tiny.yaml", "--data.client_names", names)
    assert (result.status, result.err) == (2, f"fl-lightning: error: {said}\n")
