"""Print one table of what fl-lightning costs, as ratios, and write it as JSON.

    python -m benchmarks [--peers] [--quick] [--only GROUP] [--out FILE]
    python -m benchmarks --page FILE

The groups: floors (local training, against loops written by hand), clients (at once, against one by one), configs
(shipped configs, against the loop that people write), peers (whole rounds, against other frameworks), rules (clients'
rules, against FedAvg), server (rules, against naive loops), scale (up to a million clients), gpu (rounds on a GPU, if
there is one) and metrics (the file of metrics after many rounds).
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from benchmarks.rows import HEADER, Row, markdown, record, write_page

PAGE = Path(__file__).parents[1] / "docs" / "results" / "performance.md"
Group = Callable[[bool, bool], Iterator[Row]]  # of whether few repetitions do, and whether to install other frameworks


def _group(module: str) -> Group:
    return lambda quick, install: import_module(f"benchmarks.{module}").rows(quick, install)


GROUPS = {
    "floors": _group("floors"),
    "clients": _group("groups"),
    "configs": _group("configs"),
    "peers": _group("peers.rounds"),
    "rules": _group("client_rules"),
    "server": _group("naive"),
    "scale": _group("scale"),
    "gpu": _group("gpu"),
    "metrics": _group("metrics"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Print what fl-lightning costs.")
    parser.add_argument("--peers", action="store_true", help="install other frameworks, each apart, and run them")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--only", metavar="GROUP", help=f"one group: {', '.join(GROUPS)}")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file, runs/benchmarks/<date>.json by default")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a JSON file's table into its page in docs/")
    asked = parser.parse_args(arguments)
    if asked.page:
        if not asked.page.is_file():
            return _refuse(f"--page must be a JSON file that this command has written, got {asked.page}")
        write_page(PAGE, asked.page)
        return 0
    if asked.only and asked.only not in GROUPS:
        return _refuse(f"--only must be one of {', '.join(GROUPS)}, got {asked.only}")
    names = [asked.only] if asked.only else [name for name in GROUPS if name != "peers" or asked.peers]
    file = asked.out or Path("runs", "benchmarks", f"{date.today():%Y-%m-%d}.json")
    measure(names, asked.quick, asked.peers or asked.only == "peers", file)
    print(f"written to {file}")
    return 0


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


def measure(names: list[str], quick: bool, install: bool, file: Path) -> None:
    """Print the rows of some groups as they arrive; the file is written anew after each, so that a stop loses none."""
    console, table, rows = Console(), Table(*HEADER), list[Row]()
    file.parent.mkdir(parents=True, exist_ok=True)
    with Live(table, console=console, vertical_overflow="visible") if console.is_terminal else nullcontext():
        for name in names:
            for row in GROUPS[name](quick, install):
                rows.append(row)
                table.add_row(*row.cells())
                if not console.is_terminal:
                    print(markdown(row.cells()), flush=True)
                file.write_text(json.dumps(record(rows, quick), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
