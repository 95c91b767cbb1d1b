"""Config files: find a config, and resolve the files it builds on."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError, most_similar
from fl_lightning.fit.helps.stored import OPTIONS, check_classes, stored_help, texts_in
from fl_lightning.fit.messages import unknown_option
from fl_lightning.runs.folder.files import NOT_RECORDED
from fl_lightning.runs.folder.yaml_text import read_yaml

CONFIGS = Path(__file__).parents[1] / "configs"
# Keys that a config file may have beside those of the command line.
BASE = "base"  # the file or files that a config builds on and overrides: relative to itself, or shipped
GRID = "grid"  # the axes of an experiment: {axis: {label: {option: value}}}, or a list of such grids
SCALE = "scale"  # smaller versions of an experiment, by their names: see fl_lightning/reproduce/experiments/scale.py
PAPER = "paper"  # what a paper prints and claims: see fl_lightning/reproduce/experiments/papers.py
NETWORK = "network"  # the sites of a federation over a network: see fl_lightning/network/command.py
KEYS = {  # what each says in the help
    BASE: "files that the config builds on, relative to the config or shipped",
    GRID: "the settings that the experiment varies; unused in a single run",
    SCALE: "smaller versions of the experiment; unused in a single run",
    PAPER: "what a paper prints and claims; unused in a single run",
    NETWORK: "what serve and join need, see fl-lightning serve --help; unused in a run on one machine",
}
PARTS = ("trainer", "model", "data")  # the options below the first two are known, those below data depend on its class
LIST = "--config.help"  # the option that lists the shipped configs


def find_config(name: str) -> str:
    """Find a config: a path, or the name of a shipped config (``cifar10_gh.yaml``, ``papers/….yaml``).

    Raises:
        ConfigurationError: there is no such config; the message gives the three most similar names among the shipped
            configs and the configs in the working directory.
    """
    if Path(name).is_file():
        return name
    shipped = _find_shipped(name)
    if shipped is not None:
        return str(shipped)
    here = [path.name for path in Path().glob("*.yaml")]
    near = most_similar(f"{name.removesuffix('.yaml')}.yaml", [*here, *shipped_configs()], 3, cutoff=0)
    raise ConfigurationError(
        f"give a config file or a shipped config, such as {', '.join(near)}: there is no {name or repr(name)}, and "
        f"fl-lightning fit {LIST} lists what is shipped"
    )


def _find_shipped(name: str) -> Path | None:
    candidates = (CONFIGS / name, CONFIGS / f"{name}.yaml")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def shipped_configs() -> list[str]:
    """Return the names of the shipped experiments, without the shared parts in folders ``base``."""
    names = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))
    return [name for name in names if "/base/" not in f"/{name}"]


def resolve_configs(args: Sequence[str]) -> list[str]:
    """Replace config names in command-line arguments by paths, each path after the files that the config builds on.

    Raises:
        ConfigurationError: there is no such config.
        SystemExit: the list of the shipped configs is asked for, and has been printed.
    """
    if LIST in args:
        first_lines = {name: (CONFIGS / name).read_text().partition("\n")[0] for name in shipped_configs()}
        print("\n".join(f"{name:36} {line.removeprefix('# ')}" for name, line in first_lines.items()))
        raise SystemExit(0)
    resolved: list[str] = []
    rest = iter(args)
    for argument in rest:
        name = argument.removeprefix("--config=") if argument.startswith("--config=") else None
        if argument in ("--config", "-c"):
            name = next(rest, None)
        if name is None:
            resolved.append(argument)
        else:
            resolved += [f"--config={path}" for path, _ in layers(find_config(name))]
    return resolved


def check_options(args: Sequence[str]) -> None:
    """Refuse what is no option of a command of one run, in its parser's words; leave options of classes to the parser.

    Raises:
        ConfigurationError: there is no such option, config or class, or a value names a FIFO.
        SystemExit: the help of the command is asked for, and has been printed.
    """
    command, *rest = resolve_configs(args)
    if rest in (["-h"], ["--help"]) and (page := stored_help(command)):
        print(page, end="")
        raise SystemExit(0)
    for argument in rest:
        _refuse_fifo(argument)
    listed = read_yaml(OPTIONS, OPTIONS.read_text())
    shows = re.compile(r"--$|-h$|--print_config|--([\w.]+\.)?help\b")  # in place of a run, or takes no options
    if command not in listed or any(map(shows.match, rest)) or listed["lightning"] != version("lightning"):
        return  # another version's Trainer may have other options
    options = {*listed["all"], *listed[command]}
    known = {option.split()[-1] for option in options}  # the name of a linked option stands last
    for place, (argument, following) in enumerate(pairwise([*rest, ""])):
        unknown = place == 0 and not argument.startswith("-")
        if named := re.fullmatch(r"--([\w.-]+)(=\S*)?", argument):
            prefixes = accumulate(named[1].split("."), "{}.{}".format)
            unknown = named[1] not in known and (known - set(PARTS[:2])).isdisjoint(prefixes)
        if unknown and (message := unknown_option(f"Unrecognized arguments: {argument} {following}", options)):
            raise ConfigurationError(message)
    if "torch" not in sys.modules:  # so that no class of the user has been imported, which might have any name
        check_classes(_texts_of(rest), listed["classes"])


def _texts_of(args: Sequence[str]) -> list[tuple[str, str]]:
    """Collect the texts among the settings of a command line and its configs, each with its option."""
    texts: list[tuple[str, str]] = []
    for argument, following in pairwise([*args, ""]):
        name, is_joined, value = argument.removeprefix("--").partition("=")
        if name == "config":
            texts += texts_in(_read_config(value))
        elif argument.startswith("--"):
            texts += texts_in({name: value if is_joined else following})
    return texts


def _refuse_fifo(argument: str) -> None:
    """Refuse a value that names a FIFO: the parser opens what a value names, and would wait for ever for a writer."""
    value = argument.partition("=")[2] if argument.startswith("--") else argument
    if value.startswith("/dev/"):  # a pipe of the shell, as in <(command), has its writer
        return
    try:
        is_fifo = Path(value).is_fifo()
    except (OSError, ValueError):  # a value that is no path
        return
    if is_fifo:
        raise ConfigurationError(f"expected a value or a file, got {value}, which is a FIFO here: give another value")


def layers(path: str | Path, below: tuple[Path, ...] = ()) -> list[tuple[str, dict[str, Any]]]:
    """Read the files that a config builds on, the most basic first, then the config itself: paths and contents.

    A file is looked for in the config's own folder, then among the shipped configs, as :func:`find_config` does.

    Args:
        path: the config.
        below: the files that build on the config.

    Raises:
        ConfigurationError: one of these files does not exist or cannot be read, or the config builds on itself.
    """
    content = _read_config(path)
    named = content.get(BASE) or []
    named = [named] if isinstance(named, str) else named
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ConfigurationError(f"{path}: base must be the name of a file, or a list of names, got {named}")
    below_this: list[tuple[str, dict[str, Any]]] = []
    for name in named:
        own = Path(path).parent / name
        base = own if own.is_file() else _find_shipped(name)
        if base is None:
            raise ConfigurationError(
                f"{path}: base names {name}, but there is neither a file {own} nor a shipped config {name}: name a "
                "file relative to this one, or a shipped config, such as cifar10_gh.yaml"
            )
        if base.resolve() in (*below, Path(path).resolve()):
            raise ConfigurationError(f"{path}: base names {name}, which builds on {path}: name another file")
        below_this += layers(base, (*below, Path(path).resolve()))
    return [*below_this, (str(path), content)]


def bases(path: str | Path) -> list[str]:
    """Return the files that a config builds on, the most basic first."""
    return [file for file, _ in layers(path)[:-1]]


def name_of(configs: Iterable[Any]) -> str:
    """Name a run's experiment: the stem of the first config's path, leaving out files that another config builds on."""
    paths = [str(path) for path in configs]
    based = {base for path in paths for base in bases(path)}
    return next((Path(path).stem for path in paths if path not in based), "experiment")


def experiment_in(path: str | Path) -> str:
    """Name the experiment of a config: its ``experiment``, or that of a file it builds on, or else its stem."""
    return next((str(name) for name in reversed(layers_of(path, "experiment")) if name), Path(path).stem)


def layers_of(path: str | Path, *keys: str) -> list[Any]:
    """Return the values that a config and the files it builds on have below nested keys, the most basic file first."""
    values: list[Any] = [content for _, content in layers(path)]
    for key in keys:
        values = [value[key] for value in values if isinstance(value, Mapping) and key in value]
    return values


def _read_config(path: str | Path) -> dict[str, Any]:
    """Read a config.

    Raises:
        ConfigurationError: the file cannot be read, is not YAML, records a run from Python, or its aliases stand for
            too many values.
    """
    try:
        content = read_yaml(path, Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not text in UTF-8: save the file as UTF-8") from None
    if not isinstance(content, dict):
        return {}  # the parser reports the error
    if NOT_RECORDED in content:
        raise ConfigurationError(f"{path} records a run from Python, and no config can repeat it: run its script again")
    for part in PARTS:
        if part in content and not isinstance(content[part], dict | str):
            raise ConfigurationError(f"{path}: {part} must hold names and values, or name a file, got {content[part]}")
    return content
