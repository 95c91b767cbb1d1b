"""``fl-lightning dashboard``: W&B workspaces laid out for federated runs, or a W&B report with the same panels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb
from wandb_workspaces.expr import Config
from wandb_workspaces.reports.v2 import interface as reports
from wandb_workspaces.workspaces import interface as workspaces

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.arguments import dashboard_arguments
from fl_lightning.report.compared.methods import CONFLICT
from fl_lightning.runs.catalogue import catalogue
from fl_lightning.runs.loggers.wandb import has_wandb_key

ACCURACY = "val/top1"
METHODS = ("experiment", "method", "settings")  # config entries that are the same in runs that differ only in the seed
# Settings that every run has in its config, by their names there: a run without a value would have no line.
COMPARED = (
    *("experiment", "method", "trainer.max_epochs", "data.init_args.participation", "data.init_args.batch_size"),
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
    Section(
        "FedLAW",
        ("fedlaw", "weights"),
        "The shrinking factor and the weights that the server learns: runs with FedLAW.",
    ),
    Section(
        "Clients",
        ("clients", "personal", "held_out", "own", "new", "new_tuned", "cohort"),
        "Values of single clients, and accuracy on the examples that clients hold out: runs with ClientMonitor or "
        "PersonalEvaluation.",
    ),
    Section(
        "Cost",
        ("time", "bytes", "privacy"),
        "Seconds of each round, the bytes that a federation would send, and the privacy spent. Times depend on the "
        "machine.",
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
INTRODUCTION = (
    "Runs of federated learning. A method is a chain of rules; runs of the same experiment and method that differ only "
    "in the seed are one line, the mean, in a band from the smallest to the largest seed. The x-axis is the round. A "
    "panel stays empty if no run has logged its metrics."
)


def command(args: Sequence[str]) -> int:
    """Run ``dashboard …`` and return the exit status, 0.

    Raises:
        ConfigurationError: there is no key for W&B and no ``--out``; W&B refuses, or the file cannot be written.
    """
    options = dashboard_arguments(args)
    if not options.out and not has_wandb_key():
        raise ConfigurationError(
            "dashboard saves to W&B, and there is no API key: run wandb login, which says where to get one, or set "
            "WANDB_API_KEY; --out FILE writes the layout without a key"
        )
    try:
        entity = ""  # a file names no user
        if not options.out:
            entity = options.entity or str(wandb.Api().default_entity)
        layouts = _layouts(entity, options.project, options.name, options.report)
        if options.out:
            _write(layouts, options.out)
            return 0
        for layout in layouts:
            layout.save()
    except (wandb.Error, OSError, ValueError) as error:  # ValueError: a name that W&B does not take
        raise ConfigurationError(f"dashboard: the layout cannot be saved: {error}") from None
    return 0


def _layouts(entity: str, project: str, name: str, shared: bool) -> list[Any]:
    """Make a report, which can be shared, or else the workspaces by method and by seed."""
    if shared:
        return [report(entity, project, name)]
    return [workspace(entity, project, name, by_seed) for by_seed in (False, True)]


def workspace(entity: str, project: str, name: str, by_seed: bool) -> workspaces.Workspace:
    """Make a workspace: sections of panels over the rounds.

    Args:
        entity: user or team.
        project: W&B project with the runs.
        name: name of the workspace; "by method" or "by seed" is added.
        by_seed: whether each run has lines of its own; otherwise runs are grouped so that seeds become bands.
    """
    sections = []
    for section in SECTIONS:
        sections.append(workspaces.Section(name=section.title, panels=panels(section, by_seed), is_open=True))
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=f"{name} by {'seed' if by_seed else 'method'}",
        sections=sections,
        settings=workspaces.WorkspaceSettings(x_axis="round", max_runs=30),
        runset_settings=workspaces.RunsetSettings(groupby=[] if by_seed else [Config(key) for key in METHODS]),
    )


def report(entity: str, project: str, name: str) -> reports.Report:
    """Make a report: each section by method, with its explanation; then the accuracy of single seeds.

    Args:
        entity: user or team; if empty, the report's sets of runs name no project.
        project: W&B project with the runs.
        name: title of the report.
    """
    blocks: list[Any] = [reports.P(INTRODUCTION), reports.TableOfContents()]
    for section in SECTIONS:
        by_seed = not section.groups  # settings are compared between single runs
        blocks += [reports.H2(section.title), reports.P(section.text), _grid(entity, project, section, by_seed)]
    seeds = _grid(entity, project, SECTIONS[0], by_seed=True)
    blocks += [reports.H2("Single seeds"), reports.P("One line per run."), seeds]
    return reports.Report(entity=entity, project=project, title=name, blocks=blocks, width="fluid")


def _grid(entity: str, project: str, section: Section, by_seed: bool) -> reports.PanelGrid:
    groups = [] if by_seed else [f"config.{key}" for key in METHODS]
    runs = reports.Runset(entity=entity, project=project, name="seeds" if by_seed else "methods", groupby=groups)
    return reports.PanelGrid(runsets=[runs], panels=panels(section, by_seed))


def panels(section: Section, by_seed: bool) -> list[Any]:
    """Make the panels of a section.

    Args:
        section: the section.
        by_seed: whether each run has a line of its own; otherwise the runs are grouped, and a line is the mean of a
            group, in a band from its smallest to its largest value.
    """
    plots: dict[str, list[str]] = {}  # a star at the end of a metric's name stands for many metrics
    for name, metric in catalogue().items():
        if metric.panel and name.partition("/")[0] in section.groups:
            plots.setdefault(metric.panel, []).append(name)
    lines: list[Any] = [_line(title, metrics, by_seed) for title, metrics in plots.items()]
    match section.title:
        case "Accuracy":
            return [_bar("accuracy in the last round", ACCURACY, by_seed), *lines]
        case "Test":
            tested = [metric for metric in catalogue().values() if metric.name.startswith("test/")]
            return [*lines, *(_bar(metric.title.lower(), metric.name, by_seed) for metric in tested)]
        case "Conflict":
            x = reports.SummaryMetric(CONFLICT)
            y = reports.SummaryMetric(ACCURACY)
            scatter = reports.ScatterPlot(title="conflict ratio before correction, and accuracy, last round", x=x, y=y)
            return [*lines, scatter, _pictures("cosines of updates", "conflict/cosines")]
        case "Clients":
            return [*lines, _pictures("examples of each class at each client", "data/partition")]
        case "Curvature":
            return [*lines, _pictures("loss around the global model", "surface/loss")]
        case "Settings":
            return [*lines, *_panels_of_settings()]
    return lines


def _grouping(by_seed: bool) -> dict[str, Any]:
    """Say how a plot groups the runs: not at all, or by method, as a mean in a band."""
    if by_seed:
        return {"legend_template": SEED}
    return {"groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}


def _line(title: str, metrics: Sequence[str], by_seed: bool) -> reports.LinePlot:
    if any(name.endswith("*") for name in metrics):
        regex = "|".join(f"^{name.removesuffix('*')}" for name in metrics)
        return reports.LinePlot(title=title, x="round", metric_regex=regex, **_grouping(by_seed))
    return reports.LinePlot(title=title, x="round", y=list(metrics), **_grouping(by_seed))


def _bar(title: str, metric: str, by_seed: bool) -> reports.BarPlot:
    """Make a bar plot of a metric's last value."""
    groups = None if by_seed else reports.Config("method")
    return reports.BarPlot(title=title, metrics=[metric], groupby=groups, **_grouping(by_seed))


def _pictures(title: str, key: str) -> reports.MediaBrowser:
    return reports.MediaBrowser(title=title, media_keys=[key], gallery_axis="step")


def _panels_of_settings() -> list[Any]:
    column = reports.ParallelCoordinatesPlotColumn
    columns = [column(reports.Config(name), name.rpartition(".")[2]) for name in COMPARED]
    columns.append(column(reports.SummaryMetric(ACCURACY), ACCURACY))
    plots: list[Any] = [
        reports.RunComparer(diff_only="split"),
        reports.ParallelCoordinatesPlot(title="settings and accuracy in the last round", columns=columns),
        reports.ParameterImportancePlot(with_respect_to=ACCURACY),
    ]
    for plot in plots:
        plot.layout = reports.Layout(w=WIDE, h=8)  # one each, since a report moves them
    return plots


def _write(layouts: Sequence[workspaces.Workspace | reports.Report], file: Path) -> None:
    """Write the layouts that W&B would get to a JSON file, by their names."""
    models = [layout._to_model() for layout in layouts]
    content = {model.display_name: model.spec.model_dump(by_alias=True, exclude_none=True) for model in models}
    file.write_text(json.dumps(content, indent=1))
    print(f"layout: {file}")
