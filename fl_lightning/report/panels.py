"""The panels of the W&B dashboard and of the W&B report, by section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wandb_workspaces.reports.v2.interface import (
    BarPlot,
    Config,
    Layout,
    LinePlot,
    MediaBrowser,
    ParallelCoordinatesPlot,
    ParallelCoordinatesPlotColumn,
    ParameterImportancePlot,
    RunComparer,
    ScatterPlot,
    SummaryMetric,
)

from fl_lightning.runs.catalogue import catalogue

ACCURACY, CONFLICT = "val/top1", "conflict/ratio"
METHODS = ("experiment", "method", "settings")  # config entries that are the same in runs that differ only in the seed
# Settings that every run has in its config, by their names there: a run without a value would have no line.
COMPARED = (
    "experiment",
    "method",
    "trainer.max_epochs",
    "data.init_args.participation",
    "data.init_args.batch_size",
    "seed",
)
SEED = "${config:method}, seed ${config:seed}"  # the legend's text for a single run
WIDE = 24  # columns of a report, of which a panel takes 8 by default


@dataclass(frozen=True)
class Section:
    """A section of panels.

    Attributes:
        title: heading of the section.
        groups: groups of metrics that have their panels in the section.
        text: sentences for readers of the report: what the panels show.
    """

    title: str
    groups: tuple[str, ...]
    text: str


SECTIONS = (
    Section(
        "Accuracy",
        ("val", "train", "global_train"),
        "Accuracy and loss of the global model on the validation set of the config, which in many papers' configs is "
        "the test set, and on the clients' training examples. The bars show the last round, not the best.",
    ),
    Section("Test", ("test",), "The final model on the test set: runs after fl-lightning test."),
    Section(
        "Conflict",
        ("conflict", "coherence", "updates"),
        "How much the clients' updates conflict, before and after the rules correct them: runs with ConflictMonitor.",
    ),
    Section("FedLAW", ("fedlaw",), "The shrinking factor and the weights that the server learns: runs with FedLAW."),
    Section(
        "Clients",
        ("clients", "held_out", "own", "cohort"),
        "Values of single clients, and accuracy on the examples that clients hold out: runs with ClientMonitor or "
        "PersonalEvaluation.",
    ),
    Section(
        "Cost",
        ("time", "bytes"),
        "Seconds of each round, and the bytes that a federation would send. Times depend on the machine.",
    ),
    Section(
        "Curvature",
        ("hessian", "parameters"),
        "How sharp the loss is around the global model: runs with HessianMonitor.",
    ),
    Section(
        "Settings",
        (),
        "What differs between the runs, and which settings go with a high accuracy. An importance is a correlation, "
        "not a cause.",
    ),
)


def panels(section: Section, by_seed: bool) -> list[Any]:
    """Make the panels of a section.

    Args:
        section: the section.
        by_seed: whether each run has a line of its own; otherwise the runs are grouped, and a line is the mean of a
            group, in a band from its smallest to its largest value.
    """
    made: list[Any] = [_line(title, metrics, by_seed) for title, metrics in lines(section).items()]
    match section.title:
        case "Accuracy":
            made.insert(0, _bar("accuracy in the last round", ACCURACY, by_seed))
        case "Test":
            tested = [metric for metric in catalogue().values() if metric.name.startswith("test/")]
            made += [_bar(metric.title.lower(), metric.name, by_seed) for metric in tested]
        case "Conflict":
            made += [_conflict_and_accuracy(), _pictures("cosines of updates", "conflict/cosines")]
        case "Clients":
            made.append(_pictures("examples of each class at each client", "data/partition"))
        case "Curvature":
            made.append(_pictures("loss around the global model", "surface/loss"))
        case "Settings":
            made += _of_settings()
    return made


def lines(section: Section) -> dict[str, list[str]]:
    """Collect the line plots of a section: names of metrics by title; a star at the end stands for many metrics."""
    plots: dict[str, list[str]] = {}
    for name, metric in catalogue().items():
        if metric.panel and name.partition("/")[0] in section.groups:
            plots.setdefault(metric.panel, []).append(name)
    return plots


def _line(title: str, metrics: Sequence[str], by_seed: bool) -> LinePlot:
    many = any(name.endswith("*") for name in metrics)
    return LinePlot(
        title=title,
        x="round",
        y=[] if many else list(metrics),
        metric_regex="|".join(f"^{name.removesuffix('*')}" for name in metrics) if many else None,
        groupby_aggfunc=None if by_seed else "mean",
        groupby_rangefunc=None if by_seed else "minmax",
        legend_template=SEED if by_seed else None,
    )


def _bar(title: str, metric: str, by_seed: bool) -> BarPlot:
    """Make a bar plot of a metric's last value."""
    return BarPlot(
        title=title,
        metrics=[metric],
        groupby=None if by_seed else Config("method"),
        groupby_aggfunc=None if by_seed else "mean",
        groupby_rangefunc=None if by_seed else "minmax",
        legend_template=SEED if by_seed else None,
    )


def _conflict_and_accuracy() -> ScatterPlot:
    """Make a scatter plot with one point per run or group, at the last round."""
    x, y = SummaryMetric(CONFLICT), SummaryMetric(ACCURACY)
    return ScatterPlot(title="conflict ratio and accuracy, last round", x=x, y=y)


def _pictures(title: str, key: str) -> MediaBrowser:
    return MediaBrowser(title=title, media_keys=[key], gallery_axis="step")


def _of_settings() -> list[Any]:
    columns = [
        *(ParallelCoordinatesPlotColumn(Config(name), name.rpartition(".")[2]) for name in COMPARED),
        ParallelCoordinatesPlotColumn(SummaryMetric(ACCURACY), ACCURACY),
    ]
    title = "settings and accuracy in the last round"
    return [
        RunComparer(diff_only="split", layout=Layout(w=WIDE, h=8)),
        ParallelCoordinatesPlot(title=title, columns=columns, layout=Layout(w=WIDE, h=8)),
        ParameterImportancePlot(with_respect_to=ACCURACY, layout=Layout(w=WIDE, h=8)),
    ]
