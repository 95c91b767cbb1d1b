"""guesses.md names every place where the package decides something from code that it did not write, and why."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TABLES = Path(__file__).with_name("guesses.md").read_text()
ROOT = Path(__file__).parents[1]
ROOMS = (
    "fl_lightning/engine",
    "fl_lightning/fit",
    "fl_lightning/runs",
    "fl_lightning/network",
    "callbacks",
    "models",
    "datamodules",
)
ASKS = {"hasattr", "callable", "is_overridden", "is_param_in_hook_signature", "signature"}  # others' and Python's
ASKS |= {"declares", "stands", "overrides", "takes_index"}  # the package's own
ATTRIBUTES = {"__module__", "__mro__"}


def places_in(table: str) -> set[str]:
    """The places of a table, as "file: function"."""
    found = set()
    for row in re.findall(r"^\| `(\S+\.py)`: (.*?) \|", table, re.MULTILINE):
        found |= {f"{row[0]}: {name}" for name in re.findall(r"`([^`]+)`", row[1])}
    return found


def functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every node below one, with the dotted name of the function or class in which it stands."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        name = f"{name}.{node.name}".removeprefix(".")
    yield name, node
    for child in ast.iter_child_nodes(node):
        yield from functions(child, name)


def looks_at_classes(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ATTRIBUTES
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in ASKS


def sources() -> dict[str, ast.Module]:
    files = [*(ROOT / "fl_lightning").glob("*.py")]
    for room in ROOMS:
        files += (ROOT / room).rglob("*.py")
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}


def test_every_place_that_looks_at_a_class_has_its_reason() -> None:
    """Outside of a function stands what an import does, which sees no user's code."""
    first, _, _ = TABLES.partition("## By a name")
    found = set()
    for file, tree in sources().items():
        found |= {f"{file}: {name}" for name, node in functions(tree) if name and looks_at_classes(node)}
    assert found - places_in(first) == set(), "say in tests/guesses.md why each is right by construction"
    assert places_in(first) - found == set(), "take what no longer looks at a class out of tests/guesses.md"


def test_every_place_of_the_second_table_is_there() -> None:
    _, _, second = TABLES.partition("## By a name")
    there = {f"{file}: {name}" for file, tree in sources().items() for name, _ in functions(tree)}
    for file in (ROOT / "fl_lightning/report").rglob("*.py"):
        there |= {f"{file.relative_to(ROOT)}: {name}" for name, _ in functions(ast.parse(file.read_text()))}
    assert len(places_in(second)) > 20
    assert places_in(second) <= there
