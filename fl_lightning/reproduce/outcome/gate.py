"""The gate: whether runs are in the regime in which a paper's effect can show, told from single methods alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fl_lightning.report.compared.long_table import values_by_round
from fl_lightning.report.compared.methods import differing
from fl_lightning.reproduce.experiments.choosing import named
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.jobs import Job, Pairs
from fl_lightning.reproduce.outcome.claims import has
from fl_lightning.reproduce.outcome.numbers import axes_of, measure, printed

FLOOR = 10.0  # points above chance that every side has in every seed
COVERED = 0.5  # FedAvg's least share of the paper's distance from chance
FALL = 0.05  # a training loss that falls by a smaller share in the last fifth of the rounds has stopped falling
DOSE = 0.01  # smallest mean distance of a rule's metric from its value without the rule
OVERFITS = 1.5  # FedAvg's least validation loss, in training losses, where the paper's FedAvg overfits
# The columns of results for the gate, in per cent, per cent, and as shares, and what each is for.
ACCURACY, CHANCE, FELL, DOSED, GAP = (f"gate/{name}" for name in ("accuracy", "chance", "fall", "dose", "gap"))
ABOUT = {
    ACCURACY: "accuracy",
    FELL: "the fall of FedAvg's training loss",
    DOSED: "what the rules did",
    GAP: "whether FedAvg overfits",
}
PAPER = "gate/paper"  # the paper's accuracy, in no file
SEEN = [
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
    found = {str(job.folder): _columns(experiment, job) for _, job in jobs if job.finished}
    return results.join(pd.DataFrame.from_dict(found, orient="index").round(4), on="folder")


def _columns(experiment: Experiment, job: Job) -> dict[str, float]:
    run = job.run
    client = job.config.get("model", {}).get("client", {}).get("init_args", {})
    served, top1, map50 = (measure(experiment, run, name, job.rounds) for name in ("personal_top1", "top1", "map50"))
    top1 = top1 if math.isnan(served) else served
    losses, validation = (values_by_round(run, name) for name in ("train/loss", "val/loss"))
    fifth = max(len(losses) // 5, 1)
    last, before = losses.iloc[-fifth:].mean(), losses.iloc[-2 * fifth : -fifth].mean()
    doses = {name: none for name, none in experiment.gate.dose.items() if name in run.names}
    dosed = [(values_by_round(run, name) - none).abs().mean() for name, none in doses.items()]
    return {
        ACCURACY: 100 * map50 if math.isnan(top1) else top1,
        CHANCE: 0.0 if math.isnan(top1) else 100 / client.get("num_classes", 10),
        FELL: 1 - last / before,
        GAP: validation.loc[losses.index[-fifth] :].mean() / last if len(losses) else math.nan,
        DOSED: max(dosed, default=math.nan),
    }


def missed(experiment: Experiment, claim: Claim, results: pd.DataFrame) -> str:
    """Say what the runs of a claim miss; empty if they pass the gate. What results do not record is not judged.

    Every side ends at least FLOOR points above chance, with every seed. At a scale other than the paper's, FedAvg has
    covered half of the paper's distance from chance, or its training loss has stopped falling. Rules did something,
    unless the claim is that two sides are equal. Where the paper's FedAvg overfits, so does ours.

    Args:
        experiment: the experiment that makes the claim; its gate says which cells are FedAvg's.
        claim: the claim.
        results: table of our runs, not empty.
    """
    gate, rows, axes = experiment.gate, _rows(experiment, results), axes_of(results)
    compared = (claim.higher, claim.than or claim.higher)  # a claim about a number has one side
    labels = [{axis: label for axis, label in each.items() if axis != "round"} for each in compared]
    at = {axis: label for axis, label in claim.at.items() if axis != "round"}
    sides = [[row for row in rows if has(row, at) and has(row, side)] for side in labels]
    fedavg = [row for row in rows if has(row, gate.fedavg) and _beside(row, (at, *labels), gate.fedavg)]
    dose = max((mean for side in sides if not math.isnan(mean := _mean(side, DOSED))), default=math.nan)
    gap = _mean(fedavg, GAP) if gate.overfits else math.nan
    idle = [f"{name} is {none:g}, as without the rule" for name, none in gate.dose.items() if dose < DOSE]
    parts = [
        _at_chance([*sides[0], *sides[1]], axes),
        _too_early(fedavg) if experiment.scale else "",
        *(idle if claim.by is None else []),
        f"FedAvg does not overfit: its validation loss is {gap:.2g} times its training loss" * (gap < OVERFITS),
    ]
    return "; ".join(filter(None, parts))


def unrecorded(experiment: Experiment, results: pd.DataFrame) -> list[str]:
    """Name the parts of the gate that results, such as those of earlier versions, do not record."""
    asked = {ACCURACY: True, FELL: True, DOSED: bool(experiment.gate.dose), GAP: experiment.gate.overfits}
    there = {*results.columns, *([ACCURACY] if {"top1", "map50"} & {*results.columns} else [])}
    return [ABOUT[column] for column, needed in asked.items() if needed and column not in there]


def seen(experiment: Experiment, results: pd.DataFrame) -> list[str]:
    """Write what the gate looks at as a row with the columns of SEEN: means over cells and seeds."""
    rows = _rows(experiment, results)
    fedavg = [row for row in rows if has(row, experiment.gate.fedavg)]
    shown = [
        (fedavg, ACCURACY, "{:.0f} %"),
        (fedavg, PAPER, "{:.0f} %"),
        (fedavg, FELL, "{:.0%}"),
        (fedavg, GAP, "{:.2g}"),
    ]
    means = [(_mean(own, column), form) for own, column, form in [*shown, (rows, DOSED, "{:.2g}")]]
    return ["–" if math.isnan(mean) else form.format(mean) for mean, form in means]


def _rows(experiment: Experiment, results: pd.DataFrame) -> list[Row]:
    """Return the rows of the last round, with the paper's accuracy; without a record, chance is that of ten classes."""
    rows = results[results["round"] == results["round"].max()]
    name = next((name for name in ("top1", "map50") if name in rows), "")
    points = 100 if name == "map50" else 1
    if ACCURACY not in rows and name:
        rows = rows.assign(**{ACCURACY: points * rows[name], CHANCE: 10.0 if name == "top1" else 0.0})
    found = [{str(key): row[key] for key in row} for row in rows.to_dict("records")]
    axes = axes_of(results)
    return [{**row, PAPER: points * printed(experiment, {axis: row[axis] for axis in axes}, name)} for row in found]


