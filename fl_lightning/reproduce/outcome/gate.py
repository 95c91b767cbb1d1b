"""The gate: whether runs are in the regime in which a paper's effect can show, told from single methods alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fl_lightning.report.compared.long_table import values_by_round
from fl_lightning.report.compared.methods import differing_names
from fl_lightning.reproduce.experiments.choosing import in_words
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment, Gate
from fl_lightning.reproduce.jobs import Job, Pairs
from fl_lightning.reproduce.outcome.claims import has
from fl_lightning.reproduce.outcome.numbers import axes_of, measure, printed

FLOOR = 10.0  # points above chance that every side has in every seed
COVERED = 0.5  # FedAvg's least share of the paper's distance from chance
FALL = 0.05  # a training loss that falls by a smaller share in the last fifth of the rounds has stopped falling
DOSE = 0.01  # smallest mean distance of a rule's metric from its value without the rule
OVERFITS = 1.5  # FedAvg's least validation loss, in training losses, where the paper's FedAvg overfits
# The columns of results for the gate, the first two in per cent, the others as shares; and what each is for.
ACCURACY, CHANCE, FELL, DOSED, GAP = (f"gate/{name}" for name in ("accuracy", "chance", "fall", "dose", "gap"))
ABOUT = {
    ACCURACY: "accuracy",
    FELL: "the fall of FedAvg's training loss",
    DOSED: "what the rules did",
    GAP: "whether FedAvg overfits",
}
PAPER = "gate/paper"  # the paper's accuracy, in no file
GATE_HEAD = [
    "FedAvg, ours",
    "FedAvg, paper",
    "its loss still falls by",
    "its validation ÷ training loss",
    "dose of the rules",
]

Row = Mapping[str, Any]


def with_columns(experiment: Experiment, jobs: Pairs, results: pd.DataFrame) -> pd.DataFrame:
    """Add to a table of results what the gate needs of each run, if the experiment makes claims.

    The columns are ``gate/accuracy``, over the last rounds, and ``gate/chance`` (top-1, of the models that serve the
    clients where these are evaluated, or mAP50, in per cent);
    ``gate/fall``, the share by which the training loss falls from the last fifth of the rounds but one to the last;
    ``gate/gap``, the validation loss by the training loss in the last fifth; ``gate/dose``, how far the metric of the
    gate's ``dose`` is from its value without a rule, mean over the rounds. nan is what a run does not log.
    """
    if not experiment.claims or results.empty:
        return results
    columns = {str(job.folder): _gate_columns(experiment, job) for _, job in jobs if job.finished}
    return results.join(pd.DataFrame.from_dict(columns, orient="index").round(4), on="folder")


def _gate_columns(experiment: Experiment, job: Job) -> dict[str, float]:
    run = job.run
    losses = values_by_round(run, "train/loss")
    fifth = max(len(losses) // 5, 1)
    last = losses.iloc[-fifth:].mean()
    before = losses.iloc[-2 * fifth : -fifth].mean()
    gap = math.nan
    if len(losses):
        # By round and not by place: a run may validate in some rounds only.
        gap = values_by_round(run, "val/loss").loc[losses.index[-fifth] :].mean() / last
    doses = []
    for name, without_rule in experiment.gate.dose.items():
        if name in run.names:
            doses.append((values_by_round(run, name) - without_rule).abs().mean())
    accuracy, chance = _accuracy_and_chance(experiment, job)
    return {
        ACCURACY: accuracy,
        CHANCE: chance,
        FELL: 1 - last / before,
        GAP: gap,
        DOSED: max(doses, default=math.nan),
    }


def _accuracy_and_chance(experiment: Experiment, job: Job) -> tuple[float, float]:
    """Return a run's accuracy and that of guessing, both in per cent; nan and 0 if no accuracy was logged."""
    run = job.run
    top1 = measure(experiment, run, "personal_top1", job.rounds)
    if math.isnan(top1):
        top1 = measure(experiment, run, "top1", job.rounds)
    if math.isnan(top1):
        return 100 * measure(experiment, run, "map50", job.rounds), 0.0
    client = job.config.get("model", {}).get("client", {}).get("init_args", {})
    return top1, 100 / client.get("num_classes", 10)


