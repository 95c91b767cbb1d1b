"""The long table of what runs have logged, and what is read off it, by hand."""

import math
from pathlib import Path

from report.folders import config, write

from fl_lightning.report.compared.long_table import NO_SEED, column_per_run, long_table, values_by_round
from fl_lightning.runs.reader import Run


def runs(folder: Path) -> list[Run]:
    """Seed 7 with accuracies in both rounds and a loss, and a run without config with an accuracy in round 2 alone."""
    first = write(folder / "a", {"val/top1": [0.31, 0.45], "val/loss": [2.0, 1.5]}, config(seed=7))
    return [Run(first), Run(write(folder / "b", {"val/top1": ["", 0.44]}))]


def test_a_row_for_each_value(tmp_path: Path) -> None:
    """By run, then in the order in which the metrics are named, then by round; a metric that nobody has has no row."""
    table = long_table(runs(tmp_path), ["val/loss", "val/top1", "val/top3"])
    assert list(table) == ["run", "seed", "metric", "round", "value"]
    assert table.to_numpy().tolist() == [
        [0, 7, "val/loss", 1, 2.0],
        [0, 7, "val/loss", 2, 1.5],
        [0, 7, "val/top1", 1, 0.31],
        [0, 7, "val/top1", 2, 0.45],
        [1, NO_SEED, "val/top1", 2, 0.44],
    ]


def test_a_column_for_each_run(tmp_path: Path) -> None:
    columns = column_per_run(long_table(runs(tmp_path), ["val/top1"]))
    assert (columns[0].to_dict(), columns.index.tolist()) == ({1: 0.31, 2: 0.45}, [1, 2])
    assert math.isnan(columns[1][1])
    assert columns[1][2] == 0.44


def test_what_nobody_logged_is_empty(tmp_path: Path) -> None:
    first, second = runs(tmp_path)
    assert long_table([first, second], ["val/mae"]).empty
    assert list(long_table([], ["val/top1"])) == ["run", "seed", "metric", "round", "value"]
    assert column_per_run(long_table([second], ["val/loss"])).empty
    assert values_by_round(second, "val/loss").to_dict() == {}
    assert values_by_round(second, "val/top1").to_dict() == {2: 0.44}
