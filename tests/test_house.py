"""How the house is built: rooms stand on floors, imports run downward, and a shipped callback is three files."""

import subprocess
import sys
from pathlib import Path

import layers
import lists
import networkx as nx
import pytest

REPOSITORY = Path(__file__).parents[1]
SHIPPED = [(folder, cls) for folder in lists.FOLDERS for cls in lists.callbacks(folder)]


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


def test_floors_of_a_house_with_a_circle() -> None:
    """A imports b, b and c import one another, c imports d: d is below, b and c share a floor, a is on top."""
    graph: nx.DiGraph[str] = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")])
    assert layers.floors(graph) == [["d"], ["b", "c"], ["a"]]
    assert layers.circles(graph) == [["b", "c"]]
    assert layers.upward(graph) in ([("b", "c")], [("c", "b")])


def test_a_type_checking_import_counts(tmp_path: Path) -> None:
    house = tmp_path / "fl_lightning"
    house.mkdir()
    (house / "__init__.py").touch()
    (house / "low.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fl_lightning.high\n")
    (house / "high.py").write_text("import fl_lightning.low\n")
    done = subprocess.run(
        [sys.executable, str(layers.__file__), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "circles of rooms: 1\n  high low\n" in done.stdout


def test_lists_of_callbacks_are_those_that_make_lists_writes() -> None:
    stale = [path.relative_to(REPOSITORY) for path, text in lists.written().items() if path.read_text() != text]
    assert not stale, "run make lists"


@pytest.mark.parametrize(("folder", "cls"), SHIPPED, ids=lambda value: getattr(value, "__name__", value))
def test_a_callback_has_a_file_a_test_and_a_config(folder: str, cls: type) -> None:
    module = cls.__module__.rpartition(".")[2]
    assert (REPOSITORY / "callbacks" / folder / f"{module}.py").is_file()
    assert (REPOSITORY / "tests" / "callbacks" / folder / f"test_{module}.py").is_file()
    assert lists.configs_of(cls), f"no config in configs/rules lists {cls.__name__}"


def test_the_words_of_a_table_are_the_classs_own() -> None:
    class Example(lists.FederatedCallback):
        """Does this (Author et al., 2020, eq. 3), as :class:`FedNova` does. And that.

        More of it.
        """

        settles = frozenset({"base weights", "updates"})

        def __init__(self, mu: float, rho: float = 0.1) -> None: ...

    assert lists.first_sentence(Example) == "Does this (Author et al., 2020, eq. 3), as `FedNova` does"
    assert lists.arguments(Example) == "mu, rho"
    assert lists.settled(Example) == ["updates", "base weights"]
    assert lists.kind(Example) == "correct the updates"
