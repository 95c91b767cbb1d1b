"""Clients with names, by the command line: in the overview, in messages and in the report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lib.command import contents, fit, refused, rows, run
from report.folders import charts, tables

HOSPITALS = ["bern", "lyon, hôpital de la Croix", "oslo", "rome"]
NAMES = ("--data.client_names", json.dumps(HOSPITALS, ensure_ascii=False))
CALLBACKS = """[
    {class_path: FaultInjection, init_args: {fault: raise, clients: [2], rounds: [2]}},
    {class_path: ConflictMonitor, init_args: {every: 1}},
    {class_path: ClientMonitor},
    {class_path: PersonalEvaluation},
]"""
MEASURED = ("--data.held_out", 0.2, "--trainer.callbacks", CALLBACKS)
RUN = Path("runs/tiny/version_0")


def measured(experiment: str) -> list[dict[str, Any]]:
    """The rows of a run, without times."""
    table = rows(f"runs/{experiment}/version_0/metrics.csv")
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in table]


def test_names_are_in_the_messages_and_the_report_and_change_no_other_file() -> None:
    """Metrics keep the numbers, by which the run folder records the names."""
    said = fit(*NAMES, *MEASURED).warnings
    assert "round 2: client 2 (oslo) is left out: ClientFailure: injected fault" in said
    assert {f"clients/loss/{k}" for k in range(4)} <= rows(RUN / "metrics.csv")[0].keys()
    with np.load(RUN / "arrays/partition.npz") as arrays:
        assert arrays["names"].tolist() == HOSPITALS

    assert run("report", RUN).status == 0
    page = (RUN / "report.html").read_text(encoding="utf-8")
    conflict = next(rows for caption, rows in tables(page).items() if caption.startswith("Clients: conflict"))
    assert [row[1] for row in conflict[1:]] == [f"client {name}, seed 1" for name in HOSPITALS]
    frames = charts(page)["cosines"]["frames"]["runs"][0]["frames"]
    assert [frame["clients"] for frame in frames] == [[0, 1, 2, 3], [0, 1, 3]]

    fit("--experiment", "plain", *MEASURED)
    assert measured("tiny") == measured("plain")
    named, plain = (contents(f"runs/{name}/version_0/arrays") for name in ("tiny", "plain"))
    same = [Path(path).name for path in named if named[path] == plain[path.replace("/tiny/", "/plain/")]]
    assert sorted(same) == ["cosines_1.npz", "cosines_2.npz"]


def test_a_run_that_goes_on_may_have_other_names(last: Path) -> None:
    """The newest ones are recorded."""
    fit("--ckpt_path", "last", "--trainer.max_epochs", 3, *NAMES)
    assert len(rows(RUN / "metrics.csv")) == 3
    with np.load(RUN / "arrays/partition.npz") as arrays:
        assert arrays["names"].tolist() == HOSPITALS


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("[a, b]", "expected client_names to be 4 names, one for each client, got 2: correct them"),
        ("[a, b, a, c]", "expected client_names to differ, got 'a' for clients 0 and 2: rename one"),
        ("oslo", "data.client_names: expected a list or null, got oslo"),
    ],
)
def test_names_that_do_not_fit_are_refused_in_one_line(names: str, said: str) -> None:
    assert refused("data", "--config", "tiny.yaml", "--data.client_names", names) == said
