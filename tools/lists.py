"""Writes what documents and packages repeat of the code: lists of classes, counts of the papers' tables, and helps.

    make lists

A new rule, attack or monitor needs three files only: the class in ``callbacks/server``, ``client``, ``personal``,
``compression``, ``privacy``, ``adapters``, ``attacks`` or ``monitors``, a YAML in ``configs/rules`` and a test; a new
data set needs a class in ``datamodules/images``, ``sites`` or ``tables`` and a test. This script makes all lists of
callbacks from the classes: from the first sentence of each docstring, the arguments, ``settles`` and ``metrics``. The
metrics also go to the catalogue, which reports read without importing torch. The options of the commands and the names
of classes go to ``fl_lightning/fit/options.yaml``, by which a wrong one is refused before Lightning is imported: a new
argument of the orchestrator and a new class are refused, too, until this script has run. The helps of the commands go
to ``fl_lightning/fit/help.yaml``. A test checks that the files are up to date.
"""

import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from fl_lightning import FederatedCallback, FederatedDataModule, RoundTimer, TrafficMonitor
from fl_lightning.fit.command import FederatedCLI
from fl_lightning.fit.helps.class_lists import KINDS as OPTIONS
from fl_lightning.fit.helps.class_lists import first_sentence
from fl_lightning.fit.helps.stored import OPTIONS as OPTIONS_FILE
from fl_lightning.fit.helps.stored import PAGES, REST
from fl_lightning.fit.parser import options_of
from fl_lightning.fit.read_config import parser_of
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.runs.catalogue import FILE, Metric

ROOT = Path(__file__).parents[1]
MEASURES = ROOT / "docs" / "reference" / "measures.md"
FOLDERS = ("server", "client", "personal", "compression", "privacy", "adapters", "attacks", "monitors")  # of callbacks
ROOMS = {
    "callbacks": FOLDERS,
    "datamodules": ("images", "sites", "tables"),
}  # folders whose classes a room's __init__ lists
SETTLING = (
    "server",
    "client",
    "personal",
    "compression",
    "privacy",
    "adapters",
)  # the folders of rules, whose tables say what each settles
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
# How many rules of a group a chain may have.
CHAINS = {
    "updates": "any number, in any order.",
    "weights": "at most one. Such a rule weighs the updates as they are, so no rule after it may change the updates, "
    "or set the weights to start from as `FedAvg` does.",
    "shrinking": "at most one.",
    "reduction": "at most one, and no rule that sets the weights or the shrinking factor, which would have no effect.",
    "step": "at most one.",
    "refine": "any number, with any other rules.",
}
OTHER = "settle nothing that another could undo"
# The rules that reviewers expect beside a new one, and where.
BASELINES = {
    "FedAvg": "everywhere",
    "FedProx": "clients with different data",
    "Scaffold": "clients with different data",
    "FedNova": "clients with different data",
    "FedDyn": "clients with different data",
    "MOON": "clients with different data",
    "FedAdam": "a server that does more than average",
    "Ditto": "a model for each client",
    "FedRep": "a model for each client",
    "Krum": "clients that attack",
}
# Folders of callbacks, by the titles of their tables on the page of what there is; server rules have one by kind.
TABLES = {
    "Client rules": "client",
    "Personal rules": "personal",
    "Compressors": "compression",
    "Private rules": "privacy",
    "Rules for adapters": "adapters",
    "Attacks and faults": "attacks",
    "Monitors": "monitors",
}
# Options whose classes the page of what there is names after the callbacks, by the row's title.
TITLES = {
    "data sets": "data",
    "partitions": "data.partition",
    "changes to training images": "data.augment",
    "changes to labels": "data.corruption",
    "changes to images by client": "data.domain_shift",
    "samplers of clients": "data.sampler",
    "availability of clients": "data.availability",
    "networks": "model.client.network",
}
ARGUMENTS = 4  # the most arguments of a class that a table shows
CONFIGS = 3  # the most configs of a class that a table shows
AFTER_FIRST = "\n\nThe rounds"  # begins what the helps of these commands have in common
END = "<!-- end -->"  # the comment after a list on a page


