"""``fl-lightning reproduce`` and ``fl-lightning sweep``: many runs, one table."""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import Cell, experiment_in, find_config, option
from fl_lightning.fit.messages import counted
from fl_lightning.reproduce import drawing, tables
from fl_lightning.reproduce.arguments import arguments
from fl_lightning.reproduce.claims import judge
from fl_lightning.reproduce.dry_run import dry_run
from fl_lightning.reproduce.ending import write_comparison
from fl_lightning.reproduce.figures import is_trained, tables_and_figures
from fl_lightning.reproduce.jobs import Folders, Job, plan
from fl_lightning.reproduce.papers import Experiment
from fl_lightning.reproduce.pictures import picture
from fl_lightning.reproduce.preflight import preflight
from fl_lightning.reproduce.progress import announce, duration, train_with_progress
from fl_lightning.reproduce.results import collect, compare
from fl_lightning.reproduce.tracker import Planned
from fl_lightning.reproduce.trials import Trials
from fl_lightning.runs.lock import held
from fl_lightning.runs.seeds import label
from fl_lightning.runs.settings import short

RUNS = "runs"  # in the folder of all results, the folder of the runs


def command(args: Sequence[str]) -> int:
    """Run ``reproduce …`` or ``sweep …``.

    Returns:
        The exit status: 0; 1 if a run failed, which the tables then lack; 2 if data are missing or a measure is
        unknown; 130 after Ctrl-C and 143 after SIGTERM, with tables of the finished runs.
    """
    options, passed_on = arguments(args)
    if args[0] == "sweep":
        chosen = [(experiment := _sweep(options), _refined(experiment.cells(), options.grid))]
    else:
        chosen = [each for name in options.id for each in tables_and_figures(name)]
    known = Folders(Path(options.out) / RUNS)
    planned: Planned = [(each, _plan(each, cells, options, passed_on, known)) for each, cells in chosen]
    trials = Trials([job for experiment, pairs in planned if is_trained(experiment) for _, job in pairs])
    findings = preflight(planned, trials, fetch=not options.dry_run)
    planned = findings.planned
    if options.dry_run:
        return dry_run(planned, findings, trials, options.jobs, Path(options.out))
    for problem in findings.problems:
        print(f"fl-lightning: error: {problem}", file=sys.stderr)
    if findings.problems:
        return 2
    trained = [(experiment, pairs) for experiment, pairs in planned if is_trained(experiment)]
    failed, stopped_by = [], 0
    folders = [Path(options.out) / experiment.id for experiment, _ in planned]
    with ExitStack() as holds:
        for folder in folders:
            holds.enter_context(held(folder))
        try:
            with _stopped_by_sigterm():
                failed = train_with_progress(trained, options.jobs) if trained else []
        except KeyboardInterrupt as interrupt:
            stopped_by = int(next(iter(interrupt.args), signal.SIGINT))
        for (experiment, pairs), folder in zip(planned, folders, strict=True):
            _write(experiment, pairs, folder, args, options.rounds)
    for job in failed:
        print(job.failure)
    if stopped_by:
        print("stopped: the same command continues the runs")
        return 128 + stopped_by
    return 1 if failed else 0


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, which schedulers of clusters send, interrupt the block as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _sweep(options: argparse.Namespace) -> Experiment:
    """Make a user's own experiment, without numbers of a paper; the pre-flight chooses a measure if none is named."""
    config = find_config(options.config)
    measures = tuple(dict.fromkeys(options.measures))
    name = options.experiment or experiment_in(config)
    parts = Path(name).parts
    if Path(name).is_absolute() or not parts or ".." in parts or parts[0] == RUNS:
        raise ConfigurationError(
            f"experiment must name a folder in {options.out}, and not {RUNS}, which holds the runs, got {name}: "
            "choose another name by --experiment, and another place by --out"
        )
    return Experiment(name, f"Sweep of {options.config}", ", ".join(measures), "", (), config, measures)


def _refined(cells: Sequence[Cell], swept: Sequence[str]) -> list[Cell]:
    """Expand every cell to all points of the axes ``option=values``."""
    axes = []
    for each in swept:
        name, _, text = each.partition("=")
        values = yaml.safe_load(text) if text else None
        values = [yaml.safe_load(part) for part in text.split(",")] if not isinstance(values, list) else values
        if not name or not text:
            raise ConfigurationError(f"--grid must be OPTION=VALUE[,VALUE], got {each}: data.partition.alpha=0.1,1")
        axes.append([(name, value) for value in values])
    return [
        Cell(
            {**cell.labels, **{name: _label(value) for name, value in point}},
            (*cell.options, *(option(*p) for p in point)),
        )
        for cell in cells
        for point in itertools.product(*axes)
    ]


