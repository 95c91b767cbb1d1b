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
from fl_lightning.messages import CommandParser
from fl_lightning.tracking import has_wandb_key

GROUPS = ("experiment", "settings")  # of the config: the same in runs that differ in nothing but the seed

# What a section's line plots show, by title: names of metrics, or one regular expression that begins with "^".
LINES: dict[str, dict[str, tuple[str, ...]]] = {
    "Accuracy": {
        "accuracy": ("val/top1",),
        "top-3 accuracy": ("val/top3",),
        "loss": ("val/loss", "train/loss"),
        "local training accuracy": ("train/top1",),
    },
    "Conflict": {
        "conflict ratio": ("conflict/ratio", "conflict/ratio_after"),
        "conflict ratio, weighted": ("conflict/weighted_ratio",),
        "mean cosine": ("conflict/mean_cosine", "conflict/mean_cosine_after"),
        "least cosine": ("conflict/min_cosine", "conflict/min_cosine_after"),
        "removed by the rules": ("conflict/removed",),
        "turned by the rules, in degrees": ("conflict/angle",),
        "conflict ratio by layer": ("^conflict/layer/",),
        "coherence": ("^coherence/",),
        "size and drift of updates": ("^updates/",),
    },
    "FedLAW": {
        "shrinking factor γ": ("fedlaw/gamma",),
        "weights λ": ("^fedlaw/weight/",),
        "largest weight": ("fedlaw/largest_weight",),
        "two parts of the step": ("fedlaw/global_gradient", "fedlaw/shrinking_gradient"),
        "ratio of the two parts": ("fedlaw/ratio",),
    },
    "Clients": {
        "accuracy of clients": ("^clients/top1/",),
        "loss of clients": ("^clients/loss/",),
        "on what clients hold out": (r"^own/|^clients/(loss|top\d)_",),
        "size of clients' updates": ("^clients/update_norm/",),
        "removed from clients' updates": ("^clients/removed/",),
        "classes in the cohort": ("^cohort/share/",),
    },
    "Curvature": {
        "largest eigenvalues of the Hessian": ("^hessian/eigenvalue_",),
        "largest over fifth": ("hessian/ratio_1_5",),
    },
}


def command(args: Sequence[str]) -> int:
    """Run ``dashboard …``; the exit status.

    Raises:
        ConfigurationError: there is no key for W&B and no ``--out``; W&B refuses, or the file cannot be written.
    """
    parser = CommandParser(
        f"fl-lightning {args[0]}", description="A W&B workspace for federated runs.", allow_abbrev=False
    )
    project = os.environ.get("WANDB_PROJECT", "lightning_logs")  # as Lightning's WandbLogger
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
    """The workspace: sections of panels over the rounds, and runs in groups, so that seeds become bands."""
    sections: dict[str, list[Any]] = {  # of panels of all kinds
        title: [_line(label, metrics) for label, metrics in lines.items()] for title, lines in LINES.items()
    }
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


def _line(title: str, metrics: Sequence[str]) -> LinePlot:
    regex = metrics[0] if metrics[0].startswith("^") else None
    return LinePlot(
        title=title,
        x="round",
        y=[] if regex else list(metrics),
        metric_regex=regex,
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
    )


def _conflict_and_accuracy() -> ScatterPlot:
    """One point a run or group, at its last round."""
    x, y = SummaryMetric("conflict/ratio"), SummaryMetric("val/top1")
    return ScatterPlot(title="conflict ratio and accuracy, last round", x=x, y=y)


def _pictures(title: str, key: str) -> MediaBrowser:
    return MediaBrowser(title=title, media_keys=[key], gallery_axis="step")


def _write(workspace: Workspace, file: Path) -> None:
    content: dict[str, Any] = workspace._to_model().spec.model_dump(by_alias=True, exclude_none=True)
    file.write_text(json.dumps(content, indent=1))
    print(f"layout: {file}")
