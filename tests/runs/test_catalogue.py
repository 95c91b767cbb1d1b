"""The catalogue of metrics: its order, and what it says of a metric that nobody has declared."""

from pathlib import Path

import pytest

import fl_lightning.runs.catalogue
from fl_lightning.runs.catalogue import Metric, about, catalogue


def test_groups_of_which_nobody_has_thought_stand_before_bytes_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a group, metrics keep the order of the file; ``<k>`` is a star in the key."""
    made = "time/a: {title: T}\nmine/b/<k>: {title: Mine, percent: true}\nmine/a: {title: A}\nval/a: {title: V}\n"
    (tmp_path / "file.yaml").write_text(made)
    monkeypatch.setattr(fl_lightning.runs.catalogue, "FILE", tmp_path / "file.yaml")
    found = catalogue.__wrapped__()
    assert list(found) == ["val/a", "mine/b/*", "mine/a", "time/a"]
    assert found["mine/b/*"] == Metric("mine/b/<k>", "Mine", percent=True)


def test_a_metric_that_nobody_has_declared_has_its_name_as_title() -> None:
    assert about("mine/a") == Metric("mine/a", "mine/a")
    assert about("clients/top1/*").percent, "ClientMonitor declares clients/top1/<k>"
    assert about("val/top1").title == "Validation accuracy"
