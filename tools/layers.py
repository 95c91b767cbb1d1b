"""Prints how the rooms of the house stand on one another: floors, circles, and imports that run up.

A room is a folder or a module directly below ``fl_lightning``; the public names are its ``__init__``. Imports for type
checkers alone count like all others. Exits with status 1 if there is a circle, of rooms or of modules within a room.

    python tools/layers.py            # this checkout
    python tools/layers.py FOLDER     # another one

The order that imports must keep is written down in pyproject.toml; ``lint-imports`` checks it (``make layers``: both).
"""

import sys
from itertools import permutations
from pathlib import Path

import grimp
import networkx as nx

PACKAGE = "fl_lightning"


def rooms(graph: grimp.ImportGraph) -> "nx.DiGraph[str]":
    """The rooms, with an edge from each to every room that it imports from."""
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
    """Rooms by the length of the longest chain of imports below them, lowest first; a circle stands on one floor."""
    condensed = nx.condensation(graph)
    generations = nx.topological_generations(condensed.reverse())
    return [sorted(room for node in nodes for room in condensed.nodes[node]["members"]) for nodes in generations]


def circles(graph: "nx.DiGraph[str]") -> list[list[str]]:
    """Groups of nodes that import one another, round and round."""
    return sorted(sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1)


def modules(graph: grimp.ImportGraph) -> "nx.DiGraph[str]":
    """All modules, with an edge from each to every module that it imports."""
    pairs = ((one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one))
    return nx.DiGraph(pairs)


def upward(graph: "nx.DiGraph[str]") -> list[tuple[str, str]]:
    """The fewest edges without which there is no circle: in the best order of each circle, those that run up."""
    found: list[tuple[str, str]] = []
    for circle in circles(graph):
        inner = sorted(graph.subgraph(circle).edges)
        orders = (dict(zip(order, range(len(order)), strict=True)) for order in permutations(circle))
        found += min(([(a, b) for a, b in inner if floor[a] < floor[b]] for floor in orders), key=len)
    return found


def main(folder: Path) -> int:
    """Print the house in a folder; the exit status."""
    sys.path.insert(0, str(folder))
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
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
