"""The ledger: where every claim of the papers stands, by the results files of finished experiments."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.statistics import FEWEST_SEEDS, LEVEL, MOST_SEEDS, holm, interval, seeds_needed
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.reproduce.experiments.scale import scales
from fl_lightning.reproduce.outcome.claims import effects, paper_effect, tested
from fl_lightning.reproduce.outcome.numbers import CHANGED, RESULTS, axes_of, on_paper
from fl_lightning.runs.catalogue import measured

FULL = "full"  # name of the papers' own scale
SUPPORTED, CONTRADICTED, UNDECIDED, NOT_TRIED = VERDICTS = "supported", "contradicted", "undecided", "not tried"
HEAD = ["claim", "scale", "ours", "paper", "unit", "p", "p (Holm)", "seeds", "needed", "verdict"]


@dataclass(frozen=True)
class Finding:
    """Holds the test of a claim on our runs at one scale.

    Attributes:
        why: why the claim is not tried; empty if it is.
        effect: mean effect over the seeds, above 0 in the claimed direction, of the comparison that decides; nan if not
            tried.
        half_width: half the width of the effect's 95 % t interval.
        paper: the effect by the paper's numbers, for the same cells and comparison (if not tried, for all cells, and
            the smallest of all comparisons); nan if the paper prints none.
        seeds: number of seeds.
        needed: number of seeds with which the test would find the paper's effect, if they differ as ours do, see
            :func:`~fl_lightning.report.statistics.seeds_needed`; 0 if the paper prints no effect in the claimed
            direction, all our seeds are equal, or the claim is that two sides are equal.
        p: two-sided p value of the claim's test.
        against: whether p is that of the test against the claim.
        corrected: p corrected by Holm's method over the tried claims of the paper at this scale.
    """

    why: str = ""
    effect: float = math.nan
    half_width: float = math.nan
    paper: float = math.nan
    seeds: int = 0
    needed: int = 0
    p: float = math.nan
    against: bool = False
    corrected: float = math.nan

    @property
    def verdict(self) -> str:
        """One of VERDICTS, by the corrected p value."""
        return self.by(self.corrected)

    def by(self, p: float) -> str:
        """Return one of VERDICTS by a p value."""
        if self.why:
            return NOT_TRIED
        return UNDECIDED if not p < LEVEL else CONTRADICTED if self.against else SUPPORTED


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
    def best(self) -> Finding:
        """The finding at the largest scale at which the claim is tried; the first if the claim is not tried."""
        return next((each for each in self.findings.values() if not each.why), next(iter(self.findings.values())))

    @property
    def unit(self) -> str:
        """The unit of the effect: points for accuracies in per cent, else the measure."""
        unit = "points" if measured(self.claim.measure)[1] == 100 else self.claim.measure
        return f"{unit} a step of {self.claim.along.lstrip('-')}" if self.claim.along else unit


def ledger(out: Path) -> list[Entry]:
    """Judge every claim of the papers by the results files below a folder of results, at every scale.

    p values are corrected by Holm's method over the tried claims of a paper at a scale.

    Raises:
        ConfigurationError: a results file cannot be read.
    """
    entries = [entry for each in experiments().values() if each.claims for entry in _entries(each, out)]
    p_values: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        for scale, found in entry.findings.items():
            p_values.setdefault((entry.paper, scale), []).append(found.p)
    corrected = {family: iter(holm(values)) for family, values in p_values.items()}
    return [
        dataclasses.replace(
            entry,
            findings={
                scale: dataclasses.replace(found, corrected=next(corrected[entry.paper, scale]))
                for scale, found in entry.findings.items()
            },
        )
        for entry in entries
    ]


def folder_of(out: Path, scale: str, id: str) -> Path:
    """Return the folder of an experiment's results at a scale."""
    return out / ("" if scale == FULL else scale) / id


def _entries(experiment: Experiment, out: Path) -> list[Entry]:
    points = pd.DataFrame([dict(cell.labels) for cell in experiment.cells])
    whole = on_paper(experiment, points.merge(pd.DataFrame({"round": experiment.rounds or [0]}), how="cross"))
    found = {
        scale: read(folder_of(out, scale, experiment.id) / RESULTS) for scale in (FULL, *scales(experiment.config))
    }
    entries = []
    for claim in experiment.claims:
        paper = _paper(claim, whole)
        findings = {scale: finding(claim, experiment, results, paper) for scale, results in found.items()}
        entries.append(Entry(experiment, claim, findings))
    return entries


