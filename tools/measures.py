"""Prints how large the engine is, how much its classes share, and circles of imports.

tests/test_house.py holds the sizes within bounds, and refuses circles.

A line of code has a token that is neither a comment nor part of a docstring. The chain are the package's own classes
that the orchestrator inherits from; an attribute is touched by a class that reads or sets it on ``self``. Circles
are those that the contracts of pyproject.toml let pass: no import of a package's own file counts there, such as the
public names of ``fl_lightning``.

    python tools/measures.py
"""

import ast
import io
import os
import tokenize
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

PACKAGE = Path(__file__).parents[1] / "fl_lightning"
ENGINE = PACKAGE / "engine"
GROUND = ("arguments", "files", "inside", "lightning_private", "seeding")  # of the engine and of other rooms
LAZY = "fl_lightning.report.python"  # holds public names of the package
CHAIN = ("orchestrator.py", "hosting/host.py", "rules/server.py")  # the files of the orchestrator's own classes
LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER)


def code_lines(source: str) -> int:
    """Count the lines of code of a module."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [node.body[0] for node in ast.walk(ast.parse(source)) if isinstance(node, documented) and node.body]
    strings = [each for each in texts if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
    prose = {line for each in strings for line in range(each.lineno, (each.end_lineno or 0) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {line for token in tokens if token.type not in LAYOUT for line in range(token.start[0], token.end[0] + 1)}
    return len(code - prose)


def rooms() -> dict[str, int]:
    """Count the lines of code of each room of the engine, with all folders in it; "" is the engine's own folder."""
    found: dict[str, int] = {}
    for path in sorted(ENGINE.rglob("*.py")):
        room = path.relative_to(ENGINE).parts[0] if path.parent != ENGINE else ""
        found[room] = found.get(room, 0) + code_lines(path.read_text())
    return found


def ground() -> int:
    """Count the lines of code of the modules below the engine that serve other rooms, too."""
    return sum(code_lines((PACKAGE / f"{name}.py").read_text()) for name in GROUND)


def files() -> dict[str, int]:
    """Count the modules of each folder of the package, by the folder's path below the package."""
    walked = os.walk(PACKAGE, followlinks=True)
    folders = [Path(folder) for folder, _, names in walked if "__init__.py" in names]
    return {folder.relative_to(PACKAGE).as_posix(): len(list(folder.glob("*.py"))) - 1 for folder in sorted(folders)}


def attributes() -> tuple[set[str], dict[str, list[str]]]:
    """Find the attributes that the orchestrator's classes set on ``self``, and the classes that touch each of them."""
    written: set[str] = set()
    touched: dict[str, list[str]] = {}
    for cls in _classes():
        names = [node for node in ast.walk(cls) if isinstance(node, ast.Attribute) and _is_self(node.value)]
        written |= {node.attr for node in names if isinstance(node.ctx, ast.Store)}
        for name in {node.attr for node in names}:
            touched.setdefault(name, []).append(cls.name)
    return written, {name: touched[name] for name in written}


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Find a circle of rooms, and one of modules, that import one another; imports for type checkers count, too.

    A room is a folder or a module directly below the package, and the package's own file.
    """
    found = []
    units: tuple[Callable[[str], str], ...] = (lambda module: ".".join(module.split(".")[:2]), str)
    for unit in units:
        imported: dict[str, set[str]] = {}
        for module in graph.modules:
            others = {unit(other) for other in graph.find_modules_directly_imported_by(module)} - {unit(module)}
            imported.setdefault(unit(module), set()).update(others)
        try:
            TopologicalSorter(imported).prepare()
        except CycleError as error:
            found.append(list(error.args[1]))
    return found


def package_graph() -> grimp.ImportGraph:
    """Read the imports of the package, except that of names which the package imports on their first use."""
    graph = grimp.build_graph(PACKAGE.name, cache_dir=None)
    graph.remove_import(importer=PACKAGE.name, imported=LAZY)
    return graph


def _classes() -> Iterator[ast.ClassDef]:
    for name in CHAIN:
        yield from (each for each in ast.parse((ENGINE / name).read_text()).body if isinstance(each, ast.ClassDef))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def main() -> None:
    """Print the measures."""
    sizes, (written, touched) = rooms(), attributes()
    for room, size in sizes.items():
        print(f"{size:5} lines of code  engine/{room}")
    print(f"{sum(sizes.values()):5} in the engine, {ground()} on the ground floor below it")
    largest = max(files(), key=files().__getitem__)
    print(f"{files()[largest]:5} files at most in a folder: {largest}")
    shared = sorted(name for name, classes in touched.items() if len(classes) > 2)
    print(f"{len(written):5} attributes of the orchestrator")
    print(f"{len(shared):5} of them touched by three classes: {', '.join(shared)}")
    for circle in circles(package_graph()):
        print("circle: " + " → ".join(circle))


if __name__ == "__main__":
    main()