def why_not_tested(experiment: Experiment, claim: Claim, results: pd.DataFrame) -> str:
    """Say what the runs of a claim miss; empty if they pass the gate. What results do not record is not judged.

    Every side ends at least FLOOR points above chance, with every seed. At a scale other than the paper's, FedAvg has
    covered half of the paper's distance from chance, or its training loss has stopped falling. Rules did something,
    unless the claim is that two sides are equal. Where the paper's FedAvg overfits, so does ours.

    Args:
        experiment: the experiment that makes the claim; its gate says which cells are FedAvg's.
        claim: the claim.
        results: table of our runs, not empty.
    """
    gate = experiment.gate
    sides, fedavg = _runs_of(experiment, claim, results)
    whys = [_at_chance([*sides[0], *sides[1]], axes_of(results))]
    if experiment.scale:  # at the paper's own scale, the paper's rounds are enough
        whys.append(_too_early(fedavg))
    if claim.by is None:  # two sides may be equal because a rule did nothing
        whys += _idle_rules(gate, sides)
    gap = _mean(fedavg, GAP)
    if gate.overfits and gap < OVERFITS:
        whys.append(f"FedAvg does not overfit: its validation loss is {gap:.2g} times its training loss")
    return "; ".join(why for why in whys if why)


def _runs_of(experiment: Experiment, claim: Claim, results: pd.DataFrame) -> tuple[list[list[Row]], list[Row]]:
    """Return the last rows of a claim's two sides, and those of FedAvg beside them."""
    rows = _last_rows(experiment, results)
    at = _without_round(claim.at)
    higher = _without_round(claim.higher)
    than = _without_round(claim.than or claim.higher)  # a claim about a number has one side
    there = [row for row in rows if has(row, at)]
    sides = []
    for side in (higher, than):
        sides.append([row for row in there if has(row, side)])
    fedavg = []
    for row in rows:
        if has(row, experiment.gate.fedavg) and _is_beside(row, (at, higher, than), experiment.gate.fedavg):
            fedavg.append(row)
    return sides, fedavg


def _without_round(labels: Row) -> Row:
    """Leave out the round that a claim names: the gate looks at the last round alone."""
    return {axis: label for axis, label in labels.items() if axis != "round"}


def parts_not_recorded(experiment: Experiment, claim: Claim, results: pd.DataFrame) -> list[str]:
    """Name the parts of the gate that some runs of a claim, such as those of earlier versions, do not record."""
    _, fedavg = _runs_of(experiment, claim, results)
    recorded = {*results.columns}
    for row in fedavg:
        recorded -= {column for column in (FELL, GAP) if pd.isna(row.get(column))}
    if recorded & {"top1", "map50"}:
        recorded.add(ACCURACY)  # _last_rows takes the accuracy from these
    asked = [ACCURACY, FELL]
    if experiment.gate.dose:
        asked.append(DOSED)
    if experiment.gate.overfits:
        asked.append(GAP)
    return [ABOUT[column] for column in asked if column not in recorded]


def gate_row(experiment: Experiment, results: pd.DataFrame) -> list[str]:
    """Write what the gate looks at as a row with the columns of GATE_HEAD: means over cells and seeds."""
    rows = _last_rows(experiment, results)
    fedavg = [row for row in rows if has(row, experiment.gate.fedavg)]
    return [
        _write_mean(fedavg, ACCURACY, "{:.0f} %"),
        _write_mean(fedavg, PAPER, "{:.0f} %"),
        _write_mean(fedavg, FELL, "{:.0%}"),
        _write_mean(fedavg, GAP, "{:.2g}"),
        _write_mean(rows, DOSED, "{:.2g}"),
    ]