def finding(claim: Claim, experiment: Experiment, results: pd.DataFrame, paper: float) -> Finding:
    """Judge a claim by a table of results.

    Args:
        claim: the claim.
        experiment: the experiment that makes the claim.
        results: results of the experiment at a scale; empty if it was not run.
        paper: the effect by the paper's numbers for all cells, which stands if the claim is not tried.
    """
    if results.empty:
        return Finding("not run", paper=paper)
    if CHANGED in results:
        return Finding(f"run with other settings: {results[CHANGED].iloc[0]}", paper=paper)
    test = tested(claim, results)
    if math.isnan(test.p_for):
        few = len(test.comparisons[test.weakest].values)
        why = f"fewer than {FEWEST_SEEDS} seeds" if few else "its cells are left out at this scale"
        return Finding(why, paper=paper)
    if test.idle:
        return Finding(test.idle, paper=paper)
    against = test.p_against < test.p_for
    index = test.opposed if against else test.weakest
    values = test.comparisons[index].values
    effect, half_width = interval(values.tolist())
    paper, deviation = paper_effect(claim, on_paper(experiment, results), index), float(values.std(ddof=1))
    return Finding(
        effect=effect,
        half_width=half_width,
        paper=paper,
        seeds=len(values),
        needed=seeds_needed(paper, deviation) if paper > 0 < deviation and claim.by is None else 0,
        p=min(test.p_for, test.p_against),
        against=against,
    )


def _paper(claim: Claim, whole: pd.DataFrame) -> float:
    """Compute the smallest effect by the paper's numbers for a claim; nan if the paper prints and states none."""
    found = [float(each.values[0]) for each in effects(claim, whole) if len(each.values)]
    return min(found, default=claim.stated)


def read(path: Path) -> pd.DataFrame:
    """Read a results file; an empty table if there is none.

    Raises:
        ConfigurationError: the file is no results file.
    """
    try:
        results = pd.read_csv(path)
    except FileNotFoundError:
        return pd.DataFrame()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"expected a results file of reproduce, got {path}: {error}") from None
    if not {"round", "seed"} <= set(results.columns):
        raise ConfigurationError(f"expected columns round and seed in {path}, got {', '.join(results.columns)}")
    return results


def covered(experiment: Experiment, results: pd.DataFrame) -> str:
    """Say how many of an experiment's cells and how many seeds results cover; empty if no cell is left out."""
    run, whole = len(results[axes_of(results)[:-1]].drop_duplicates()), len(experiment.cells)
    seeds = results["seed"].nunique()
    return f"{run} of {whole} cells, {seeds} {'seed' if seeds == 1 else 'seeds'}" if run < whole else ""


def counts(entries: Sequence[Entry]) -> dict[str, int]:
    """Count the claims by verdict, each at the largest scale at which it is tried."""
    found = Counter(entry.best.verdict for entry in entries)
    return {verdict: found[verdict] for verdict in VERDICTS}


def summary(entries: Sequence[Entry]) -> str:
    """Count the papers' claims by verdict in a sentence; experiments of our own have no rows, and do not count."""
    entries = [entry for entry in entries if entry.experiment.rows]
    found = counts(entries)
    alone = Counter(entry.best.by(entry.best.p) for entry in entries)
    return (
        f"Of {len(entries)} claims, {len(entries) - found[NOT_TRIED]} are tried: {found[SUPPORTED]} supported, "
        f"{found[CONTRADICTED]} contradicted, {found[UNDECIDED]} undecided. Without the correction for the number of "
        f"claims, {alone[SUPPORTED]} would be supported and {alone[CONTRADICTED]} contradicted."
    )


def rows(entry: Entry) -> list[list[str]]:
    """Write a claim as rows of a table with the columns of HEAD: one for each scale at which it is tried, or one."""
    tried = {scale: found for scale, found in entry.findings.items() if not found.why}
    if not tried:
        why = "; ".join(f"{scale}: {found.why}" for scale, found in entry.findings.items())
        paper = _signed(entry.best.paper)
        return [[entry.claim.text, "–", "–", paper, entry.unit, "–", "–", "–", "–", f"{NOT_TRIED} ({why})"]]
    return [
        [
            entry.claim.text,
            scale,
            f"{found.effect:+.3g} ± {found.half_width:.2g}",
            _signed(found.paper),
            entry.unit,
            _p(found.p),
            _p(found.corrected),
            str(found.seeds),
            "–" if not found.needed else str(found.needed) if found.needed <= MOST_SEEDS else f"> {MOST_SEEDS}",
            found.verdict,
        ]
        for scale, found in tried.items()
    ]


def _signed(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.3g}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.2g}"
