"""The papers' tables and figures: the printed numbers and the claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError, most_similar
from fl_lightning.fit.configs import CONFIGS, Cell, grid
from fl_lightning.runs.catalogue import in_papers
from fl_lightning.runs.yaml_text import read_yaml


@dataclass(frozen=True)
class Claim:
    """A paper's claim that one method is better than another, in a form that can be tested.

    Attributes:
        text: the claim in words, for reports.
        higher: labels of the cells that are claimed to be higher; with a list, the claim is about each of its labels.
        than: labels of the cells to compare with; with a list, the claim is about each of its labels. The two compared
            cells have equal labels on all other axes.
        measure: name of a metric in the papers (runs/catalogue.py), or the metric's own name.
        at: labels of the cells over which the mean is taken; all cells if empty. The round is the last unless one is
            named.
        along: an axis of numbers along which the difference is claimed to grow ("-axis": to fall). Without an axis, the
            claim is that the difference is above 0.
        by: a margin; the claim is then that the two sides are equal within the margin.
        above: the mean that every compared cell must exceed for the claim to be tested: two methods that learn nothing
            are equal, too.
        stated: the effect that the paper states in words, where its tables do not print both sides.
    """

    text: str
    higher: Mapping[str, Any]
    than: Mapping[str, Any]
    measure: str = "top1"
    at: Mapping[str, Any] = field(default_factory=dict)
    along: str | None = None
    by: float | None = None
    above: float = -math.inf
    stated: float = math.nan


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    Attributes:
        id: document and number.
        source: document and number in full.
        metric: description of the numbers.
        claim: result of the table, in words.
        rows: lines of the table: labels of the grid's axes, measures, and ``round`` if the table has several rounds.
        config: the file with the settings and the grid.
        measures: metrics to read from each run, by their names in the papers or their own names: the measures of the
            rows and the claims, or top-1 if our runs log none of the rows' measures and there are no claims. Empty for
            a sweep whose measure is chosen among what its runs log.
        claims: claims to test.
        notes: notes on the printed numbers.
        last: number of last rounds over which a run's result is averaged.
        scale: name of the scale at which the experiment is run (scale.py); empty for the paper's own.
        reduced: a sentence that says how the scale differs from the paper's experiment; the tables begin with it.
        pace: rounds of a run for each round of the paper's.
    """

    id: str
    source: str
    metric: str
    claim: str
    rows: tuple[Mapping[str, Any], ...]
    config: str
    measures: tuple[str, ...]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    last: int = 1
    scale: str = ""
    reduced: str = ""
    pace: float = 1.0

    @property
    def rounds(self) -> list[int]:
        """The rounds that rows and claims name; empty if the last round of a run is meant."""
        labels = [*self.rows, *(side for claim in self.claims for side in (claim.higher, claim.than, claim.at))]
        named = [each["round"] for each in labels if "round" in each]
        return sorted({round for each in named for round in (each if isinstance(each, list) else [each])})

    def read_at(self, rounds: int) -> dict[int, int]:
        """Map the rounds that rows and claims name to the rounds of ours that stand for them.

        Args:
            rounds: number of rounds of a run. Later rounds are left out; if none remains, the last round is read.
        """
        ours = {at: self.paced(at) for at in self.rounds}
        return {at: own for at, own in ours.items() if own <= rounds} or {rounds: rounds}

    def paced(self, rounds: int) -> int:
        """Return the number of rounds, at least 1, that stand for a number of the paper's rounds."""
        return max(1, round(rounds * self.pace))

    def cells(self) -> list[Cell]:
        """All points of the experiment's grid."""
        return grid(self.config)


@cache
def experiments() -> dict[str, Experiment]:
    """Read all experiments of the papers, by id."""
    content = read_yaml("papers.yaml", (Path(__file__).parent / "papers.yaml").read_text())
    return {id: _experiment(id, **facts) for id, facts in content.items()}


def _experiment(
    id: str, rows: list[dict[str, Any]], claims: Sequence[dict[str, Any]] = (), notes: Sequence[str] = (), **facts: Any
) -> Experiment:
    tested = tuple(Claim(**claim) for claim in claims)
    measures = [name for name in in_papers() if any(name in row for row in rows)] + [claim.measure for claim in tested]
    return Experiment(
        id=id,
        rows=tuple(rows),
        config=str(CONFIGS / "papers" / f"{id}.yaml"),
        measures=tuple(dict.fromkeys(measures)) or ("top1",),
        claims=tested,
        notes=tuple(notes),
        **facts,
    )


def find(name: str) -> list[Experiment]:
    """Find the experiment with an id, or all experiments of a document.

    Raises:
        ConfigurationError: no experiment has this name.
    """
    known = experiments()
    found = [known[name]] if name in known else [known[id] for id in known if id.startswith(f"{name.rstrip('/')}/")]
    if not found:
        document, _, table = name.rpartition("/")
        documents = {id.partition("/")[0] for id in known}
        same = [id for id in known if id.startswith(document) and id.endswith(f"/{table}")]
        near = same or [each for each in sorted(documents) if each.startswith(name)]
        near = near or most_similar(name, [*known, *documents], 1)
        hint = f"did you mean {' or '.join(near)}?" if near else "fl-lightning reproduce --list names all"
        raise ConfigurationError(f"there is no experiment {name}: {hint}")
    return found
