"""Scales: fewer cells, other options, rounds that stand for the paper's rounds, and tables that say so."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command import TINY, run

import fl_lightning.reproduce.arguments
import fl_lightning.reproduce.command
from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import layers_of
from fl_lightning.fit.reading import callbacks_of, config_of
from fl_lightning.reproduce.papers import Experiment, experiments
from fl_lightning.reproduce.results import measure
from fl_lightning.reproduce.scale import at_scale, scale_of

BASE = f"""{TINY}
grid:
  alpha:
    0.1: {{data.partition.alpha: 0.1}}
    1.0: {{data.partition.alpha: 1.0}}
  method:
    FedAvg: {{}}
    FedProx: {{trainer.callbacks+: [{{class_path: FedProx, init_args: {{mu: 0.1}}}}]}}
    Slow: {{model.local_epochs: 9}}
scale:
  small:
    rounds: 2
    options: {{model.local_epochs: 1, data.train_examples: 100}}
    axes: {{method: {{FedAvg: {{}}, FedProx: {{model.local_epochs: 3}}}}}}
"""
OWN = """base: base.yaml
trainer: {max_epochs: 10}
grid: {alpha: [0.1, 1.0], method: [FedAvg, FedProx, Slow]}
scale:
  small:
    note: a hundred images
    options: {data.test_examples: 50}
    axes: {alpha: [0.1]}
"""


@pytest.fixture(autouse=True)
def _configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE)
    Path("own.yaml").write_text(OWN)


def whole(**facts: Any) -> Experiment:
    rows = ({"alpha": 0.1, "method": "FedAvg", "round": 5, "top1": 50.0}, {"method": "FedProx", "round": 10})
    return Experiment("x/table-1", "X", "accuracy", "It works.", rows, "own.yaml", ("top1",), **facts)


def test_a_config_adds_to_the_scale_of_its_base() -> None:
    """Labels that the scale does not list are left out; its options come after the cell's, a label's after all."""
    smaller, cells = at_scale("small", whole(), whole().cells())
    assert [dict(cell.labels) for cell in cells] == [{"alpha": 0.1, "method": name} for name in ("FedAvg", "FedProx")]
    settings = [config_of(["--config=own.yaml", *cell.options]) for cell in cells]
    assert [each["trainer"]["max_epochs"] for each in settings] == [2, 2]
    assert [each["model"]["local_epochs"] for each in settings] == [1, 3]
    data = [each["data"]["init_args"] for each in settings]
    assert [(each["train_examples"], each["test_examples"]) for each in data] == [(100, 50), (100, 50)]
    assert smaller.reduced == "Small scale, not the paper's: a hundred images"


def test_rounds_stand_for_the_papers() -> None:
    """Two rounds for ten: round 1 for the paper's 5, the last ten of 200 as the last two of 40."""
    smaller, _ = at_scale("small", whole(last=10), whole().cells())
    assert smaller.read_at(2) == {5: 1, 10: 2}
    fifth = dataclasses.replace(smaller, pace=0.2)
    metrics = pd.DataFrame({"val/top1": [round / 100 for round in range(1, 41)]}, index=range(1, 41))
    assert measure(fifth, metrics, "top1", 40) == pytest.approx(39.5)
    gamma = pd.DataFrame({"fedlaw/gamma": [float(18 <= round <= 22) for round in range(1, 41)]}, index=range(1, 41))
    assert measure(fifth, gamma, "gamma_learned", 40) == 1, "rounds 90 to 110 of 200 are 18 to 22 of 40"


def test_tables_say_at_which_scale_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their first line, in a folder of the scale's own."""
    for module in (fl_lightning.reproduce.arguments, fl_lightning.reproduce.command):
        monkeypatch.setattr(module, "tables_and_figures", lambda name: [(whole(), whole().cells())])
    result = run("reproduce", "x/table-1", "--scale", "small", "--seeds", 1)
    assert result.status == 0, result.err
    assert "x/table-1: Small scale, not the paper's: a hundred images\n" in result.out
    text = Path("runs/reproduce/small/x/table-1/table.md").read_text()
    assert next(line for line in text.splitlines() if line.startswith("- ")).endswith("a hundred images")
    results = pd.read_csv("runs/reproduce/small/x/table-1/results.csv")
    assert results[["method", "round"]].to_numpy().tolist() == [
        ["FedAvg", 5],
        ["FedAvg", 10],
        ["FedProx", 5],
        ["FedProx", 10],
    ]


def test_a_scale_that_is_not_there() -> None:
    result = run("reproduce", "fedgh-slides/table-2", "--scale", "tiny")
    assert result.status == 2
    assert "table-2.yaml has no scale tiny: it has laptop\n" in result.err


def test_a_scale_without_a_note() -> None:
    Path("own.yaml").write_text(OWN.replace("    note: a hundred images\n", ""))
    with pytest.raises(ConfigurationError, match=r"scale\.small must have axes, note, options, rounds, got"):
        scale_of("own.yaml", "small")


SCALED = [id for id, each in experiments().items() if layers_of(each.config, "scale", "laptop")]


@pytest.mark.parametrize("id", SCALED)
def test_a_shipped_scale_keeps_cells_for_every_claim(id: str) -> None:
    """Both sides of each claim are there, and each method's callbacks can be made."""
    experiment, cells = at_scale("laptop", experiments()[id], experiments()[id].cells())
    assert 0 < experiment.pace <= 1
    for cell in {str(cell.labels.get("method")): cell for cell in cells}.values():
        callbacks_of(config_of([f"--config={experiment.config}", *cell.options]))
    for claim in experiment.claims:
        for side in (claim.higher, claim.than):
            for axis, label in side.items():
                wanted = label if isinstance(label, list) else [label]
                assert axis == "round" or set(wanted) <= {cell.labels.get(axis) for cell in cells}, claim.text
