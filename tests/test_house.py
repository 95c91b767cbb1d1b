"""How the house is built: rooms stand on floors, imports run downward, nothing goes round in a circle."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import networkx as nx
import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    """tools/layers.py."""
    spec = importlib.util.spec_from_file_location("layers", REPOSITORY / "tools" / "layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_imports_keep_the_order_of_pyproject() -> None:
    """Every room has its floor there: a new one must be given its own."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Contracts: 2 kept, 0 broken." in done.stdout


def test_no_circles_and_no_imports_that_run_up() -> None:
    command = [sys.executable, str(REPOSITORY / "tools" / "layers.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-3:] == ["circles of rooms: 0", "circles of modules: 0", "imports that run up: 0"]


def test_floors_of_a_house_with_a_circle(layers: ModuleType) -> None:
    """A imports b, b and c import one another, c imports d: d is below, b and c share a floor, a is on top."""
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")])
    assert layers.floors(graph) == [["d"], ["b", "c"], ["a"]]
    assert layers.circles(graph) == [["b", "c"]]
    assert layers.upward(graph) in ([("b", "c")], [("c", "b")])


def test_a_type_checking_import_counts(layers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = tmp_path / "fl_lightning"
    house.mkdir()
    (house / "__init__.py").touch()
    (house / "low.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fl_lightning.high\n")
    (house / "high.py").write_text("import fl_lightning.low\n")
    done = subprocess.run([sys.executable, layers.__file__, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "circles of rooms: 1\n  high low\n" in done.stdout