def _write_mean(rows: Sequence[Row], column: str, form: str) -> str:
    mean = _mean(rows, column)
    return "–" if math.isnan(mean) else form.format(mean)


def _last_rows(experiment: Experiment, results: pd.DataFrame) -> list[Row]:
    """Return the rows of the last round, with the paper's accuracy; without a record, chance is that of ten classes."""
    table = results[results["round"] == results["round"].max()]
    name = next((name for name in ("top1", "map50") if name in table), "")
    points = 100 if name == "map50" else 1  # results have top-1 in per cent, and mAP50 as a share
    if name:
        table = table.reindex(columns=[*dict.fromkeys([*table.columns, ACCURACY, CHANCE])])
        table[CHANCE] = table[CHANCE].fillna(10.0 if name == "top1" else 0.0)
        table[ACCURACY] = table[ACCURACY].fillna(points * table[name])
    axes = axes_of(results)
    rows: list[Row] = []
    for record in table.to_dict("records"):
        row = {str(column): value for column, value in record.items()}
        cell = {axis: row[axis] for axis in axes}
        rows.append({**row, PAPER: points * printed(experiment, cell, name)})
    return rows


def _is_beside(row: Row, sides: Sequence[Row], fedavg: Row) -> bool:
    """Tell whether a row has a label of a side, or none, on each axis that the sides name and that is not FedAvg's."""
    axes = {axis for side in sides for axis in side if axis not in fedavg}
    for axis in axes:
        if pd.isna(row.get(axis)):
            continue
        labels = [side[axis] for side in sides if axis in side]
        if not any(has(row, {axis: label}) for label in labels):
            return False
    return True


def _mean(rows: Sequence[Row], column: str) -> float:
    """Compute the mean of a column, nan left out; nan if no row has the column."""
    return float(pd.Series([row.get(column, math.nan) for row in rows], dtype=float).mean())


def _at_chance(rows: Sequence[Row], axes: Sequence[str]) -> str:
    """Name the run that is least above chance, if that is less than FLOOR."""
    known = [row for row in rows if not math.isnan(row.get(ACCURACY, math.nan))]
    if not known:
        return ""
    worst = min(known, key=lambda row: row[ACCURACY] - row[CHANCE])
    if worst[ACCURACY] - worst[CHANCE] >= FLOOR:
        return ""
    labels = [{axis: row[axis] for axis in axes} for row in known]
    name = in_words(worst, differing_names(labels)) or "a side"
    return f"{name} is at {worst[ACCURACY]:.0f} % with seed {worst['seed']}, chance at {worst[CHANCE]:.0f} %"


def _too_early(rows: Sequence[Row]) -> str:
    """Say how far FedAvg is, if FedAvg has not covered enough of the paper's distance from chance, and still learns."""
    fell = _mean(rows, FELL)
    known = [row for row in rows if not math.isnan(row[PAPER] + row.get(ACCURACY, math.nan))]
    if math.isnan(fell) and not known:
        return ""  # nothing is recorded by which to judge
    ours, theirs, chance = (_mean(known, column) for column in (ACCURACY, PAPER, CHANCE))
    if fell < FALL or ours - chance >= COVERED * (theirs - chance):
        return ""
    words = []
    if known:
        words.append(f"FedAvg is at {ours:.0f} %, the paper's at {theirs:.0f} %")
    if not math.isnan(fell):
        words.append(f"FedAvg's training loss still falls, by {fell:.0%} in a fifth of the rounds")
    return ", and ".join(words)


def _idle_rules(gate: Gate, sides: Sequence[Sequence[Row]]) -> list[str]:
    """Write a line for each metric of the rules, if they did nothing on either side."""
    doses = [_mean(side, DOSED) for side in sides]
    largest = max((dose for dose in doses if not math.isnan(dose)), default=math.nan)
    if math.isnan(largest) or largest >= DOSE:  # nan: neither side has the rule
        return []
    return [f"{name} is {without_rule:g}, as without the rule" for name, without_rule in gate.dose.items()]