def _label(value: Any) -> Any:
    """Name a value: callbacks by their classes and arguments, such as "FedProx(mu=0.1) + FedNova", other lists in YAML.

    >>> _label([{"class_path": "FedProx", "init_args": {"mu": 0.1}}, {"class_path": "fl_lightning.callbacks.FedNova"}])
    'FedProx(mu=0.1) + FedNova'
    >>> _label([1, 2])
    '[1, 2]'
    """
    if isinstance(value, str | int | float | None):
        return value
    parts = value if isinstance(value, list) else [value]
    if parts and all(isinstance(part, dict) and "class_path" in part for part in parts):
        return " + ".join(map(_called, parts))
    return yaml.safe_dump(value, default_flow_style=True).strip()


def _called(part: dict[str, Any]) -> str:
    arguments = ", ".join(f"{name}={value}" for name, value in (part.get("init_args") or {}).items())
    return short(part["class_path"]) + (f"({arguments})" if arguments else "")


def _plan(
    experiment: Experiment,
    cells: Sequence[Cell],
    options: argparse.Namespace,
    passed_on: Sequence[str],
    folders: Folders,
) -> list[tuple[Cell, Job]]:
    given = {"trainer.max_epochs": options.rounds, "trainer.accelerator": options.accelerator}
    more = [*(option(name, value) for name, value in given.items() if value is not None), *passed_on]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    chosen, pairs = select(cells, options.subset or (), experiment.id), []
    announce(f"planning {experiment.id}: {counted(len(chosen), 'cell')} …")
    for cell in chosen:
        group = [experiment.id, *map(label, cell.labels.values())]
        arguments = [f"--config={experiment.config}", *cell.options, *more]
        called = ", ".join(filter(None, (experiment.id, drawing.name(cell.labels, list(cell.labels)))))
        pairs += [(cell, job) for job in plan(group, arguments, seeds, folders, called)]
    return pairs


def select(cells: Sequence[Cell], wanted: Sequence[str], where: str) -> list[Cell]:
    """Select the cells that have one of the wanted labels on every axis that is named.

    Args:
        cells: cells to choose from.
        wanted: "axis=label" or "axis=label,label", one entry per axis.
        where: name of the experiment for the error message.

    Raises:
        ConfigurationError: an axis or a label does not exist; the message names the existing ones.
    """
    for choice in wanted:
        axis, _, labels = choice.partition("=")
        known = {label(cell.labels[axis]) for cell in cells if axis in cell.labels}
        asked = set(labels.split(","))
        if not known or not asked <= known:
            axes = dict.fromkeys(name for cell in cells for name in cell.labels)
            there = f"labels {', '.join(sorted(known))}" if known else f"axes {', '.join(axes)}"
            raise ConfigurationError(f"--subset must be AXIS=LABEL[,LABEL], got {choice}: {where} has the {there}")
        cells = [cell for cell in cells if axis in cell.labels and label(cell.labels[axis]) in asked]
    return list(cells)


def _write(
    experiment: Experiment, pairs: Sequence[tuple[Cell, Job]], folder: Path, args: Sequence[str], rounds: int | None
) -> None:
    image = picture(experiment, pairs, folder)
    if is_trained(experiment):
        _write_tables(experiment, pairs, image, folder, args, rounds)
    print(f"results: {folder}")


def _write_tables(
    experiment: Experiment,
    pairs: Sequence[tuple[Cell, Job]],
    image: Path | None,
    folder: Path,
    args: Sequence[str],
    rounds: int | None,
) -> None:
    results = collect(experiment, pairs)
    compared, verdicts = compare(experiment, results), judge(experiment, results)
    finished = sum(job.finished for _, job in pairs)
    facts = [f"`fl-lightning {' '.join(args)}`", f"{finished} of {counted(len(pairs), 'run')} finished"]
    if rounds:
        paper = ", to which the paper's numbers belong" if experiment.rows else ""
        facts.append(f"{counted(rounds, 'round')} in place of the config's{paper}")
        print(f"{experiment.id}: {facts[-1]}")
    if finished:
        seeds = ", ".join(map(str, sorted(results["seed"].unique())))
        facts.append(f"{'seeds' if ',' in seeds else 'seed'} {seeds}; {_versions(pairs)}")
        facts.append(f"{duration(results.drop_duplicates('folder')['seconds'].sum())} of training in all")
    results.to_csv(folder / "results.csv", index=False)
    (folder / "table.md").write_text(tables.markdown(experiment, compared, verdicts, facts, image))
    (folder / "table.html").write_text(tables.html(experiment, compared, verdicts, facts, image))
    console = Console()
    if not experiment.rows and finished:
        write_comparison(experiment, pairs, folder, console)
        return
    for table in tables.terminal(experiment, compared, verdicts):
        console.print(table)


def _versions(pairs: Sequence[tuple[Cell, Job]]) -> str:
    """Write the versions that the runs were made with; every version if they differ."""
    versions = (job.facts["versions"] for _, job in pairs if job.finished)
    return ", ".join(dict.fromkeys(f"{name} {version}" for each in versions for name, version in each.items()))