def _beside(row: Row, sides: Sequence[Row], fedavg: Row) -> bool:
    """Tell whether a row has a label of a side, or none, on each axis that the sides name and that is not FedAvg's."""
    named_by = {axis: [side[axis] for side in sides if axis in side] for side in sides for axis in side}
    return all(
        axis in fedavg or pd.isna(row.get(axis)) or any(has(row, {axis: label}) for label in labels)
        for axis, labels in named_by.items()
    )


def _mean(rows: Sequence[Row], column: str) -> float:
    """Compute the mean of a column, nan left out; nan if no row has the column."""
    return float(pd.Series([row.get(column, math.nan) for row in rows], dtype=float).mean())


def _at_chance(rows: Sequence[Row], axes: Sequence[str]) -> str:
    """Name the run that is least above chance, if that is less than FLOOR."""
    known = [row for row in rows if not math.isnan(row.get(ACCURACY, math.nan))]
    worst = min(known, key=lambda row: row[ACCURACY] - row[CHANCE], default={})
    if not worst or worst[ACCURACY] - worst[CHANCE] >= FLOOR:
        return ""
    called = named(worst, differing([{axis: row[axis] for axis in axes} for row in known])) or "a side"
    return f"{called} is at {worst[ACCURACY]:.0f} % with seed {worst['seed']}, chance at {worst[CHANCE]:.0f} %"


def _too_early(rows: Sequence[Row]) -> str:
    """Say how far FedAvg is, if FedAvg has not covered enough of the paper's distance from chance, and still learns."""
    fell = _mean(rows, FELL)
    both = [row for row in rows if not math.isnan(row[PAPER] + row.get(ACCURACY, math.nan))]
    ours, theirs, chance = (_mean(both, column) for column in (ACCURACY, PAPER, CHANCE))
    if fell < FALL or ours - chance >= COVERED * (theirs - chance) or (math.isnan(fell) and not both):
        return ""
    far = f"FedAvg is at {ours:.0f} %, the paper's at {theirs:.0f} %" if both else ""
    still = "" if math.isnan(fell) else f"FedAvg's training loss still falls, by {fell:.0%} in a fifth of the rounds"
    return ", and ".join(filter(None, [far, still]))
