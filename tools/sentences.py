"""Prints what makes code hard to read at once, a row each, a column for each room of the package.

Look at what these numbers point at; none is a limit. A fold is a comprehension, a ternary or a lambda. A nested fold
stands inside another one, in the same statement. A bare participle is a function named by one word such as ``told``.
A comment counts unless it talks to a tool (``noqa``, ``type:``).

    python tools/sentences.py [FOLDER ...]
"""

import ast
import io
import os
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from measures import PACKAGE, code_lines

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FOLDS = (*COMPREHENSIONS, ast.IfExp, ast.Lambda)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)
IRREGULAR = (
    "born bought built cut drawn found given gone held heard kept known left let lost made met read run said seen sent "
    "set shown spent split taken thrown told worn written"
)
PARTICIPLE = re.compile("[a-z]+ed|" + IRREGULAR.replace(" ", "|"))
FOR_TOOLS = ("# noqa", "# type:", "# fmt:", "# pragma")


def count(source: str) -> Counter[str]:
    """Count what this file looks for in a module's source."""
    counts: Counter[str] = Counter(lines=code_lines(source))
    for node in ast.walk(ast.parse(source)):
        counts["comprehensions"] += isinstance(node, COMPREHENSIONS)
        counts["ternaries"] += isinstance(node, ast.IfExp)
        counts["pairs"] += _assigns_a_pair(node)
        if isinstance(node, ast.stmt):
            counts["statements"] += 1
            counts["nested"] += any(_holds_a_fold(fold) for fold in _folds_of_statement(node))
        if isinstance(node, FUNCTIONS):
            counts["functions"] += 1
            counts["participles"] += bool(PARTICIPLE.fullmatch(node.name.strip("_")))
        if isinstance(node, LOOPS):
            counts["loops"] += 1
            counts["each"] += any(isinstance(name, ast.Name) and name.id == "each" for name in ast.walk(node.target))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        counts["comments"] += token.type == tokenize.COMMENT and not token.string.startswith(FOR_TOOLS)
    return counts


def count_folder(folder: Path) -> Counter[str]:
    """Count in all modules below a folder."""
    total: Counter[str] = Counter()
    for inner, _, names in os.walk(folder, followlinks=True):
        for name in names:
            if name.endswith(".py"):
                total += count((Path(inner) / name).read_text())
    return total


def rows(counts: Counter[str]) -> dict[str, str]:
    """Return the rows of the table for one column, by their titles."""
    thousand = counts["lines"] / 1000
    return {
        "lines of code": str(counts["lines"]),
        "comprehensions a thousand lines": f"{counts['comprehensions'] / thousand:.0f}",
        "ternaries a thousand lines": f"{counts['ternaries'] / thousand:.0f}",
        "a, b = x, y a thousand lines": f"{counts['pairs'] / thousand:.0f}",
        "statements with nested folds, %": f"{100 * counts['nested'] / counts['statements']:.1f}",
        "functions named by a participle": f"{counts['participles']} of {counts['functions']}",
        "loops over each, %": f"{100 * counts['each'] / max(1, counts['loops']):.0f}",
        "comments a hundred lines": f"{counts['comments'] / thousand / 10:.1f}",
    }


def _assigns_a_pair(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return isinstance(node.targets[0], ast.Tuple)


def _folds_of_statement(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the folds of a statement, without those of statements in its body."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(statement))
    while waiting:
        node = waiting.pop()
        if isinstance(node, FOLDS):
            yield node
        if not isinstance(node, ast.stmt):
            waiting += ast.iter_child_nodes(node)


def _holds_a_fold(fold: ast.AST) -> bool:
    return any(isinstance(inner, FOLDS) for inner in ast.walk(fold) if inner is not fold)


def main() -> None:
    """Print the table, for the rooms of the package or for the folders that are given."""
    rooms = ["engine", "callbacks", "fit", "runs", "report", "reproduce"]
    folders = [Path(text) for text in sys.argv[1:]] or [PACKAGE, *(PACKAGE / room for room in rooms)]
    columns = [rows(count_folder(folder)) for folder in folders]
    print(f"{'':32}", *(f"{folder.name:>14}" for folder in folders))
    for title in columns[0]:
        print(f"{title:32}", *(f"{column[title]:>14}" for column in columns))


if __name__ == "__main__":
    main()
