"""The ledger: where every claim of the papers stands, by the results files of finished experiments."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fl_lightning.report.statistics import LEVEL, holm
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.reproduce.experiments.scale import scales
from fl_lightning.reproduce.outcome.claims import effects
from fl_lightning.reproduce.outcome.numbers import CHANGED, RESULTS, axes_of, on_paper, read
from fl_lightning.reproduce.outcome.tables import CLAIMS, row_of_finding
from fl_lightning.reproduce.outcome.verdict import DECIDED, FALSE, NOT_RUN, SCALE, VERDICTS, Finding, judge

FULL = "full"  # name of the papers' own scale
HEAD = [CLAIMS[0], "scale", *CLAIMS[1:]]


@dataclass(frozen=True)
class Entry:
    """A claim and its findings.

    Attributes:
        experiment: the experiment that makes the claim.
        claim: the claim.
        findings: the findings by scale, the paper's own (FULL) first.
    """

    experiment: Experiment
    claim: Claim
    findings: Mapping[str, Finding]

    @property
    def paper(self) -> str:
        """Name of the document in the experiments' ids."""
        return self.experiment.id.partition("/")[0]

    @property
    def scale(self) -> str:
        """The largest scale at which the claim is tested; else the first at which its runs miss the gate, or any."""
        tested = [scale for scale, found in self.findings.items() if not math.isnan(found.p)]
        missed = [scale for scale, found in self.findings.items() if found.verdict == SCALE]
        begun = [scale for scale, found in self.findings.items() if found.verdict != NOT_RUN]
        return next(iter([*tested, *missed, *begun, *self.findings]))

    @property
    def best(self) -> Finding:
        """The finding that counts, which is that of ``scale``."""
        return self.findings[self.scale]


def ledger(out: Path) -> list[Entry]:
    """Judge every claim of the papers by the results files below a folder of results, at every scale.

    A verdict has a star if it survives Holm's correction over the tested claims of the paper, each at the scale at
    which it counts.

    Raises:
        ConfigurationError: a results file cannot be read.
    """
    entries = [entry for each in experiments().values() if each.claims for entry in _entries(each, out)]
    p_values: dict[str, list[float]] = {}
    for entry in entries:
        p_values.setdefault(entry.paper, []).append(entry.best.p)
    corrected = {paper: iter(holm(values)) for paper, values in p_values.items()}
    return [_starred(entry, next(corrected[entry.paper]) <= LEVEL) for entry in entries]


def _starred(entry: Entry, star: bool) -> Entry:
    return dataclasses.replace(
        entry, findings={**entry.findings, entry.scale: dataclasses.replace(entry.best, starred=star)}
    )


def folder_of(out: Path, scale: str, id: str) -> Path:
    """Return the folder of an experiment's results at a scale."""
    return out / ("" if scale == FULL else scale) / id


def _entries(experiment: Experiment, out: Path) -> list[Entry]:
    points = pd.DataFrame([dict(cell.labels) for cell in experiment.cells])
    whole = on_paper(experiment, points.merge(pd.DataFrame({"round": experiment.rounds or [0]}), how="cross"))
    found = {
        scale: _judged(
            dataclasses.replace(experiment, scale="" if scale == FULL else scale),
            read(folder_of(out, scale, experiment.id) / RESULTS),
            whole,
        )
        for scale in (FULL, *scales(experiment.config))
    }
    return [
        Entry(experiment, claim, {scale: findings[at] for scale, findings in found.items()})
        for at, claim in enumerate(experiment.claims)
    ]


def _judged(experiment: Experiment, results: pd.DataFrame, whole: pd.DataFrame) -> list[Finding]:
    """Judge the claims of an experiment; a claim that is not run has the paper's effect over all cells, ``whole``."""
    found = judge(experiment, results)
    if CHANGED in results:
        found = [Finding(NOT_RUN, f"run with other settings: {results[CHANGED].iloc[0]}")] * len(found)
    return [
        dataclasses.replace(each, paper=_paper(claim, whole)) if each.verdict == NOT_RUN else each
        for claim, each in zip(experiment.claims, found, strict=True)
    ]


def _paper(claim: Claim, whole: pd.DataFrame) -> float:
    """Compute the smallest effect by the paper's numbers for a claim; nan if the paper prints and states none."""
    found = [float(each.values[0]) for each in effects(claim, whole) if len(each.values)]
    return min(found, default=claim.stated)


def covered(experiment: Experiment, results: pd.DataFrame) -> str:
    """Say how many of an experiment's cells and how many seeds results cover; empty if no cell is left out."""
    run, whole = len(results[axes_of(results)[:-1]].drop_duplicates()), len(experiment.cells)
    seeds = results["seed"].nunique()
    return f"{run} of {whole} cells, {seeds} {'seed' if seeds == 1 else 'seeds'}" if run < whole else ""


def counts(entries: Sequence[Entry]) -> dict[str, int]:
    """Count the claims by verdict, each at the scale at which it counts."""
    found = Counter(entry.best.verdict for entry in entries)
    return {verdict: found[verdict] for verdict in VERDICTS}


def summary(entries: Sequence[Entry]) -> str:
    """Count the papers' claims by verdict in a sentence; experiments of our own have no rows, and do not count."""
    entries = [entry for entry in entries if entry.experiment.rows]
    found = ", ".join(f"{verdict} {number}" for verdict, number in counts(entries).items())
    return f"Of {len(entries)} claims: {found}."


def chance(entries: Sequence[Entry]) -> str:
    """Say in a sentence how many false verdicts are to be expected among the papers' claims."""
    tested = [entry.best for entry in entries if entry.experiment.rows and not math.isnan(entry.best.p)]
    decided, stars = sum(found.verdict in DECIDED for found in tested), sum(found.starred for found in tested)
    return (
        f"Of {len(tested)} tested claims, {decided} are decided; at most {len(tested) * FALSE:.1f} verdicts "
        f"({FALSE:.1%} of the tested) are expected to be false. A star marks what also survives Holm's correction for "
        f"the number of the paper's tested claims: {stars}."
    )


def rows(entry: Entry) -> list[list[str]]:
    """Write a claim as rows of a table with the columns of HEAD: one for each scale at which it is run, or one."""
    run = {scale: found for scale, found in entry.findings.items() if found.verdict != NOT_RUN}
    if not run:
        whys = "; ".join(f"{scale}: {found.why}" for scale, found in entry.findings.items())
        run = {"–": dataclasses.replace(entry.best, why=whys)}
    return [[entry.claim.text, scale, *row_of_finding(entry.claim, found)] for scale, found in run.items()]
