"""Scales: fewer cells, other options, rounds that stand for the paper's rounds."""

import dataclasses
from pathlib import Path

import pytest
from lib.command import TINY
from lib.job_folders import finished

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.read_config import config_of
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.experiments.grid import grid
from fl_lightning.reproduce.experiments.scale import at_scale, scale_of
from fl_lightning.reproduce.outcome.numbers import measure

BASE = f"""{TINY}
grid:
  alpha:
    0.1: {{data.partition.alpha: 0.1}}
    1.0: {{data.partition.alpha: 1.0}}
  method:
    FedAvg: {{}}
    FedProx: {{model.local_epochs: 7}}
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


def smaller() -> Experiment:
    rows = ({"alpha": 0.1, "method": "FedAvg", "round": 5, "top1": 50.0}, {"method": "FedProx", "round": 10})
    cells = tuple(grid("own.yaml"))
    return at_scale("small", Experiment("x", "X", "", "", rows, "own.yaml", ("top1",), last=10, cells=cells))


def test_a_config_adds_to_the_scale_of_its_base() -> None:
    """Labels that the scale does not list are left out; its options come after the cell's, a label's after all."""
    cells = smaller().cells
    assert [dict(cell.labels) for cell in cells] == [{"alpha": 0.1, "method": name} for name in ("FedAvg", "FedProx")]
    settings = [config_of(["--config=own.yaml", *cell.options]) for cell in cells]
    assert [each["trainer"]["max_epochs"] for each in settings] == [2, 2]
    assert [each["model"]["local_epochs"] for each in settings] == [1, 3]
    data = [each["data"]["init_args"] for each in settings]
    assert [(each["train_examples"], each["test_examples"]) for each in data] == [(100, 50), (100, 50)]
    assert (smaller().scale, smaller().reduced) == ("small", "Small scale, not the paper's: a hundred images")


def test_rounds_stand_for_the_papers() -> None:
    """Two rounds for ten: round 1 for the paper's 5, the last ten of 200 as the last two of 40."""
    assert smaller().read_at(2) == {5: 1, 10: 2}
    fifth = dataclasses.replace(smaller(), pace=0.2)
    run = finished(
        Path("job"),
        **{
            "val/top1": [round / 100 for round in range(1, 41)],
            "fedlaw/gamma": [float(18 <= round <= 22) for round in range(1, 41)],
        },
    ).run
    assert measure(fifth, run, "top1", 40) == pytest.approx(39.5)
    assert measure(fifth, run, "gamma_learned", 40) == 1, "rounds 90 to 110 of 200 are 18 to 22 of 40"


def test_a_scale_without_a_note() -> None:
    Path("own.yaml").write_text(OWN.replace("    note: a hundred images\n", ""))
    with pytest.raises(ConfigurationError, match=r"scale\.small must have axes, note, options, rounds, got"):
        scale_of("own.yaml", "small")
