"""Writes what documents repeat of the code: lists of callbacks, in callbacks/__init__.py and docs/, and helps.

    make lists

A new rule, attack or monitor needs three files only: the class in ``callbacks/server``, ``client``, ``attacks`` or
``monitors``, a YAML in ``configs/rules`` and a test. This script makes all lists of callbacks from the classes: from
the first sentence of each docstring, the arguments, ``settles`` and ``metrics``. The metrics also go to the catalogue,
which reports read without importing torch. The page of commands gets the ``--help`` of each command as it is printed. A
test checks that the files are up to date.
"""

import contextlib
import inspect
import io
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import yaml

from fl_lightning import FederatedCallback, RoundTimer, TrafficMonitor
from fl_lightning.cli import COMMANDS, main
from fl_lightning.fit.class_lists import first_sentence
from fl_lightning.runs.catalogue import FILE, Metric

ROOT = Path(__file__).parents[1]
MEASURES = ROOT / "docs" / "reference" / "measures.md"
FOLDERS = {
    "server": "Rules that act on the server",
    "client": "Rules that act on clients",
    "attacks": "Attacks and faults",
    "monitors": "Monitors",
}
SETTLING = ("server", "client")  # the folders of rules, whose tables say what each settles
# Groups of server rules, by the part of a round that a rule settles ("refine": by the hook that the rule overrides). A
# rule belongs to the first group that fits.
KINDS = {
    "updates": "correct the updates",
    "weights": "set the weights",
    "shrinking": "set the shrinking factor",
    "reduction": "replace the weighted sum",
    "step": "settle the server's step",
    "refine": "refine the new model on a proxy set",
    "base weights": "set the weights to start from",
}
OTHER = "settle nothing that another could undo"
ARGUMENTS = 4  # the most arguments of a class that a table shows
CONFIGS = 3  # the most configs of a class that a table shows
LIKE_FIT = ("validate", "test", "predict", "data")  # commands whose help repeats that of fit after its first section
END = "<!-- end -->"  # the comment after a list on a page
WIDTH = "90"  # of the terminal that helps are printed for


def callbacks(folder: str) -> Iterator[type[FederatedCallback]]:
    """Yield the callbacks that a folder defines, sorted by name: its public classes, but no abstract base classes."""
    package = import_module(f"fl_lightning.callbacks.{folder}")
    modules = [import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)]
    found = {cls for module in modules for cls in vars(module).values() if _is_whole(cls, package.__name__)}
    yield from sorted(found, key=lambda cls: cls.__name__.lower())


def _is_whole(value: object, package: str) -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, FederatedCallback)
        and value.__module__.startswith(package)
        and not inspect.isabstract(value)
        and not value.__name__.startswith("_")
    )


def exports() -> str:
    """Make the text of callbacks/__init__.py."""
    text = (ROOT / "callbacks" / "__init__.py").read_text()
    top = text[: text.index("\n# make lists")]
    names = {folder: [cls.__name__ for cls in callbacks(folder)] for folder in FOLDERS}
    modules: dict[str, list[str]] = {}
    for folder in FOLDERS:
        for cls in callbacks(folder):
            modules.setdefault(cls.__module__, []).append(cls.__name__)
    imports = [f"from {module} import {', '.join(sorted(held))}" for module, held in sorted(modules.items())]
    listed = [line for folder, title in FOLDERS.items() for line in (f"    # {title}", *_quoted(names[folder]))]
    made = ["# make lists writes what follows", *imports, "", "__all__ = [  # noqa: RUF022", *listed, "]", ""]
    return _formatted(top + "\n" + "\n".join(made))


def _quoted(names: list[str]) -> list[str]:
    return [f'    "{name}",' for name in names]


