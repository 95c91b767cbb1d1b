"""``fl-lightning dashboard``: a W&B workspace laid out for federated runs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb
from wandb_workspaces.expr import Config
from wandb_workspaces.reports.v2.interface import LinePlot, MediaBrowser, ScatterPlot, SummaryMetric
from wandb_workspaces.workspaces.interface import RunsetSettings, Section, Workspace, WorkspaceSettings

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.messages import CommandParser
from fl_lightning.runs.catalogue import CATALOGUE
from fl_lightning.runs.wandb import has_wandb_key

GROUPS = ("experiment", "settings")  # config entries that are the same in runs that differ only in the seed

# Sections, with the groups of metrics that have their panels in the section.
SECTIONS = {
    "Accuracy": ("val", "train"),
    "Conflict": ("conflict", "coherence", "updates"),
    "FedLAW": ("fedlaw",),
    "Clients": ("clients", "own", "cohort"),
    "Curvature": ("hessian",),
    "Cost": ("bytes", "time"),
}


def command(args: Sequence[str]) -> int:
    """Run ``dashboard …`` and return the exit status, 0.

    Raises:
        ConfigurationError: there is no key for W&B and no ``--out``; W&B refuses, or the file cannot be written.
    """
    parser = CommandParser(
        f"fl-lightning {args[0]}", description="A W&B workspace for federated runs.", allow_abbrev=False
    )
    project = os.environ.get("WANDB_PROJECT", "lightning_logs")  # the default of Lightning's WandbLogger
    parser.add_argument("--entity", default=os.environ.get("WANDB_ENTITY"), help="user or team (default: the key's)")
    parser.add_argument("--project", default=project, help="whose runs to show (default %(default)s)")
    parser.add_argument("--name", default="Federated", help="of the workspace (default %(default)s)")
    parser.add_argument("--out", type=Path, help="write the layout to this JSON file instead; nobody is contacted")
    options = parser.parse_args(args[1:])
    if not options.out and not has_wandb_key():
        raise ConfigurationError(
            "dashboard saves to W&B, and there is no API key: run wandb login, which says where to get one, or set "
            "WANDB_API_KEY; --out FILE writes the layout without a key"
        )
    try:
        if options.out:
            _write(layout(options.entity or "", options.project, options.name), options.out)
        else:
            layout(options.entity or str(wandb.Api().default_entity), options.project, options.name).save()  # type: ignore[no-untyped-call]  # it has no types
    except (wandb.Error, OSError, ValueError) as error:  # ValueError: a name that W&B does not take
        raise ConfigurationError(f"dashboard: the layout cannot be saved: {error}") from None
    return 0


def layout(entity: str, project: str, name: str) -> Workspace:
    """Make the workspace: sections of panels over the rounds, and runs grouped so that seeds become bands."""
    sections: dict[str, list[Any]] = {title: [] for title in SECTIONS}  # panels of all kinds, by section
    for section, title, metrics in lines():
        sections[section].append(_line(title, metrics))
    sections["Conflict"] += [_conflict_and_accuracy(), _pictures("cosines of updates", "conflict/cosines")]
    sections["Clients"].append(_pictures("who holds what", "data/partition"))
    sections["Curvature"].append(_pictures("loss around the global model", "surface/loss"))
    return Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[Section(name=title, panels=held, is_open=True) for title, held in sections.items()],
        settings=WorkspaceSettings(x_axis="round", max_runs=30),
        runset_settings=RunsetSettings(groupby=[Config(key) for key in GROUPS]),
    )


def lines() -> list[tuple[str, str, list[str]]]:
    """List the line plots: section, title and names of metrics; a star at the end of a name stands for many metrics."""
    panels: dict[tuple[str, str], list[str]] = {}
    for metric in CATALOGUE:
        if metric.panel:
            group = metric.name.partition("/")[0]
            section = next(title for title, groups in SECTIONS.items() if group in groups)
            panels.setdefault((section, metric.panel), []).append(metric.name)
    return [(section, title, names) for (section, title), names in panels.items()]


def _line(title: str, metrics: Sequence[str]) -> LinePlot:
    many = any(name.endswith("*") for name in metrics)
    return LinePlot(
        title=title,
        x="round",
        y=[] if many else list(metrics),
        metric_regex="|".join(f"^{name.removesuffix('*')}" for name in metrics) if many else None,
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
    )


def _conflict_and_accuracy() -> ScatterPlot:
    """Make a scatter plot with one point per run or group, at the last round."""
    x, y = SummaryMetric("conflict/ratio"), SummaryMetric("val/top1")
    return ScatterPlot(title="conflict ratio and accuracy, last round", x=x, y=y)


def _pictures(title: str, key: str) -> MediaBrowser:
    return MediaBrowser(title=title, media_keys=[key], gallery_axis="step")


def _write(workspace: Workspace, file: Path) -> None:
    content: dict[str, Any] = workspace._to_model().spec.model_dump(by_alias=True, exclude_none=True)
    file.write_text(json.dumps(content, indent=1))
    print(f"layout: {file}")
