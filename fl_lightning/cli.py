"""The fl-lightning command line."""

from __future__ import annotations

import importlib
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fl_lightning.commands import shows_bars, whole_number
from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.fit.messages import run_and_report
from fl_lightning.runs.display.hidden_messages import hide_unhelpful

LIGHTNING = "PyTorch and Lightning"
PANDAS = "pandas and Plotly"


class Command(NamedTuple):
    """A command of the command line.

    Attributes:
        about: a sentence on what the command does, which ``--help`` shows.
        module: the module whose ``command`` function takes the arguments.
        arguments: module and function that check the arguments and answer ``--help``, without importing torch.
        imports: names of the packages whose import takes seconds; a terminal shows them meanwhile. An empty
            text for none.
    """

    about: str
    module: str = "fit.command"
    arguments: tuple[str, str] = ("fit.configs", "check_options")
    imports: str = LIGHTNING


TOPICS = {
    "One run": {
        "fit": Command("train a federation as a config says"),
        "validate": Command("evaluate the global model on the validation data"),
        "test": Command("evaluate the global model on the test data"),
        "predict": Command("predict with the global model, on a predict_dataloader of your own"),
        "data": Command("show the examples and classes of each client, without training"),
    },
    "Many runs": {
        "reproduce": Command(
            "train a paper's table or figure, beside its numbers",
            "reproduce.command",
            ("reproduce.arguments", "arguments"),
        ),
        "sweep": Command(
            "train a config with every combination of some settings",
            "reproduce.sweep.command",
            ("reproduce.sweep.arguments", "arguments"),
        ),
    },
    "Clients on other machines": {
        "serve": Command(
            "run the rounds of a config whose clients train at their sites",
            "network.command",
            ("network.options", "check"),
        ),
        "join": Command("train the client of this site for a server", "network.command", ("network.options", "check")),
        "keys": Command(
            "make the certificates of a server and its sites", "network.keys", ("network.keys", "arguments"), ""
        ),
    },
    "Finished runs": {
        "report": Command(
            "write one HTML page about runs", "report.command", ("report.arguments", "report_arguments"), PANDAS
        ),
        "export": Command(
            "write the global model to a file that needs no fl-lightning",
            "fit.export",
            ("fit.export", "arguments"),
        ),
        "dashboard": Command(
            "lay out W&B workspaces for federated runs",
            "report.dashboard",
            ("report.arguments", "dashboard_arguments"),
        ),
    },
}
COMMANDS = {name: command for topic in TOPICS.values() for name, command in topic.items()}
TITLE = "Federated learning as plain Lightning: an epoch is a round, a batch is a client"
THREADS = "OMP_NUM_THREADS"


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Status 2 stands for a user's mistake, which one line on standard error explains; 130 for Ctrl-C.
    """
    started_in = os.getpid()
    status = _run(sys.argv[1:] if args is None else args)
    if os.getpid() != started_in:  # a copy of the process, which trained other clients
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _run(args: Sequence[str]) -> int:
    try:
        return int(run_and_report(_dispatch, args))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT


def versions() -> str:
    """Name the installed versions, as the packages' metadata give them: importing torch would take seconds."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("fl-lightning", "torch", "lightning"))
    return f"{packages}, Python {platform.python_version()}"


def _dispatch(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(overview())
        return 0
    if args[0] == "--version":
        print(versions())
        return 0
    if args[0] not in COMMANDS and not args[0].startswith("-"):
        near = nearest(args[0], COMMANDS)
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigurationError(f"there is no command {args[0]}: the commands are {', '.join(COMMANDS)}{hint}")
    command = COMMANDS.get(args[0], COMMANDS["fit"])  # the parser of fit also reads options before a command
    module, function = command.arguments
    getattr(importlib.import_module(f"fl_lightning.{module}"), function)(args)
    try:
        sys.path.insert(0, str(Path.cwd()))  # a console script does not search it for the user's classes
    except FileNotFoundError:
        raise ConfigurationError("the working directory has been deleted: change to another one, by cd") from None
    # Only the module of the given command is imported: importing pandas takes a while.
    return int(_import(command.module, command.imports).command(args))


def overview() -> str:
    """Return the text of ``fl-lightning --help``: all commands."""
    lines = ["usage: fl-lightning COMMAND …", "", f"{TITLE}."]
    for topic, commands in TOPICS.items():
        lines += ["", f"{topic}:", *(f"  {name:11}{command.about}" for name, command in commands.items())]
    lines += ["", "fl-lightning COMMAND --help describes the arguments of a command."]
    lines += ["fl-lightning --version names what is installed."]
    lines += ["A first run: fl-lightning fit --config digits_gh.yaml"]
    return "\n".join(lines)


def _import(module: str, slow: str = LIGHTNING) -> Any:
    """Import one of the package's modules; meanwhile, a terminal shows the slow packages that are imported with it."""
    # Set before libraries are imported, which start as many threads: --num_threads says how many PyTorch uses. Checked
    # here, because the libraries print a line of their own.
    os.environ[THREADS] = str(whole_number(THREADS, os.environ.get(THREADS) or "1"))
    # Print without rich, which must not be imported before Lightning: typing caches equal unions, whatever their order,
    # so the parser would get ``float | int`` where Lightning declares ``int | float``, and 2 epochs would become 2.0.
    words = f"importing {slow} …" if slow and shows_bars(sys.stderr) else ""
    print(words, end="", file=sys.stderr, flush=True)
    try:
        with _ctrl_c_ends():
            if slow == LIGHTNING:
                importlib.import_module("lightning.pytorch")
                hide_unhelpful()
            return importlib.import_module(f"fl_lightning.{module}")
    finally:
        print(f"\r{' ' * len(words)}\r" if words else "", end="", file=sys.stderr, flush=True)


@contextmanager
def _ctrl_c_ends() -> Iterator[None]:
    """Let Ctrl-C end the process at once: packages' imports may swallow a KeyboardInterrupt, or break by it."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: object) -> None:
    os.write(2, b"\nstopped\n")
    os._exit(128 + number)