def callbacks(folder: str) -> list[type[FederatedCallback]]:
    """Find the callbacks that a folder defines, as :func:`shipped` does."""
    return shipped(f"callbacks.{folder}")


def shipped(folder: str) -> list[type[Any]]:
    """Find the callbacks or data modules that a folder defines: its public classes, sorted, without abstract ones."""
    package = import_module(f"fl_lightning.{folder}")
    modules = [import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)]
    found = {cls for module in modules for cls in vars(module).values() if _is_whole(cls, package.__name__)}
    return sorted(found, key=lambda cls: cls.__name__.lower())


def _is_whole(value: object, package: str) -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, FederatedCallback | FederatedDataModule)
        and value.__module__.startswith(package)
        and not inspect.isabstract(value)
        and not value.__name__.startswith("_")
    )


def exports(room: str) -> str:
    """Make the text of a room's __init__.py, of which the first part is written by hand."""
    by_hand = (ROOT / room / "__init__.py").read_text().partition("# make lists")[0]
    lines = [f"{by_hand}# make lists writes what follows", "# isort: off"]
    for folder in ROOMS[room]:
        classes = [(cls.__module__, cls.__name__) for cls in shipped(f"{room}.{folder}")]
        lines += [f"from {module} import {name} as {name}" for module, name in classes]
    return "\n".join([*lines, "", "__all__ = [name for name, value in vars().items() if callable(value)]", ""])


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
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("rules/*.yaml"), *folder.glob("adapters/*.yaml")])
    }
    found = [name for name, classes in listed.items() if cls.__name__ in classes]
    return sorted(found, key=lambda name: (listed[name][0] != cls.__name__, name))[:CONFIGS]


def _callbacks_in(config: dict[str, dict[str, list[dict[str, str]]]]) -> list[str]:
    trainer = config.get("trainer", {})
    listed = trainer.get("callbacks+") or trainer.get("callbacks") or []
    return [callback["class_path"] for callback in listed]


def settled(cls: type[FederatedCallback]) -> list[str]:
    """Return the parts of a round that a rule settles, in the order of ``KINDS``."""
    parts: set[str] = {*cls.settles, *(["reduction"] if cls.reduce is not None else [])}
    return sorted(parts, key=lambda part: ([*KINDS, part].index(part), part))


def groups(cls: type[FederatedCallback]) -> list[str]:
    """Return the groups of a server rule: names in ``KINDS``."""
    return settled(cls) + ["refine"] * (cls.refine is not FederatedCallback.refine)


def kind(cls: type[FederatedCallback]) -> str:
    """Return the first group of a server rule: one of the texts in ``KINDS``, or ``OTHER``."""
    return next((words for part, words in KINDS.items() if part in groups(cls)), OTHER)


def chains() -> list[str]:
    """Make the list that says how many server rules of a group a chain may have."""
    named = {part: [f"`{cls.__name__}`" for cls in callbacks("server") if part in groups(cls)] for part in CHAINS}
    return [f"- Rules that {KINDS[part]} ({', '.join(named[part])}): {words}" for part, words in CHAINS.items()]


def table(folder: str) -> list[str]:
    """Make the lines of a table with one row for every callback of a folder."""
    columns = ["what it does", "settles", "configs"] if folder in SETTLING else ["what it does", "configs"]
    rows = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for cls in callbacks(folder):
        cells = [f"`{cls.__name__}({arguments(cls)})`", what_it_does(cls)]
        cells += [", ".join(settled(cls)) or "–"] if folder in SETTLING else []
        rows.append(f"| {' | '.join([*cells, ', '.join(configs_of(cls))])} |")
    return rows


