"""The ledger: where every claim of the papers stands, by the results files of finished experiments."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fl_lightning.commands import counted
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
    def table(self) -> str:
        """Name of the table or figure in its document."""
        return self.experiment.id.partition("/")[2]

    @property
    def scale(self) -> str:
        """The largest scale at which the claim is tested; else the first at which its runs miss the gate, or any."""
        tested = [scale for scale, finding in self.findings.items() if not math.isnan(finding.p)]
        held_back = [scale for scale, finding in self.findings.items() if finding.verdict == SCALE]
        begun = [scale for scale, finding in self.findings.items() if finding.verdict != NOT_RUN]
        return [*tested, *held_back, *begun, *self.findings][0]

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
    entries = []
    for experiment in experiments().values():
        if experiment.claims:
            entries += _entries(experiment, out)
    p_values: dict[str, list[float]] = {}
    for entry in entries:
        p_values.setdefault(entry.paper, []).append(entry.best.p)
    # Of each paper, the corrected values in the order of its entries.
    corrected = {paper: iter(holm(values)) for paper, values in p_values.items()}
    return [_with_star(entry, next(corrected[entry.paper]) <= LEVEL) for entry in entries]


def _with_star(entry: Entry, starred: bool) -> Entry:
    best = dataclasses.replace(entry.best, starred=starred)
    return dataclasses.replace(entry, findings={**entry.findings, entry.scale: best})


def folder_of(out: Path, scale: str, id: str) -> Path:
    """Return the folder of an experiment's results at a scale."""
    return out / ("" if scale == FULL else scale) / id


def _entries(experiment: Experiment, out: Path) -> list[Entry]:
    paper = _all_on_paper(experiment)
    by_scale = {}
    for scale in (FULL, *scales(experiment.config)):
        results = read(folder_of(out, scale, experiment.id) / RESULTS)
        at_scale = dataclasses.replace(experiment, scale="" if scale == FULL else scale)
        by_scale[scale] = _judge(at_scale, results, paper)
    entries = []
    for at, claim in enumerate(experiment.claims):
        findings = {scale: of_claims[at] for scale, of_claims in by_scale.items()}
        entries.append(Entry(experiment, claim, findings))
    return entries


def _all_on_paper(experiment: Experiment) -> pd.DataFrame:
    """Tabulate the paper's numbers for all cells of an experiment, whether we have run them or not."""
    points = pd.DataFrame([dict(cell.labels) for cell in experiment.cells])
    rounds = pd.DataFrame({"round": experiment.rounds or [0]})
    return on_paper(experiment, points.merge(rounds, how="cross"))


def _judge(experiment: Experiment, results: pd.DataFrame, paper: pd.DataFrame) -> list[Finding]:
    """Judge the claims of an experiment; a claim that is not run has the effect by all of the paper's numbers."""
    findings = judge(experiment, results)
    if CHANGED in results:
        findings = [Finding(NOT_RUN, f"run with other settings: {results[CHANGED].iloc[0]}")] * len(findings)
    with_paper = []
    for claim, finding in zip(experiment.claims, findings, strict=True):
        if finding.verdict == NOT_RUN:
            finding = dataclasses.replace(finding, paper=_paper_effect(claim, paper))
        with_paper.append(finding)
    return with_paper


def _paper_effect(claim: Claim, paper: pd.DataFrame) -> float:
    """Compute the smallest effect by the paper's numbers for a claim; nan if the paper prints and states none."""
    # Of several comparisons, all must hold (verdict.py): the smallest effect is the claim's.
    printed = [float(effect.values[0]) for effect in effects(claim, paper) if len(effect.values)]
    return min(printed, default=claim.stated)


def coverage(experiment: Experiment, results: pd.DataFrame) -> str:
    """Say how many of an experiment's cells and how many seeds results cover; empty if no cell is left out."""
    axes = axes_of(results)[:-1]  # without the round
    run = len(results[axes].drop_duplicates())
    if run >= len(experiment.cells):
        return ""
    return f"{run} of {len(experiment.cells)} cells, {counted(results['seed'].nunique(), 'seed')}"


def counts(entries: Sequence[Entry]) -> dict[str, int]:
    """Count the claims by verdict, each at the scale at which it counts."""
    numbers = Counter(entry.best.verdict for entry in entries)
    return {verdict: numbers[verdict] for verdict in VERDICTS}


def summary(entries: Sequence[Entry]) -> str:
    """Count the papers' claims by verdict in a sentence; experiments of our own have no rows, and do not count."""
    entries = [entry for entry in entries if entry.experiment.rows]
    verdicts = ", ".join(f"{verdict} {number}" for verdict, number in counts(entries).items())
    return f"Of {len(entries)} claims: {verdicts}."


def chance(entries: Sequence[Entry]) -> str:
    """Say in a sentence how many false verdicts are to be expected among the papers' claims."""
    tested = [entry.best for entry in entries if entry.experiment.rows and not math.isnan(entry.best.p)]
    decided = sum(finding.verdict in DECIDED for finding in tested)
    stars = sum(finding.starred for finding in tested)
    return (
        f"Of {len(tested)} tested claims, {decided} are decided; at most {len(tested) * FALSE:.1f} verdicts "
        f"({FALSE:.1%} of the tested) are expected to be false. A star marks what also survives Holm's correction for "
        f"the number of the paper's tested claims: {stars}."
    )


def rows(entry: Entry) -> list[list[str]]:
    """Write a claim as rows of a table with the columns of HEAD: one for each scale at which it is run, or one."""
    run = {scale: finding for scale, finding in entry.findings.items() if finding.verdict != NOT_RUN}
    if not run:
        whys = "; ".join(f"{scale}: {finding.why}" for scale, finding in entry.findings.items())
        run = {"–": dataclasses.replace(entry.best, why=whys)}
    return [[entry.claim.text, scale, *row_of_finding(entry.claim, finding)] for scale, finding in run.items()]
