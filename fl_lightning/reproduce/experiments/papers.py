"""The papers' tables and figures, as their configs say below ``paper``: numbers, claims, and how a figure is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError, most_similar
from fl_lightning.fit.configs import CONFIGS, PAPER, layers_of
from fl_lightning.reproduce.experiments.experiment import Cell, Claim, Experiment, Gate, Plot, Tuning
from fl_lightning.reproduce.experiments.grid import grid, option, option_name
from fl_lightning.runs.catalogue import in_papers
from fl_lightning.runs.folder.yaml_text import read_yaml

FOLDER = CONFIGS / "papers"
# The order of the papers and of our own experiments in lists and in the ledger; others follow.
ORDER = ("fedgh-slides", "fedlaw", "fedmgc", "fedgh-paper", "fedgam", "controls/sham", "controls", "choices")


@cache
def ids() -> list[str]:
    """Return the ids of the experiments with configs of their own, in order."""
    paths = [path.relative_to(FOLDER).with_suffix("") for path in FOLDER.glob("*/*.yaml")]
    return sorted((path.as_posix() for path in paths), key=_order)


def _order(id: str) -> tuple[int, str, bool, float, str]:
    """Return the key that sorts ids: the papers in ORDER; in a document, tables before figures, by their numbers."""
    document, _, name = id.partition("/")
    kind, _, number = name.partition("-")
    rank = next((at for at, first in enumerate(ORDER) if f"{id}/".startswith(f"{first}/")), len(ORDER))
    return rank, document, kind == "fig", float(number) if number.isdecimal() else math.inf, name


def experiments() -> dict[str, Experiment]:
    """Read the experiments with configs of their own, by id."""
    return {id: _read(id)[0] for id in ids()}


def figures(document: str = "") -> list[Experiment]:
    """Read the figures, of all documents or of one, that show cells of another experiment."""
    within = f"{document}/" if document else ""
    read: list[Experiment] = []
    for id in ids():
        if id.startswith(within):
            read += _read(id)[1:]
    return sorted(read, key=lambda figure: _order(figure.id))


@cache
def _read(id: str) -> tuple[Experiment, ...]:
    """Read an experiment from its config, followed by the figures that show its cells."""
    path = FOLDER / f"{id}.yaml"
    facts = read_yaml(path, path.read_text(encoding="utf-8"))[PAPER]
    others = facts.pop("figures", {})
    plot = facts.pop("plot", None)
    rows = tuple(facts.pop("rows", ()))
    claims = tuple(Claim(**claim) for claim in facts.pop("claims", ()))
    for part in ("gate", "tune"):  # read with what the files below this one give of them
        facts.pop(part, None)
    whole = Experiment(
        id=id,
        rows=rows,
        config=str(path),
        measures=tuple(facts.pop("measures", ())) or _measures(rows, claims),
        claims=claims,
        gate=_gate(path),
        tuning=_tuning(path),
        noted=tuple(facts.pop("noted", ())),
        notes=tuple(facts.pop("notes", ())),
        cells=tuple(grid(path)),
        plot=Plot(**plot) if plot else None,
        **facts,
    )
    document = id.partition("/")[0]
    return whole, *(_figure(whole, f"{document}/{name}", **about) for name, about in others.items())


def _measures(rows: Sequence[Mapping[str, Any]], claims: Sequence[Claim]) -> tuple[str, ...]:
    """Name what the rows print and the claims compare, each once; top-1 if that is nothing."""
    printed = [name for name in in_papers() if any(name in row for row in rows)]
    compared = [claim.measure for claim in claims]
    return tuple(dict.fromkeys([*printed, *compared])) or ("top1",)


def _gate(path: Path) -> Gate:
    return Gate(**_merged(path, "gate"))


def _tuning(path: Path) -> Tuning | None:
    parts = _merged(path, "tune")
    return Tuning(**parts) if parts else None


def _merged(path: Path, name: str) -> dict[str, Any]:
    """Read a part of what a config says below ``paper``; its own entries replace those of the files below it."""
    merged: dict[str, Any] = {}
    for part in layers_of(path, PAPER, name):
        merged |= part
    return merged


def _figure(
    whole: Experiment,
    id: str,
    source: str,
    claim: str,
    notes: Sequence[str] = (),
    cells: Mapping[str, Sequence[Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    **plot: Any,
) -> Experiment:
    """Make a figure that shows cells of another experiment: those with some labels, all with some more options."""
    more = [option(name, value) for name, value in (options or {}).items()]
    # A figure's monitor stands before the cell's rule: trainer.callbacks.epochs of a scale means the last callback.
    first = [argument for argument in more if option_name(argument) == "trainer.callbacks"]
    last = [argument for argument in more if argument not in first]
    shown = []
    for cell in whole.cells:
        if all(cell.labels.get(axis) in labels for axis, labels in (cells or {}).items()):
            shown.append(Cell(cell.labels, (*first, *cell.options, *last)))
    return replace(
        whole,
        id=id,
        source=source,
        claim=claim,
        claims=(),
        notes=(f"The paper's numbers are those of {whole.id}.", *notes, *whole.notes),
        cells=tuple(shown),
        plot=Plot(**plot),
    )


def find(name: str) -> list[Experiment]:
    """Find the table or figure of an id, or all of a document; ``figure-1`` stands for ``fig-1``.

    Raises:
        ConfigurationError: no table or figure has this name.
    """
    name = name.replace("/figure-", "/fig-").rstrip("/")
    if name in ids():
        return [_read(name)[0]]
    within = f"{name}/"
    tables = [_read(id)[0] for id in ids() if id.startswith(within)]
    document = name.rpartition("/")[0] or name
    drawn = [figure for figure in figures(document) if f"{figure.id}/".startswith(within)]
    if not tables and not drawn:
        near = _near(name)
        hint = f"did you mean {' or '.join(near)}?" if near else "fl-lightning reproduce --list names all"
        raise ConfigurationError(f"there is no experiment {name}: {hint}")
    return [*tables, *drawn]


def _near(name: str) -> list[str]:
    """Suggest names for one that does not exist.

    These are tables of the same name in documents that begin as named; else documents that begin so; else what is most
    similar.
    """
    document, _, table = name.rpartition("/")
    same = [id for id in ids() if id.startswith(document) and id.endswith(f"/{table}")]
    if same:
        return same
    documents = {id.partition("/")[0] for id in ids()}
    begun = [other for other in sorted(documents) if other.startswith(name)]
    return begun or most_similar(name, [*ids(), *documents], 1)