def words_and_paper(cls: type[object]) -> tuple[str, str]:
    """Take the first sentence of a class's docstring apart: what it does, and the paper in brackets at its end.

    Returns:
        The words, and the paper up to its year, as in "Blanchard et al., 2017"; "" if no paper is named.
    """
    sentence = what_it_does(cls)
    bracket = re.search(r" \(([^()]*)\)$", sentence)
    if bracket is None:
        return sentence, ""
    with_year = re.search(r".*\d{4}", bracket[1])  # an equation's or a table's number follows
    return sentence[: bracket.start()], with_year[0] if with_year else bracket[1]


def baselines() -> list[str]:
    """Make the lines of the table of the rules that reviewers expect."""
    classes = {cls.__name__: cls for folder in FOLDERS for cls in callbacks(folder)}
    lines = ["| | expected in papers on | what it does | paper |", "|---|---|---|---|"]
    for name, topic in BASELINES.items():
        words, paper = words_and_paper(classes[name])
        lines.append(f"| `{name}` | {topic} | {words} | {paper} |")
    return lines


def callback_tables() -> list[str]:
    """Make the lines of a table for each kind of server rules, and for each other folder of callbacks."""
    tables: dict[str, list[type[FederatedCallback]]] = {}
    for title in [*KINDS.values(), OTHER]:
        tables[f"Server rules that {title}"] = [cls for cls in callbacks("server") if kind(cls) == title]
    for title, folder in TABLES.items():
        tables[title] = callbacks(folder)
    lines: list[str] = []
    for title, classes in tables.items():
        if classes:
            lines += ["", f"### {title}", "", "| | what it does | paper |", "|---|---|---|"]
        for cls in classes:
            words, paper = words_and_paper(cls)
            lines.append(f"| `{cls.__name__}` | {words} | {paper} |")
    return [*lines, ""]


def other_classes() -> list[str]:
    """Make the lines of the table of the classes that the other options take, by name alone."""
    lines = ["| | |", "|---|---|"]
    for title, option in TITLES.items():
        names = ", ".join(f"`{cls.__name__}`" for cls in OPTIONS[option].classes())
        lines.append(f"| {title} | {names} |")
    return lines


def counts() -> list[str]:
    """Make the lines that count the papers' tables and figures, and their claims as the ledger does."""
    ids = [id for id, experiment in experiments().items() if experiment.rows]
    papers = {id.partition("/")[0] for id in ids}
    return [
        f"`fl-lightning reproduce` knows {len(ids)} tables and figures of {len(papers)} papers, at the papers'",
        "settings and, in minutes, on stand-ins for a laptop. Of their claims:",
        "",
        *claims(),
    ]


def scales() -> list[str]:
    """Make the lines of README's first screen that say at which scale the papers' claims were tested."""
    text = " ".join(" ".join(claims()).split())
    found = re.search(r"(\d+ of \d+) claims are tested: (.*?)\. .* alone (\d+) were run", text)
    assert found, text
    tested, verdicts, alone = found.groups()
    return [
        f"Of the claims of papers and benchmarks that it repeats, {tested} are tested [at their own",
        f"setting](docs/results/ledger.md): {verdicts}.",
        f"{alone} more were run on smaller stand-ins alone, which cannot speak for the papers.",
    ]


def claims() -> list[str]:
    """Return the ledger's first lines, which count the papers' claims by verdict and scale."""
    ledger = (ROOT / "docs" / "results" / "ledger.md").read_text()
    return ledger.split("\n\n")[1].splitlines()


def declared() -> dict[type[object], tuple[Metric, ...]]:
    """Find the metrics that callbacks declare, by the callback's class."""
    classes = [*(cls for folder in FOLDERS for cls in callbacks(folder)), RoundTimer, TrafficMonitor]
    return {cls: vars(cls)["metrics"] for cls in classes if "metrics" in vars(cls)}


def catalogue() -> str:
    """Make the text of the catalogue of metrics, of which the first part is written by hand."""
    own, marker, _ = FILE.read_text().partition("\n# make lists")
    facts: dict[str, dict[str, object]] = {}
    for metrics in declared().values():
        for metric in metrics:
            known = vars(metric).items()
            facts[metric.name] = {key: value for key, value in known if value and key not in ("name", "formula")}
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


