"""What docs/data.md shows runs as printed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_lightning.datamodules import Natural, Tensors

TEXT = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
ARRAYS, OWN = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_own_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 examples on 10 clients; the file holds the same."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(ARRAYS, names)
    assert names["data"].class_counts().sum() == 500
    same = Tensors("my.npz", num_clients=10, partition=names["data"].partition)
    assert np.array_equal(same.class_counts(), names["data"].class_counts())


def test_own_class() -> None:
    """1,000 images by 20 makers of 50."""
    names: dict[str, Any] = {}
    exec(OWN, names)
    data = names["Noise"](num_clients=20, partition=Natural())
    assert data.sizes.tolist() == [50] * 20
    inputs, _ = data.on_after_batch_transfer(next(iter(data.val_dataloader())), 0)
    assert abs(inputs.mean()) < 0.05
    assert abs(inputs.std() - 1) < 0.05
