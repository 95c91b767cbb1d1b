"""The fl-lightning command line."""

from __future__ import annotations

import importlib
import platform
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Commands about many runs or about finished runs, each with the module whose ``command`` function takes the arguments.
# ``fit.command`` handles all other commands, and a command line without a command.
COMMANDS = {
    "reproduce": "reproduce.command",
    "sweep": "reproduce.command",
    "report": "report.command",
    "dashboard": "report.dashboard",
    "export": "fit.export",
}
EPILOG = (
    f"On many runs, or on runs that are over: fl-lightning {' --help, '.join(COMMANDS)} --help. What is installed: "
    "fl-lightning --version"
)
IMPORTING = "importing PyTorch and Lightning …"


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Status 2 stands for a user's mistake, which one line on standard error explains; 130 for Ctrl-C.
    """
    args = sys.argv[1:] if args is None else args
    if args and args[0] == "--version":
        print(versions())
        return 0
    sys.path.insert(0, str(Path.cwd()))  # a console script does not search the working directory for the user's classes
    try:
        reported = _import("fit.messages").reported
        return int(reported(_dispatch, args))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT


def versions() -> str:
    """Name the installed versions, as the packages' metadata give them: importing torch would take seconds."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("fl-lightning", "torch", "lightning"))
    return f"{packages}, Python {platform.python_version()}"


def _dispatch(args: Sequence[str]) -> int:
    # Only the module of the given command is imported: importing pandas takes a while.
    if args and args[0] in COMMANDS:
        return int(_import(COMMANDS[args[0]]).command(args))
    return int(_import("fit.command").command(args, EPILOG))


def _import(module: str) -> Any:
    """Import one of the package's modules; a terminal says so meanwhile, because PyTorch and Lightning take seconds."""
    # Printed without rich, which must not be imported before Lightning: typing takes equal unions for one another, and
    # would then give the parser ``float | int`` where Lightning says ``int | float``: 2 epochs would become 2.0.
    words = IMPORTING if sys.stderr.isatty() else ""
    print(words, end="", file=sys.stderr, flush=True)
    try:
        return importlib.import_module(f"fl_lightning.{module}")
    finally:
        print(f"\r{' ' * len(words)}\r" if words else "", end="", file=sys.stderr, flush=True)
