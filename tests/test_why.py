"""The pictures of docs/results/why.py, from small folders of results."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

WHY = Path(__file__).parents[1] / "docs" / "results" / "why.py"


@pytest.fixture
def why() -> ModuleType:
    spec = importlib.util.spec_from_file_location("why", WHY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(id: str, rows: Sequence[Mapping[str, object]], metrics: Mapping[str, Sequence[float]]) -> list[Path]:
    """Write an experiment's results, with a run folder for each row; return the run folders."""
    Path("all", id).mkdir(parents=True)
    named = [
        {**row, "seed": row.get("seed", 1), "gate/fall": n, "folder": f"runs/{id}/{n}"} for n, row in enumerate(rows)
    ]
    table = pd.DataFrame(named)
    table.insert(len(rows[0]) - 1, "round", 2)  # before top1, as reproduce writes it
    table.to_csv(Path("all", id, "results.csv"), index=False)
    folders = [Path(str(row["folder"]), "run", "version_0") for row in named]
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True)
        table = pd.DataFrame({name: np.array(values) + number for name, values in metrics.items()}, index=[1, 2])
        table.rename_axis("round").to_csv(folder / "metrics.csv")
    return folders


def test_gains_compare_within_cell_and_seed(why: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [(0.1, "FedAvg", 50), (0.1, "FedAvg+GH", 53), (1.0, "FedAvg", 60), (1.0, "FedAvg+GH", 59)]
    rows = [{"alpha": alpha, "method": method, "top1": top1} for alpha, method, top1 in cells]
    write("fedgh-slides/table-9", [*rows, {**rows[1], "seed": 2, "top1": 99}], {"conflict/ratio": [0.25, 0.75]})
    found = list(why.gains(why.last_rounds(Path("all/fedgh-slides/table-9"))))
    assert [(x, y) for x, y, _ in found] == [(0.5, 3.0), (2.5, -1.0)], "the baselines' conflict; seed 2 has no baseline"
    why.main("all", ".")
    assert pd.read_csv("why-fedgh.csv")["what GH adds to top-1 (points)"].tolist() == [3.0, -1.0]
    assert {path.name for path in tmp_path.glob("why-*")} == {"why-fedgh.csv", "why-fedgh.png"}


def test_rises_of_the_loss(why: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is 1 + distance², on a grid of 3 by 3; the corners are farther away than the grid reaches."""
    monkeypatch.chdir(tmp_path)
    for folder in write("fedgam/fig-4", [{"method": "FedAvg"}], {"val/loss": [1, 1]}):
        steps = np.array([-1.0, 0.0, 1.0])
        (folder / "arrays").mkdir()
        np.savez(folder / "arrays" / "surface_2.npz", steps=steps, loss=1 + steps[:, None] ** 2 + steps**2)
    (line,) = why.fedgam(Path("all")).lines
    assert line.points["mean"].to_dict() == {0.0: 0.0, 1.0: 1.0}
