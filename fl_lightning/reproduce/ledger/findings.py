"""The ledger: where every claim of the papers stands, by the results files of finished experiments."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fl_lightning.commands import counted
from fl_lightning.report.statistics import LEVEL, holm
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.experiments.papers import experiments
from fl_lightning.reproduce.experiments.scale import scales
from fl_lightning.reproduce.outcome.claims import effects
from fl_lightning.reproduce.outcome.numbers import CHANGED, RESULTS, on_paper, read
from fl_lightning.reproduce.outcome.stand_in import PERCEPTRON
from fl_lightning.reproduce.outcome.tables import CLAIMS, row_of_finding
from fl_lightning.reproduce.outcome.verdict import (
    AT_THE_SETTING,
    DECIDED,
    FALSE,
    NOT_HERE,
    NOT_RUN,
    ON_A_STAND_IN,
    WITHHELD,
    Finding,
    judge,
)

FULL = "full"  # name of the papers' own scale
LINE = 120  # characters in a line of text
HEAD = [CLAIMS[0], "where", *CLAIMS[1:]]


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
        held_back = [scale for scale, finding in self.findings.items() if finding.verdict == WITHHELD]
        begun = [scale for scale, finding in self.findings.items() if finding.verdict != NOT_RUN]
        return [*tested, *held_back, *begun, *self.findings][0]

    @property
    def best(self) -> Finding:
        """The finding that counts, which is that of ``scale``."""
        return self.findings[self.scale]

    @property
    def is_papers(self) -> bool:
        """Whether a paper makes the claim; experiments of our own print no paper's numbers."""
        return bool(self.experiment.rows)


@dataclass(frozen=True)
class Ledgers:
    """Divides claims by where they were run, each in one place: a verdict speaks of that place alone.

    Attributes:
        at_the_setting: the claims that count at their paper's setting.
        on_a_stand_in: the claims that were run on a stand-in alone.
        not_run: all others.
    """

    at_the_setting: Sequence[Entry]
    on_a_stand_in: Sequence[Entry]
    not_run: Sequence[Entry]

    def counts(self) -> dict[str, list[int]]:
        """Count the verdicts of each place in the order of AT_THE_SETTING and ON_A_STAND_IN, and what is not run."""
        return {
            "setting": [*numbers(self.at_the_setting, AT_THE_SETTING).values()],
            "stand-in": [*numbers(self.on_a_stand_in, ON_A_STAND_IN).values()],
            "not run": [len(self.not_run)],
        }


def apart(entries: Iterable[Entry]) -> Ledgers:
    """Divide claims by where they were run."""
    entries = list(entries)
    run = [entry for entry in entries if entry.best.verdict != NOT_RUN]
    return Ledgers(
        at_the_setting=[entry for entry in run if not entry.best.stand_in],
        on_a_stand_in=[entry for entry in run if entry.best.stand_in],
        not_run=[entry for entry in entries if entry.best.verdict == NOT_RUN],
    )


def numbers(entries: Sequence[Entry], verdicts: Sequence[str]) -> dict[str, int]:
    """Count the claims with each of some verdicts, at the scale at which they count."""
    found = Counter(entry.best.verdict for entry in entries)
    return {verdict: found[verdict] for verdict in verdicts}


def ledger(out: Path) -> list[Entry]:
    """Judge every claim of the papers by the results files below a folder of results, at every scale.

    A verdict has a star if it survives Holm's correction over the tested claims of the paper, each at the scale at
    which it counts; those at the paper's setting are corrected apart from those on a stand-in.

    Raises:
        ConfigurationError: a results file cannot be read.
    """
    entries = []
    for experiment in experiments().values():
        if experiment.claims:
            entries += _entries(experiment, out)
    families: dict[tuple[str, bool], list[Entry]] = {}
    for entry in entries:
        families.setdefault(_family(entry), []).append(entry)
    corrected = {}  # of each family, the corrected values in the order of its entries
    for name, own in families.items():
        values = holm([entry.best.p for entry in own])
        corrected[name] = iter(values)
    return [_with_star(entry, next(corrected[_family(entry)]) <= LEVEL) for entry in entries]


def _family(entry: Entry) -> tuple[str, bool]:
    return entry.paper, entry.best.stand_in is None


def _with_star(entry: Entry, starred: bool) -> Entry:
    best = dataclasses.replace(entry.best, starred=starred and entry.best.verdict in DECIDED)
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
        withheld = {scale: _unless_refuted(finding, findings[FULL]) for scale, finding in findings.items()}
        entries.append(Entry(experiment, claim, withheld))
    return entries