def _formatted(code: str) -> str:
    """Format code, and sort its imports, with ruff."""
    for command in (["check", "--fix", "--select", "I", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", "callbacks/__init__.py", "-"]
        code = subprocess.run(ruff, input=code, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return code


def what_it_does(cls: type[object]) -> str:
    """Return the first sentence of a class's docstring as Markdown, with references to other objects as plain code."""
    return re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", first_sentence(cls)).replace("``", "`").replace("|", r"\|")


def arguments(cls: type[object]) -> str:
    """Return the names of a class's arguments, separated by commas, at most ``ARGUMENTS`` of them."""
    names = list(inspect.signature(cls).parameters)
    return ", ".join([*names[:ARGUMENTS], "…"] if len(names) > ARGUMENTS else names)


def configs_of(cls: type[object]) -> list[str]:
    """Return the names of at most ``CONFIGS`` configs that list a class; configs of papers are left out.

    Configs that list the class as their first callback come first.
    """
    folder = ROOT / "configs"
    listed = {
        path.relative_to(folder).with_suffix("").as_posix(): _callbacks_in(yaml.safe_load(path.read_text()))
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("rules/*.yaml")])
    }
    found = [name for name, classes in listed.items() if cls.__name__ in classes]
    return sorted(found, key=lambda name: (listed[name][0] != cls.__name__, name))[:CONFIGS]


def _callbacks_in(config: dict[str, dict[str, list[dict[str, str]]]]) -> list[str]:
    trainer = config.get("trainer", {})
    found = trainer.get("callbacks+") or trainer.get("callbacks") or []
    return [each["class_path"] for each in found]


def settled(cls: type[FederatedCallback]) -> list[str]:
    """Return the parts of a round that a rule settles, in the order of ``KINDS``."""
    parts: set[str] = {*cls.settles, *(["reduction"] if cls.reduce is not None else [])}
    return sorted(parts, key=lambda part: ([*KINDS, part].index(part), part))


def kind(cls: type[FederatedCallback]) -> str:
    """Return the group of a server rule: one of the texts in ``KINDS``, or ``OTHER``."""
    parts = settled(cls) + ["refine"] * (cls.refine is not FederatedCallback.refine)
    return next((words for part, words in KINDS.items() if part in parts), OTHER)


def table(folder: str) -> list[str]:
    """Make the lines of a table with one row for every callback of a folder."""
    columns = ["what it does", "settles", "configs"] if folder in SETTLING else ["what it does", "configs"]
    rows = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for cls in callbacks(folder):
        cells = [f"`{cls.__name__}({arguments(cls)})`", what_it_does(cls)]
        cells += [", ".join(settled(cls)) or "–"] if folder in SETTLING else []
        rows.append(f"| {' | '.join([*cells, ', '.join(configs_of(cls))])} |")
    return rows


def by_kind() -> list[str]:
    """Make the lines of the table of what there is: the groups of server rules, and the other folders."""
    groups: dict[str, list[str]] = {title: [] for title in [*KINDS.values(), OTHER]}
    for cls in callbacks("server"):
        groups[kind(cls)].append(f"`{cls.__name__}`")
    rows = [f"| server rules that {title} | {', '.join(names)} |" for title, names in groups.items() if names]
    others = {"client rules": "client", "attacks and faults": "attacks", "monitors": "monitors"}
    rows += [f"| {t} | {', '.join(f'`{cls.__name__}`' for cls in callbacks(f))} |" for t, f in others.items()]
    return ["| | |", "|---|---|", *rows]


def declared() -> dict[type[object], tuple[Metric, ...]]:
    """Find the metrics that callbacks declare, by the callback's class."""
    classes = [*(cls for folder in FOLDERS for cls in callbacks(folder)), RoundTimer, TrafficMonitor]
    return {cls: vars(cls)["metrics"] for cls in classes if "metrics" in vars(cls)}


def catalogue() -> str:
    """Make the text of the catalogue of metrics, of which the first part is written by hand."""
    own, marker, _ = FILE.read_text().partition("\n# make lists")
    metrics = [metric for each in declared().values() for metric in each]
    left_out = ("name", "formula")
    facts = {
        m.name: {name: value for name, value in vars(m).items() if value and name not in left_out} for m in metrics
    }
    listed = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=120)
    return f"{own}{marker} writes what follows: what the classes of callbacks declare\n{listed}"


def metric_tables() -> dict[str, list[str]]:
    """Make a table of metrics for each callback that has a place for one on the page of measures.

    One more table has all other metrics that the page does not define.
    """
    rest, text = "metrics of other callbacks", MEASURES.read_text()
    tables, others = dict[str, list[str]](), list[str]()
    elsewhere = re.sub(f"(?s){begin(rest)}.*?{END}", "", text)
    names = re.findall(r"`([\w<>]+(?:/[\w<>]+)+)`", elsewhere)
    defined = re.compile("|".join(re.sub("<.*?>", "[^/]+", name) for name in names))
    for cls, metrics in declared().items():
        rows = {m.name: f"| `{m.name}` | {f'{m.caption} {m.formula}'.strip() or m.title} |" for m in metrics}
        if begin(name := f"metrics of {cls.__name__}") in text:
            tables[name] = ["| metric | definition |", "|---|---|", *rows.values()]
        else:
            others += [f"| `{cls.__name__}` {rows[name]}" for name in rows if not defined.fullmatch(name)]
    return {**tables, rest: ["| logged by | metric | definition |", "|---|---|---|", *others]}


def begin(name: str) -> str:
    """Return the comment before a list on a page."""
    return f"<!-- make lists: {name} -->"


def help_of(command: str) -> list[str]:
    """Make the lines of a block that holds what ``fl-lightning COMMAND --help`` prints."""
    printed = io.StringIO()
    here = patch.dict(os.environ, COLUMNS=WIDTH), patch.object(sys, "path", list(sys.path))  # main changes the path
    with here[0], here[1], contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([command, "--help"])
    text = printed.getvalue().rstrip()
    if command in LIKE_FIT:
        text = text[: text.index("\n\nThe rounds")] + "\n…"
    return ["```text", *(line.rstrip() for line in text.splitlines()), "```"]


def pages() -> dict[Path, dict[str, list[str]]]:
    """Make the lists of each page: the lines of every list under the list's name."""
    return {
        ROOT / "docs" / "reference" / "what-there-is.md": {"callbacks": by_kind()},
        ROOT / "docs" / "reference" / "server-rules.md": {"server rules": table("server")},
        ROOT / "docs" / "reference" / "client-rules.md": {"client rules": table("client")},
        ROOT / "docs" / "reference" / "attacks.md": {"attacks": table("attacks")},
        MEASURES: {"monitors": table("monitors"), **metric_tables()},
        ROOT / "docs" / "reference" / "commands.md": {f"help {name}": help_of(name) for name in COMMANDS},
    }


def with_lists(text: str, lists: dict[str, list[str]]) -> str:
    """Replace the lists in a page's text; each list stands between two comments."""
    for name, lines in lists.items():
        start = begin(name)
        if start not in text:
            raise SystemExit(f"a page must hold {start} and {END}, and one does not")
        before, rest = text.split(start, 1)
        text = "\n".join([before + start, *lines, END + rest.split(END, 1)[1]])
    return text


def written() -> dict[Path, str]:
    """Return the up-to-date text of every file that holds a list."""
    files = {page: with_lists(page.read_text(), lists) for page, lists in pages().items()}
    return {ROOT / "callbacks" / "__init__.py": exports(), FILE: catalogue(), **files}


def without(module: str) -> str:
    """Make the text of callbacks/__init__.py without what it imports from a module that is gone."""
    lines = (ROOT / "callbacks" / "__init__.py").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(f"from {module} import"))


def write_all() -> None:
    """Write callbacks/__init__.py; then, in a process that imports it as it is now, all other files."""
    init = ROOT / "callbacks" / "__init__.py"
    try:
        text = exports()
    except ModuleNotFoundError as error:
        text = without(str(error.name))
    if init.read_text() != text:
        init.write_text(text)
        print(f"written: {init.relative_to(ROOT)}", flush=True)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    for path, new in written().items():
        if path.read_text() != new:
            path.write_text(new)
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    write_all()
