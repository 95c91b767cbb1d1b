"""The papers' tables and figures, as their configs say below ``paper``: numbers, claims, and how a figure is drawn.

Not drawn are figures of values that no run records (the coherence of groups of clients, losses by class, a server's
epochs), and FedLAW's 9 and 11, whose runs are those of its 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from fl_lightning.errors import ConfigurationError, most_similar
from fl_lightning.fit.configs import CONFIGS, PAPER, layers_of
from fl_lightning.reproduce.experiments.experiment import Cell, Claim, Experiment, Gate, Plot
from fl_lightning.reproduce.experiments.grid import grid, option, option_name
from fl_lightning.runs.catalogue import in_papers
from fl_lightning.runs.folder.yaml_text import read_yaml

FOLDER = CONFIGS / "papers"
# The order of the papers and of our own experiments in lists and in the ledger; others follow.
ORDER = ("fedgh-slides", "fedlaw", "fedmgc", "fedgh-paper", "fedgam", "controls/sham", "controls", "choices")


@cache
def ids() -> list[str]:
    """Return the ids of the experiments with configs of their own, in order."""
    return sorted((path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob("*/*.yaml")), key=_place)


def _place(id: str) -> tuple[int, str, bool, float, str]:
    """Return the key that sorts ids: the papers in ORDER; in a document, tables before figures, by their numbers."""
    document, _, name = id.partition("/")
    kind, _, number = name.partition("-")
    rank = next((at for at, first in enumerate(ORDER) if f"{id}/".startswith(f"{first}/")), len(ORDER))
    return rank, document, kind == "fig", float(number) if number.isdecimal() else math.inf, name


def experiments() -> dict[str, Experiment]:
    """Read the experiments with configs of their own, by id."""
    return {id: read(id)[0] for id in ids()}


def figures(document: str = "") -> list[Experiment]:
    """Read the figures, of all documents or of one, that show cells of another experiment."""
    within = f"{document}/" if document else ""
    found = [each for id in ids() if id.startswith(within) for each in read(id)[1:]]
    return sorted(found, key=lambda each: _place(each.id))


@cache
def read(id: str) -> tuple[Experiment, ...]:
    """Read an experiment from its config, followed by the figures that show its cells."""
    path = FOLDER / f"{id}.yaml"
    facts = read_yaml(path, path.read_text(encoding="utf-8"))[PAPER]
    shown, plot = facts.pop("figures", {}), facts.pop("plot", None)
    facts["rows"], facts["notes"] = (tuple(facts.get(name, ())) for name in ("rows", "notes"))
    facts["gate"] = Gate(**{name: value for part in layers_of(path, PAPER, "gate") for name, value in part.items()})
    facts["claims"] = tuple(Claim(**claim) for claim in facts.get("claims", ()))
    measures = [name for name in in_papers() if any(name in row for row in facts["rows"])]
    facts["measures"] = tuple(dict.fromkeys([*measures, *(claim.measure for claim in facts["claims"])])) or ("top1",)
    facts |= {"config": str(path), "cells": tuple(grid(path)), "plot": Plot(**plot) if plot else None}
    whole = Experiment(id=id, **facts)
    document = id.partition("/")[0]
    return whole, *(_figure(whole, f"{document}/{name}", **each) for name, each in shown.items())


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
    # trainer.callbacks.epochs of a scale means the last callback, which is the cell's rule.
    first = tuple(each for each in more if option_name(each) == "trainer.callbacks")
    chosen = tuple(
        Cell(cell.labels, (*first, *cell.options, *(each for each in more if each not in first)))
        for cell in whole.cells
        if all(cell.labels.get(axis) in labels for axis, labels in (cells or {}).items())
    )
    notes = (f"The paper's numbers are those of {whole.id}.", *notes, *whole.notes)
    return replace(whole, id=id, source=source, claim=claim, claims=(), notes=notes, cells=chosen, plot=Plot(**plot))


def find(name: str) -> list[Experiment]:
    """Find the table or figure of an id, or all of a document; ``figure-1`` stands for ``fig-1``.

    Raises:
        ConfigurationError: no table or figure has this name.
    """
    name = name.replace("/figure-", "/fig-").rstrip("/")
    if name in ids():
        return [read(name)[0]]
    document, _, table = name.rpartition("/")
    found = [read(id)[0] for id in ids() if id.startswith(f"{name}/")]
    found += [each for each in figures(document or name) if f"{each.id}/".startswith(f"{name}/")]
    if not found:
        documents = {id.partition("/")[0] for id in ids()}
        same = [id for id in ids() if id.startswith(document) and id.endswith(f"/{table}")]
        near = same or [each for each in sorted(documents) if each.startswith(name)]
        near = near or most_similar(name, [*ids(), *documents], 1)
        hint = f"did you mean {' or '.join(near)}?" if near else "fl-lightning reproduce --list names all"
        raise ConfigurationError(f"there is no experiment {name}: {hint}")
    return found
