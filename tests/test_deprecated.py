"""What the guide of version 0.1 taught to import can still be imported, with a word on where it has gone."""

import importlib
import sys

import pytest

import fl_lightning

TAUGHT = [
    ("conflict", "cosines"),
    ("conflict", "critical_round"),
    ("record", "log_each"),
    ("record", "save_arrays"),
    ("tracking", "RunTracking"),
    ("curvature", "draw_surfaces"),
    ("data", "TrainingBatch"),
]


@pytest.mark.parametrize(("module", "name"), TAUGHT)
def test_old_names_are_the_same_objects(module: str, name: str) -> None:
    sys.modules.pop(f"fl_lightning.{module}", None)
    with pytest.warns(DeprecationWarning, match=f"fl_lightning.{module} has moved: import from fl_lightning"):
        found = getattr(importlib.import_module(f"fl_lightning.{module}"), name)
    if name in fl_lightning.__all__:
        assert found is getattr(fl_lightning, name)
    assert not found.__module__.startswith("fl_lightning.deprecated")
