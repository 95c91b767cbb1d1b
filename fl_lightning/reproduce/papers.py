"""What the papers print, and what they claim."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import CONFIGS, Cell, grid
from fl_lightning.runs.catalogue import PAPER_NAMES


@dataclass(frozen=True)
class Claim:
    """A paper's claim that one method is better than another, in a form that can be tested.

    Attributes:
        text: as it is reported.
        higher: labels of the cells that are said to be higher; of a list, each.
        than: labels of the cells that they are compared with; of a list, each. Labels of all other axes are equal.
        measure: what the papers call a metric (runs/catalogue.py), or its own name.
        at: the claim is about the mean over the cells with these labels; without it, over all cells. The round is the
            last unless one is named.
        along: an axis of numbers along which the difference is said to grow ("-axis": to fall). Without it, the claim
            is that the difference is above 0.
        by: a margin within which the two count as equal; with it the claim is that they are.
    """

    text: str
    higher: Mapping[str, Any]
    than: Mapping[str, Any]
    measure: str = "top1"
    at: Mapping[str, Any] = field(default_factory=dict)
    along: str | None = None
    by: float | None = None


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    Attributes:
        id: document and number.
        source: document and number in full.
        metric: what the numbers are.
        claim: what the table shows, in words.
        rows: its lines: labels of the grid's axes, measures, and ``round`` if the table reads several.
        config: the file with its settings and its grid.
        measures: what is read from each run: metrics by what the papers call them, or by their own names. The measures
            of the rows and the claims, or top-1 where our runs have none of them.
        claims: to be tested.
        notes: on the printed numbers.
        last: a run's result is the mean of so many last rounds.
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

    @property
    def rounds(self) -> list[int]:
        """The rounds that rows and claims name; where they name none, a run's last is meant."""
        labels = [*self.rows, *(side for claim in self.claims for side in (claim.higher, claim.than, claim.at))]
        named = [each["round"] for each in labels if "round" in each]
        return sorted({round for each in named for round in (each if isinstance(each, list) else [each])})

    def cells(self) -> list[Cell]:
        """All points of its grid."""
        return grid(self.config)


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments by id."""
    content = yaml.safe_load((Path(__file__).parent / "papers.yaml").read_text())
    return {id: _experiment(id, **facts) for id, facts in content.items()}


def _experiment(
    id: str, rows: list[dict[str, Any]], claims: Sequence[dict[str, Any]] = (), notes: Sequence[str] = (), **facts: Any
) -> Experiment:
    tested = tuple(Claim(**claim) for claim in claims)
    measures = [name for name in PAPER_NAMES if any(name in row for row in rows)] + [claim.measure for claim in tested]
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
    """The experiments of an id, or of a document.

    Raises:
        ConfigurationError: there is none.
    """
    known = experiments()
    found = [known[name]] if name in known else [known[id] for id in known if id.startswith(f"{name.rstrip('/')}/")]
    if not found:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "fl-lightning reproduce --list names all"
        raise ConfigurationError(f"there is no experiment {name}: {hint}")
    return found