def pages() -> dict[Path, dict[str, list[str]]]:
    """Make the lists of each page: the lines of every list under the list's name."""
    return {
        ROOT / "docs" / "reference" / "what-there-is.md": {
            "baselines": baselines(),
            "callbacks": callback_tables(),
            "other classes": other_classes(),
        },
        ROOT / "README.md": {"scales": scales(), "counts": counts()},
        ROOT / "docs" / "results" / "index.md": {"claims": claims()},
        ROOT / "docs" / "reference" / "server-rules.md": {"server rules": table("server"), "chains": chains()},
        ROOT / "docs" / "reference" / "client-rules.md": {"client rules": table("client")},
        ROOT / "docs" / "how-to" / "personal.md": {"personal rules": table("personal")},
        ROOT / "docs" / "how-to" / "compress.md": {"compressors": table("compression")},
        ROOT / "docs" / "how-to" / "private.md": {"private rules": table("privacy")},
        ROOT / "docs" / "reference" / "attacks.md": {"attacks": table("attacks")},
        MEASURES: {"monitors": table("monitors"), **metric_tables()},
    }


def options() -> str:
    """Make the text of the list of the options of each command of one run, and of the classes that they take."""
    named = {command: set(options_of(parser_of(command))) for command in FederatedCLI.subcommands()}
    everywhere = set.intersection(*named.values())
    lists = {"all": everywhere, **{command: names - everywhere for command, names in named.items()}}
    facts = {
        "lightning": version("lightning"),
        **{name: sorted(names) for name, names in lists.items()},
        "classes": class_names_at_start(),
    }
    text = yaml.safe_dump(facts, sort_keys=False, width=110, default_flow_style=None)
    return f"# make lists writes this file: the options of the commands of one run, and the names of classes\n{text}"


def names_below(base: type) -> set[str]:
    """Return the names of a class and of its subclasses in this process."""
    names = {base.__name__}
    for cls in type.__subclasses__(base):
        names |= names_below(cls)
    return names


def class_names() -> dict[str, list[str]]:
    """Return the names of the classes of each option, without networks: each version of PyTorch has others."""
    return {option: sorted(names_below(OPTIONS[option].base)) for option in OPTIONS if option != "model.client.network"}


def class_names_at_start() -> dict[str, list[str]]:
    """Return the names of the classes of each option in a new process, where no test has imported others."""
    code = "import json, lists; print(json.dumps(lists.class_names()))"
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tools'}"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | paths, check=True, capture_output=True)
    names: dict[str, list[str]] = json.loads(done.stdout)
    return names


def helps() -> str:
    """Make the text of the file of helps: the page of each command of one run, without what all pages end with."""
    lines = ["# make lists writes this file: the help of the commands of one run", f"lightning: {version('lightning')}"]
    for command in FederatedCLI.subcommands():
        page = parser_of(command).format_help()
        begin_of_rest = page.index(AFTER_FIRST)
        lines += [f"{command}: |-", indent(page[:begin_of_rest], "  ")]
    return "\n".join([*lines, f"{REST}: |", indent(page[begin_of_rest:].lstrip("\n"), "  ")])


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
    return {
        **{ROOT / room / "__init__.py": exports(room) for room in ROOMS},
        FILE: catalogue(),
        OPTIONS_FILE: options(),
        PAGES: helps(),
        **files,
    }


def write_all() -> None:
    """Write the __init__.py of each room; then, in a process that imports them as they are now, all other files."""
    for room in ROOMS:
        init = ROOT / room / "__init__.py"
        if init.read_text() != (text := exports(room)):
            init.write_text(text)
            print(f"written: {init.relative_to(ROOT)}", flush=True)
            os.execv(sys.executable, [sys.executable, *sys.argv])
    for path, new in written().items():
        if path.read_text() != new:
            path.write_text(new)
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    write_all()
