"""Config files: finding them, what they build on, and the grid of an experiment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.errors import ConfigurationError

CONFIGS = Path(__file__).parents[1] / "configs"
# A file's own keys, beside those of the command line.
BASE = "base"  # the file or files that this one builds on, relative to itself; what this one says wins
GRID = "grid"  # what an experiment varies: axis: {label: {option: value}}, or a list of such grids
KEYS = (BASE, GRID)


@dataclass(frozen=True)
class Cell:
    """One point of an experiment's grid.

    Attributes:
        labels: axis to label, as in the paper's table.
        options: what the point changes, as arguments of the command line.
    """

    labels: Mapping[str, Any]
    options: tuple[str, ...]


def find_config(name: str) -> str:
    """The config of a name: a path, or a shipped one (``cifar10_gh.yaml``, ``papers/….yaml``).

    Raises:
        ConfigurationError: there is none; names those that exist.
    """
    if Path(name).is_file():
        return name
    for candidate in (CONFIGS / name, CONFIGS / f"{name}.yaml"):
        if candidate.is_file():
            return str(candidate)
    shipped = ", ".join(shipped_configs())
    raise ConfigurationError(f"there is no config {name} here, nor among the shipped ones: {shipped}")


def shipped_configs() -> list[str]:
    """The names of the experiments that ship, without the parts (in folders ``base``) that they share."""
    names = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))
    return [name for name in names if "/base/" not in f"/{name}"]


def resolve_configs(args: Sequence[str]) -> list[str]:
    """Command-line arguments with bare config names replaced by paths, each after those that it builds on."""
    resolved: list[str] = []
    rest = iter(args)
    for argument in rest:
        name = argument.removeprefix("--config=") if argument.startswith("--config=") else None
        if argument in ("--config", "-c"):
            name = next(rest, None)
        if name is None:
            resolved.append(argument)
        else:
            path = find_config(name)
            resolved += [f"--config={each}" for each in [*bases(path), path]]
    return resolved


def bases(path: str | Path, below: tuple[Path, ...] = ()) -> list[str]:
    """The files that a config builds on, the most basic first.

    Raises:
        ConfigurationError: one of them does not exist, or the config builds on itself.
    """
    named = _read(path).get(BASE) or []
    found: list[str] = []
    for name in [named] if isinstance(named, str) else named:
        base = Path(path).parent / name
        if not base.is_file() or base.resolve() in below:
            reason = "builds on it" if base.is_file() else "does not exist"
            raise ConfigurationError(f"{path}: base names {name}, which {reason}: name another file, relative to this")
        found += [*bases(base, (*below, Path(path).resolve())), str(base)]
    return found


def grid(path: str | Path) -> list[Cell]:
    """All points of a config's grid, the last axis fastest; one point without options where there is no grid.

    An axis that lists labels takes their options from a file that the config builds on.

    Raises:
        ConfigurationError: an axis is no mapping of labels to options, or lists a label that no base has.
    """
    common: dict[str, Any] = {}
    for base in bases(path):
        common |= _read(base).get(GRID) or {}
    own = _read(path).get(GRID) or {}
    return [cell for axes in (own if isinstance(own, list) else [own]) for cell in _cells(path, common, axes)]


def _cells(path: str | Path, common: Mapping[str, Any], axes: Mapping[str, Any]) -> Iterator[Cell]:
    chosen = {axis: _labelled(path, axis, values, common.get(axis) or {}) for axis, values in axes.items()}
    for point in itertools.product(*(values.items() for values in chosen.values())):
        labels = dict(zip(chosen, (label for label, _ in point), strict=True))
        options = [option(name, value) for _, changes in point for name, value in (changes or {}).items()]
        yield Cell(labels, tuple(options))


def _labelled(path: str | Path, axis: str, values: Any, known: Mapping[Any, Any]) -> Mapping[Any, Any]:
    if isinstance(values, Mapping) and all(isinstance(changes, Mapping | None) for changes in values.values()):
        return values
    if not isinstance(values, list) or not set(values) <= set(known):
        raise ConfigurationError(
            f"{path}: grid.{axis} must map labels to options ({{5: {{data.num_clients: 5}}}}), or list labels of its "
            f"base ({', '.join(map(str, known)) or 'which has none'}), got {values}"
        )
    return {label: known[label] for label in values}


def option(name: str, value: Any) -> str:
    """An argument of the command line that sets an option to a value, whatever its type."""
    inline = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
    return f"--{name}=" + inline.removesuffix("...\n").strip()


def _read(path: str | Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text())
    except (yaml.YAMLError, OSError, UnicodeDecodeError):
        return {}  # the parser says what is wrong with it
    return content if isinstance(content, dict) else {}
