"""Hooks of mkdocs that make the reference: a page for each public name, and a table of names for each package.

A page shows what the docstring says (arguments with units and ranges, formula, source), the arguments that a signature
passes on to its base class, a config that uses the class, and the neighbours.
"""

import ast
import inspect
import re
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path, PurePosixPath
from types import GenericAlias, ModuleType, SimpleNamespace
from typing import Any

import lists
import yaml
from jsonargparse import ArgumentParser
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import fl_lightning
from fl_lightning import FederatedCallback
from fl_lightning.fit.configs import CONFIGS, bases, shipped_configs
from fl_lightning.fit.helps.class_lists import KINDS, Kind

FOLDER = "reference/api"
PACKAGES = ("fl_lightning", "fl_lightning.callbacks", "fl_lightning.datamodules", "fl_lightning.models")
OVERVIEWS = {  # the page that compares the callbacks of a folder
    "server": "[Server rules](../../server-rules.md)",
    "client": "[Client rules](../../client-rules.md)",
    "compression": "[Compression](../../../how-to/compress.md)",
    "privacy": "[Differential privacy](../../../how-to/private.md)",
    "personal": "[Personal models](../../../how-to/personal.md)",
    "attacks": "[Attacks and faults](../../attacks.md)",
    "monitors": "[Measures](../../measures.md)",
}
HEADING = "{heading_level: 1, show_root_heading: true, show_root_full_path: true, show_root_toc_entry: true}"
NEIGHBOURS = 6  # the most names that "See also" lists of one kind


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages into the navigation, below each package's table."""
    reference = next(part["Reference"] for part in config.nav or [] if "Reference" in part)
    api = next(part for part in reference if "API" in part)
    api["API"] = [
        {package: [_index(package), *({name: _page(package, name)} for name in _names(package))]}
        for package in PACKAGES
    ]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages to the files of the site."""
    for package in PACKAGES:
        names = _names(package)
        rows = [
            f"| [`{name}`]({PurePosixPath(_page(package, name)).name}) | {_says(package, name)} |" for name in names
        ]
        head = files.get_file_from_path(_index(package))
        text = head.content_string if head else ""
        files.remove(head) if head else None
        table = "\n".join([text.rstrip(), "", "| | |", "|---|---|", *rows, ""])
        files.append(File.generated(config, _index(package), content=table))
        for name in names:
            files.append(File.generated(config, _page(package, name), content=page(package, name)))
    return files


def page(package: str, name: str) -> str:
    """Write the page of a public name in Markdown."""
    value = getattr(import_module(package), name)
    parts = [f"::: {package}.{name}\n    options: {HEADING}"]
    if inspect.isclass(value):
        parts += [*passed_on(value), *example(value), *see_also(package, value)]
    return "\n\n".join(parts) + "\n"


def example(cls: type) -> list[str]:
    """Write the lines of a shipped config that name a class, and the command that runs the config.

    A class that no config names gets the command that prints its options, if it is one that options take.
    """
    papers_last = sorted(shipped_configs(), key=lambda name: name.startswith("papers/"))
    for name in [f"{each}.yaml" for each in lists.configs_of(cls)] or papers_last:
        for layer in _layers(name):
            if lines := _only(layer, cls.__name__):
                text = yaml.safe_dump(lines, sort_keys=False, default_flow_style=None)
                return ["## Example", f"```yaml\n{text}```", f"```bash\nfl-lightning fit --config {name}\n```"]
    options = [option for option, kind in KINDS.items() if cls in kind.classes()]
    return ["## Example", f"```bash\nfl-lightning fit --{options[0]}.help {cls.__name__}\n```"] if options else []


@cache
def _layers(name: str) -> list[Any]:
    """Read a shipped config, and then the files that it builds on, the most basic last."""
    return [yaml.safe_load(Path(each).read_text()) for each in (CONFIGS / name, *reversed(bases(CONFIGS / name)))]


def _only(part: Any, name: str) -> Any:
    """Take out of a part of a config all but the first entry for a class; None if there is none."""
    if isinstance(part, dict):
        if part.get("class_path") == name:
            return part
        found = {key: inner for key, value in part.items() if (inner := _only(value, name)) is not None}
        return dict([next(iter(found.items()))]) if found else None
    found = [inner for value in part if (inner := _only(value, name)) is not None] if isinstance(part, list) else []
    return found[:1] or None


def passed_on(cls: type) -> list[str]:
    """List all arguments of a class that takes arguments of its base classes, which its own docstring leaves out."""
    own = "__init__" in vars(cls) and inspect.Parameter.VAR_KEYWORD not in {
        each.kind for each in inspect.signature(cls).parameters.values()
    }
    if own or not any(issubclass(cls, kind.base) for kind in KINDS.values()):
        return []
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, "of", fail_untyped=False)
    told = [each for each in parser._actions if each.dest.startswith("of.") and not each.dest.endswith(".help")]
    lines = [f"- `{each.dest.removeprefix('of.')}`{_default(each)}: {_prose(each.help)}" for each in told]
    return ["## All arguments", "\n".join(lines)] if lines else []


def _default(action: Any) -> str:
    return "" if action.required else f" (default `{action.default}`)"


def _prose(text: str | None) -> str:
    """Put a text on one line, with the names of classes as plain code."""
    return re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", " ".join((text or "").split())).replace("``", "`")


def see_also(package: str, value: type) -> list[str]:
    """Link the base classes and the neighbours: the other names of the package that are used in the same place."""
    here, names = value.__module__, _names(package)
    bases = [base.__name__ for base in value.__mro__[1:] if base.__name__ in names]
    kind = next((kind for kind in KINDS.values() if value in kind.classes()), None)
    same = [each for each in names if each != value.__name__ and _same(package, each, value, kind)]
    overview = [OVERVIEWS[folder] for folder in OVERVIEWS if here.startswith(f"fl_lightning.callbacks.{folder}.")]
    links = [*overview, *(f"[`{name}`]({name}.md)" for name in [*bases, *same[:NEIGHBOURS]])]
    return ["## See also", " · ".join(links)] if links else []


def _same(package: str, name: str, value: type, kind: Kind | None) -> bool:
    other = getattr(import_module(package), name)
    if issubclass(value, FederatedCallback) and package.endswith("callbacks"):
        folder = value.__module__.split(".")[2]
        alike = other.__module__.split(".")[2] == folder
        return alike and (folder != "server" or lists.kind(other) == lists.kind(value))
    return kind is not None and other in kind.classes()


def _names(package: str) -> list[str]:
    return list(import_module(package).__all__)


def _says(package: str, name: str) -> str:
    value = getattr(import_module(package), name)
    if isinstance(value, GenericAlias):
        value = SimpleNamespace(__doc__=text_below(import_module(fl_lightning.HOMES[name]), name))
    return lists.what_it_does(value)


def text_below(module: ModuleType, name: str) -> str:
    """Return the text below the assignment to a name in a module, which Python keeps nowhere.

    Raises:
        LookupError: the module does not assign to the name, or has no text below.
    """
    for statement, below in pairwise(ast.parse(inspect.getsource(module)).body):
        assigned = [ast.unparse(target) for target in getattr(statement, "targets", [])]
        if assigned == [name] and isinstance(below, ast.Expr):
            return str(ast.literal_eval(below.value))
    raise LookupError(f"{module.__name__} says nothing below {name}")


def _index(package: str) -> str:
    return f"{FOLDER}/{package.rpartition('.')[2]}/index.md" if "." in package else f"{FOLDER}/index.md"


def _page(package: str, name: str) -> str:
    return str(PurePosixPath(_index(package)).with_name(f"{name}.md"))
