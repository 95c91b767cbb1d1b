"""An experiment: a config, the cells of its grid, and what a paper prints and claims about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Cell:
    """One point of an experiment's grid.

    Attributes:
        labels: the point's label on each axis, as in the paper's table.
        options: command-line arguments that set the point's options.
        seeds: the cell's own seeds; empty for the command's.
    """

    labels: Mapping[str, Any]
    options: tuple[str, ...]
    seeds: tuple[int, ...] = ()


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
        stated: the effect that the paper states in words, where its tables do not print both sides.
        number: a number to compare with, in place of the cells of ``than``.
    """

    text: str
    higher: Mapping[str, Any]
    than: Mapping[str, Any] = field(default_factory=dict)
    measure: str = "top1"
    at: Mapping[str, Any] = field(default_factory=dict)
    along: str | None = None
    by: float | None = None
    stated: float = math.nan
    number: float | None = None


@dataclass(frozen=True)
class Gate:
    """Says what the runs of an experiment must show before its claims are tested (outcome/gate.py).

    Attributes:
        fedavg: labels of FedAvg's cells.
        dose: the metric that tells how much the rules do, with its value if they do nothing; empty for no such metric.
        overfits: whether the paper's effects are said to show where FedAvg overfits.
    """

    fedavg: Mapping[str, Any] = field(default_factory=lambda: {"method": "FedAvg"})
    dose: Mapping[str, float] = field(default_factory=dict)
    overfits: bool = False


@dataclass(frozen=True)
class Plot:
    """Describes how a figure is drawn.

    Attributes:
        measures: title of the axis for each measure: a metric by its name in the papers or by its own name, or one of
            BY (pictures.py), which lie in arrays.
        panels: axes of the grid with a panel for each label; the other axes tell lines apart.
        kind: "curves" over the rounds; "labels", results against the labels of the axis ``over``; the "histogram" of
            a metric over rounds and runs; the "epochs" of the server that FedLAW saved; "local", a client's measures by
            local epoch, and by round; the "surface" of the loss; the "detections" that DetectionMonitor saved; or the
            "partition" of the data, for which nothing is trained.
        over: the axis of the grid whose labels, numbers, are along the x-axis, which is logarithmic if all are above 0.
        round: the paper's round whose surface is drawn, the last if None; or the middle of a histogram's rounds, which
            are all rounds if None.
    """

    measures: Mapping[str, str] = field(default_factory=dict)
    panels: Sequence[str] = ()
    kind: Literal["curves", "labels", "histogram", "epochs", "local", "surface", "detections", "partition"] = "curves"
    over: str = ""
    round: int | None = None


@dataclass(frozen=True)
class Tuning:
    """Says from which distributions the methods of an experiment draw settings before they are compared.

    A distribution is a list of values, ``{log: [low, high]}`` or ``{even: [low, high]}``.

    Attributes:
        every: options of ``fit`` that every method draws, each with its distribution.
        method: for each method, the options that it draws beside them.
        options: options of the search alone, such as validation examples apart from the test set.
        needs: for each method, what it needs and FedAvg does not, each in a few words.
    """

    every: Mapping[str, Any]
    method: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper, or a sweep.

    Attributes:
        id: document and number, or the name of a sweep.
        source: document and number in full.
        metric: description of the numbers.
        claim: result of the table, in words.
        rows: lines of the table: labels of the grid's axes, measures, and ``round`` if the table has several rounds.
        config: the file with the settings and the grid.
        measures: metrics to read from each run, by their names in the papers or their own names: the measures of the
            rows and the claims, or top-1 if our runs log none of the rows' measures and there are no claims. Empty for
            a sweep whose measure is chosen among what its runs log.
        claims: claims to test.
        gate: the conditions that the runs must meet before the claims are tested.
        notes: notes on the printed numbers.
        last: number of last rounds over which a run's result is averaged.
        cells: points of the config's grid.
        plot: the plan of the figure: measures, panels, lines; None for a table.
        scale: name of the scale at which the experiment is run (scale.py); empty for the paper's own.
        reduced: a sentence that says how the scale differs from the paper's experiment; the tables begin with it.
        pace: rounds of a run for each round of the paper's.
        tuning: the distributions from which the methods draw options before they are compared; None for no search.
        prints: whether tables and pictures of the results are written and printed; else the caller tells them.
        noted: metrics that the results record beside the measures, and that no table shows.
        pooled: label, by its axis, of a row for all cells together, whose measures are correlations over the clients
            of all cells (numbers.py); empty for no such row.
    """

    id: str
    source: str
    metric: str
    claim: str
    rows: tuple[Mapping[str, Any], ...]
    config: str
    measures: tuple[str, ...]
    claims: tuple[Claim, ...] = ()
    gate: Gate = Gate()
    notes: tuple[str, ...] = ()
    last: int = 1
    cells: tuple[Cell, ...] = ()
    plot: Plot | None = None
    scale: str = ""
    reduced: str = ""
    pace: float = 1.0
    tuning: Tuning | None = None
    prints: bool = True
    noted: tuple[str, ...] = ()
    pooled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_trained(self) -> bool:
        """Whether the experiment needs any training; a figure of partitions needs none."""
        return self.plot is None or self.plot.kind != "partition"

    @property
    def rounds(self) -> list[int]:
        """The rounds that rows and claims name; empty if the last round of a run is meant."""
        labels = [*self.rows]
        for claim in self.claims:
            labels += [claim.higher, claim.than, claim.at]
        rounds = set[int]()
        for point in labels:
            if "round" in point:
                named = point["round"]
                rounds.update(named if isinstance(named, list) else [named])
        return sorted(rounds)

    def read_at(self, rounds: int) -> dict[int, int]:
        """Map the rounds that rows and claims name to the rounds of ours that stand for them.

        Args:
            rounds: number of rounds of a run. Later rounds are left out; if none remains, the last round is read.
        """
        ours = {theirs: self.our_rounds(theirs) for theirs in self.rounds}
        trained = {theirs: own for theirs, own in ours.items() if own <= rounds}
        return trained or {rounds: rounds}

    def our_rounds(self, rounds: int) -> int:
        """Return the number of rounds of ours, at least 1, that stand for a number of the paper's rounds."""
        return max(1, round(rounds * self.pace))
