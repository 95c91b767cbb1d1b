"""The best methods of a comparison, and what they are compared with on fresh seeds."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fl_lightning.reproduce.benchmark import confirming
from fl_lightning.reproduce.benchmark.confirming import best_of, confirm
from fl_lightning.reproduce.benchmark.tuning import FRESH
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.run_options import RunOptions

LEVELS = {"FedAvg": 50.0, "FedAvgM": 50.5, "A": 53.0, "B": 49.0, "C": 52.0, "D": 51.0}


def results(seeds: range, levels: dict[str, float]) -> pd.DataFrame:
    rows = []
    for method, level in levels.items():
        for seed in seeds:
            costs = {"seconds": 1.0, "bytes/total": 1.0, "conflict/ratio": 0.5, "conflict/ratio_after": 0.5}
            rows.append({"method": method, "round": 9, "seed": seed, "top1": level + seed, **costs})
    return pd.DataFrame(rows)


def test_the_best_three_above_fedavg() -> None:
    assert best_of(results(range(1, 6), LEVELS), "top1") == ["A", "C", "D"]
    assert best_of(results(range(1, 4), {"FedAvg": 50.0, "B": 49.0}), "top1") == []
    assert best_of(results(range(1, 3), LEVELS), "top1") == []  # two seeds
    assert best_of(results(range(1, 6), {"A": 50.0}), "top1") == []  # no FedAvg
    assert best_of(pd.DataFrame(), "top1") == []


def test_they_are_compared_with_fedavg_and_momentum_on_fresh_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[Any, RunOptions]]()

    def run(experiments: Any, runs: RunOptions) -> int:
        asked.append((experiments, runs))
        return 1

    monkeypatch.setattr(confirming, "run", run)
    cells = tuple(Cell({"method": method}, (f"--of={method}",)) for method in LEVELS)
    own = Experiment("mine/skew", "", "", "", (), "", ("top1",), cells=cells)
    runs = RunOptions("", tmp_path, range(1, 6), (), ["method=FedAvg,A"], 1, dry_run=False)
    assert confirm([own], runs) == 0  # without results
    assert not asked
    folder = tmp_path / own.id
    folder.mkdir(parents=True)
    results(range(1, 6), LEVELS).to_csv(folder / "results.csv")
    assert confirm([own], runs) == 1
    ((again,), with_options) = asked[0]
    assert again.id == "mine-confirmed/skew"
    assert [cell.options for cell in again.cells] == [
        ("--of=FedAvg",),
        ("--of=FedAvgM",),
        ("--of=A",),
        ("--of=C",),
        ("--of=D",),
    ]
    assert (with_options.seeds, with_options.subset) == (FRESH, [])