def _unless_refuted(finding: Finding, full: Finding) -> Finding:
    """Withhold that an effect is not on a stand-in where the paper's own setting, in any cell, has the other sign."""
    is_not_there = finding.verdict in (NOT_HERE, WITHHELD) and not math.isnan(finding.p)
    if not is_not_there or not finding.effect * full.effect < 0:
        return finding
    runs = f"{counted(full.cells, 'cell')}, {counted(full.seeds, 'seed')}"
    whys = [finding.why, f"{full.effect:+.3g} at the paper's setting ({runs})"]
    return dataclasses.replace(finding, verdict=WITHHELD, why="; ".join(filter(None, whys)))


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


def where(entry: Entry, scale: str) -> str:
    """Say where a claim was run at a scale: the paper's setting or what stands in for it, seeds, and cells left out."""
    finding = entry.findings[scale]
    if finding.verdict == NOT_RUN:
        return "–"
    setting = "paper's setting" if entry.is_papers else "own setting"
    words = f"{'stand-in' if finding.stand_in else setting}, {counted(finding.seeds, 'seed')}"
    all_cells = _all_cells(entry)
    if finding.cells < all_cells:
        words += f", {finding.cells} of {all_cells} cells"
    return f"{words}: {finding.stand_in}" if finding.stand_in else words


def _all_cells(entry: Entry) -> int:
    """Count the cells that a claim's effect is taken over if all are run."""
    every = _all_on_paper(entry.experiment).assign(**{entry.claim.measure: 0.0})
    return min(effect.cells for effect in effects(entry.claim, every))


def summary(entries: Sequence[Entry]) -> str:
    """Count the papers' claims in three lines: at the papers' own setting, on stand-ins, not run.

    Experiments of our own do not count.
    """
    entries = [entry for entry in entries if entry.is_papers]
    places = apart(entries)
    stand_ins = [entry.best.stand_in for entry in places.on_a_stand_in if entry.best.stand_in]
    perceptrons = sum(stand_in.network == PERCEPTRON for stand_in in stand_ins)
    faster = sum(bool(stand_in.rate) for stand_in in stand_ins)
    other_data = sum(stand_in.is_other_data for stand_in in stand_ins)
    tested, run = (
        _in_words(places.at_the_setting, AT_THE_SETTING),
        _in_words(places.on_a_stand_in, ON_A_STAND_IN),
    )
    points = [
        "**At the paper's setting** (its data set, network, clients, rounds and rates) "
        f"{len(places.at_the_setting)} of {len(entries)} claims are tested: {tested}.",
        f"**On a stand-in** alone {len(stand_ins)} were run: {run}. They "
        f"speak of smaller experiments and not of the papers': {perceptrons} have a perceptron for the paper's "
        f"network, {faster} another learning rate, {other_data} another data set, some more than one of these.",
        f"**Not run**: {len(places.not_run)}.",
    ]
    return "\n".join(textwrap.fill(f"- {point}", LINE, subsequent_indent="  ") for point in points)


def _in_words(entries: Sequence[Entry], verdicts: Sequence[str]) -> str:
    return ", ".join(f"{verdict} {number}" for verdict, number in numbers(entries, verdicts).items())


def chance(entries: Sequence[Entry]) -> str:
    """Say how many false verdicts are to be expected among the papers' claims, for each ledger apart."""
    places = apart(entry for entry in entries if entry.is_papers)
    sentences = []
    for place, own in {"At the paper's setting": places.at_the_setting, "On stand-ins": places.on_a_stand_in}.items():
        tested = [entry.best for entry in own if not math.isnan(entry.best.p)]
        decided = sum(finding.verdict in DECIDED for finding in tested)
        stars = sum(finding.starred for finding in tested)
        sentences.append(
            f"{place} {decided} of {len(tested)} tested claims are decided; at most {len(tested) * FALSE:.1f} verdicts "
            f"({FALSE:.1%} of the tested) are expected to be false. Holm's correction for the number of the paper's "
            f"tested claims there leaves {stars} (a star)."
        )
    return " ".join(sentences)


def rows(entry: Entry) -> list[list[str]]:
    """Write a claim as rows of a table with the columns of HEAD: one for each scale at which it is run, or one."""
    run = [scale for scale, finding in entry.findings.items() if finding.verdict != NOT_RUN]
    if run:
        return [
            [entry.claim.text, where(entry, scale), *row_of_finding(entry.claim, entry.findings[scale])]
            for scale in run
        ]
    whys = "; ".join(f"{scale}: {finding.why}" for scale, finding in entry.findings.items())
    finding = dataclasses.replace(entry.best, why=whys)
    return [[entry.claim.text, "–", *row_of_finding(entry.claim, finding)]]
