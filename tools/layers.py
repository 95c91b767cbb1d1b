"""Prints how the rooms of the package import one another: their floors, circles, and imports that run upward.

A room is a folder or a module directly below ``fl_lightning``; "(public names)" is the package's ``__init__``. A room
stands above all rooms that it imports. Imports for type checkers count like all others, but for those of the public
names of ``report``, which the package imports on their first use. Exits with status 1 if rooms or modules import one
another in a circle.

    python tools/layers.py            # this checkout
    python tools/layers.py FOLDER     # another checkout

pyproject.toml declares the order of the rooms, and ``lint-imports`` checks that all imports keep the order.
``make layers`` runs both programs.
"""

import sys
from itertools import permutations
from pathlib import Path

import grimp
import networkx as nx

PACKAGE = "fl_lightning"
LAZY = "fl_lightning.report.python"  # holds public names of the package, which are imported on their first use


def rooms(graph: grimp.ImportGraph) -> "nx.DiGraph[str]":
    """Make the graph of the rooms, with an edge from each room to every room that it imports from."""
    found: nx.DiGraph[str] = nx.DiGraph()
    for module in sorted(graph.modules):
        found.add_node(_room(module))
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if _room(imported) != _room(module):
                found.add_edge(_room(module), _room(imported))
    return found


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "(public names)"


def floors(graph: "nx.DiGraph[str]") -> list[list[str]]:
    """Sort the rooms into floors, the lowest floor first.

    A room's floor is the length of the longest chain of imports below the room. Rooms that import one another in a
    circle share a floor.
    """
    condensed = nx.condensation(graph)
    generations = nx.topological_generations(condensed.reverse())
    return [sorted(room for node in nodes for room in condensed.nodes[node]["members"]) for nodes in generations]


def circles(graph: "nx.DiGraph[str]") -> list[list[str]]:
    """Find the groups of nodes that import one another in a circle."""
    return sorted(sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1)


def modules(graph: grimp.ImportGraph) -> "nx.DiGraph[str]":
    """Make the graph of the modules, with an edge from each module to every module that it imports."""
    pairs = ((one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one))
    return nx.DiGraph(pairs)


def upward(graph: "nx.DiGraph[str]") -> list[tuple[str, str]]:
    """Find the imports that run upward: the fewest edges whose removal would leave no circle.

    For each circle, all orders of its nodes are tried, and the order with the fewest upward edges is taken.
    """
    found: list[tuple[str, str]] = []
    for circle in circles(graph):
        inner = sorted(graph.subgraph(circle).edges)
        orders = (dict(zip(order, range(len(order)), strict=True)) for order in permutations(circle))
        found += min(([(a, b) for a, b in inner if floor[a] < floor[b]] for floor in orders), key=len)
    return found


def main(folder: Path) -> int:
    """Print the floors, circles and upward imports of the package in a folder, and return the exit status."""
    sys.path.insert(0, str(folder))
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    if LAZY in graph.modules:
        graph.remove_import(importer=PACKAGE, imported=LAZY)
    house = rooms(graph)
    stacked, up = floors(house), upward(house)
    for number, names in reversed(list(enumerate(stacked, 1))):
        print(f"{number:3}  {'  '.join(names)}")
    found = {"rooms": circles(house), "modules": circles(modules(graph))}
    print(f"{len(house)} rooms on {len(stacked)} floors, {len(graph.modules)} modules")
    for kind, groups in found.items():
        print(f"circles of {kind}: {len(groups)}", *(f"  {' '.join(group)}" for group in groups), sep="\n")
    print(f"imports that run up: {len(up)}", *(f"  {one} -> {other}" for one, other in up), sep="\n")
    return 1 if up or any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()))
