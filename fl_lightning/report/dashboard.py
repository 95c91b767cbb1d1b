"""``fl-lightning dashboard``: W&B workspaces laid out for federated runs, or a W&B report with the same panels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wandb
from wandb_workspaces.expr import Config
from wandb_workspaces.reports.v2.interface import H2, P, PanelGrid, Report, Runset, TableOfContents
from wandb_workspaces.workspaces import interface as workspaces

from fl_lightning.errors import ConfigurationError
from fl_lightning.report.arguments import dashboard_arguments
from fl_lightning.report.panels import METHODS, SECTIONS, Section, panels
from fl_lightning.runs.wandb import has_wandb_key

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
        entity = "" if options.out else options.entity or str(wandb.Api().default_entity)
        if options.report:
            made: list[Any] = [report(entity, options.project, options.name)]
        else:
            made = [workspace(entity, options.project, options.name, by_seed) for by_seed in (False, True)]
        if options.out:
            _write(made, options.out)
        else:
            for each in made:
                each.save()
    except (wandb.Error, OSError, ValueError) as error:  # ValueError: a name that W&B does not take
        raise ConfigurationError(f"dashboard: the layout cannot be saved: {error}") from None
    return 0


def workspace(entity: str, project: str, name: str, by_seed: bool) -> workspaces.Workspace:
    """Make a workspace: sections of panels over the rounds.

    Args:
        entity: user or team.
        project: W&B project with the runs.
        name: name of the workspace; "by method" or "by seed" is added.
        by_seed: whether each run has lines of its own; otherwise runs are grouped so that seeds become bands.
    """
    sections = [workspaces.Section(name=each.title, panels=panels(each, by_seed), is_open=True) for each in SECTIONS]
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=f"{name} by {'seed' if by_seed else 'method'}",
        sections=sections,
        settings=workspaces.WorkspaceSettings(x_axis="round", max_runs=30),
        runset_settings=workspaces.RunsetSettings(groupby=[] if by_seed else [Config(key) for key in METHODS]),
    )


def report(entity: str, project: str, name: str) -> Report:
    """Make a report: each section by method, with its explanation; then the accuracy of single seeds.

    Args:
        entity: user or team; if empty, the report's sets of runs name no project.
        project: W&B project with the runs.
        name: title of the report.
    """
    blocks: list[Any] = [P(INTRODUCTION), TableOfContents()]
    for section in SECTIONS:
        by_seed = not section.groups  # settings are compared between single runs
        blocks += [H2(section.title), P(section.text), _grid(entity, project, section, by_seed)]
    blocks += [H2("Single seeds"), P("One line per run."), _grid(entity, project, SECTIONS[0], by_seed=True)]
    return Report(entity=entity, project=project, title=name, blocks=blocks, width="fluid")


def _grid(entity: str, project: str, section: Section, by_seed: bool) -> PanelGrid:
    groups = [] if by_seed else [f"config.{key}" for key in METHODS]
    runs = Runset(entity=entity, project=project, name="seeds" if by_seed else "methods", groupby=groups)
    return PanelGrid(runsets=[runs], panels=panels(section, by_seed))


def _write(made: Sequence[workspaces.Workspace | Report], file: Path) -> None:
    """Write the layouts that W&B would get to a JSON file, by their names."""
    models = [each._to_model() for each in made]
    content = {each.display_name: each.spec.model_dump(by_alias=True, exclude_none=True) for each in models}
    file.write_text(json.dumps(content, indent=1))
    print(f"layout: {file}")
