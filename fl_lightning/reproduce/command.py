"""``fl-lightning reproduce`` and ``fl-lightning sweep``: many runs, one table."""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
from rich.console import Console

from fl_lightning.commands import counted
from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import Cell, experiment_in, find_config, option
from fl_lightning.reproduce import drawing, tables
from fl_lightning.reproduce.arguments import arguments
from fl_lightning.reproduce.cells import refined, select, with_options
from fl_lightning.reproduce.claims import judge
from fl_lightning.reproduce.ending import write_comparison
from fl_lightning.reproduce.figures import is_trained, tables_and_figures
from fl_lightning.reproduce.jobs import Folders, Job, plan
from fl_lightning.reproduce.ledger_page import write_ledger
from fl_lightning.reproduce.papers import Experiment
from fl_lightning.reproduce.pictures import picture
from fl_lightning.reproduce.preflight import dry_run, preflight
from fl_lightning.reproduce.progress import announce, train_with_progress
from fl_lightning.reproduce.results import (
    CHANGED,
    RESULTS,
    USUAL,
    collect,
    compare,
    unknown_measures,
    with_measure,
)
from fl_lightning.reproduce.scale import at_scale
from fl_lightning.reproduce.tracker import Planned
from fl_lightning.runs.lock import LOCK, held
from fl_lightning.runs.progress import duration
from fl_lightning.runs.seeds import label

RUNS = "runs"  # in the folder of all results, the folder of the runs
# Options of fit that change no result.
SAME = ("data.root", "data.download", "data.num_workers", "num_threads", "trainer.accelerator", "trainer.devices")


def command(args: Sequence[str]) -> int:
    """Run ``reproduce …`` or ``sweep …``.

    ``reproduce --ledger`` trains nothing, and writes the ledger of all claims.

    Returns:
        The exit status: 0; 1 if a run failed, which the tables then lack; 2 if data are missing or a measure is
        unknown; 130 after Ctrl-C and 143 after SIGTERM, with tables of the finished runs.
    """
    options, passed_on = arguments(args)
    if args[0] == "reproduce" and options.ledger is not None:
        return write_ledger(Path(options.out), options.ledger)
    given = {"trainer.max_epochs": options.rounds, "trainer.accelerator": options.accelerator}
    more = [*(option(name, value) for name, value in given.items() if value is not None), *passed_on]
    if args[0] == "sweep":
        experiment = _sweep(options)
        chosen = [(experiment, refined(with_options(experiment.cells(), more), options.grid))]
    else:
        found = [each for name in options.id for each in tables_and_figures(name)]
        found = [at_scale(options.scale, *each) for each in found] if options.scale else found
        chosen = [(experiment, with_options(cells, more)) for experiment, cells in found]
    known = Folders(Path(options.out) / RUNS)
    planned: Planned = [(each, _plan(each, cells, options, known)) for each, cells in chosen]
    problems, to_come = preflight(planned, fetch=not options.dry_run)
    if options.dry_run:
        return dry_run(planned, problems, to_come, options.jobs)
    if problems:
        return _refused(problems)
    shorter = "--scale laptop" if args[0] == "reproduce" and not options.scale else ""
    trained = [(experiment, pairs) for experiment, pairs in planned if is_trained(experiment)]
    failed, stopped_by = [], 0
    folders = [Path(options.out) / experiment.scale / experiment.id for experiment, _ in planned]
    with ExitStack() as holds:
        for folder in folders:
            holds.enter_context(held(folder))
        try:
            with _stopped_by_sigterm():
                failed = train_with_progress(trained, options.jobs, shorter) if trained else []
        except KeyboardInterrupt as interrupt:
            stopped_by = int(next(iter(interrupt.args), signal.SIGINT))
        for (experiment, pairs), folder in zip(planned, folders, strict=True):
            problems += unknown_measures(experiment, [job for _, job in pairs])
            _write(_measured(experiment, pairs), pairs, folder, args, more)
    for job in failed:
        print(job.failure)
    if stopped_by:
        print("stopped: the same command continues the runs")
        return 128 + stopped_by
    return 1 if failed else _refused(problems)


def _refused(problems: Sequence[str]) -> int:
    """Print problems as errors; return the exit status."""
    for problem in problems:
        print(f"fl-lightning: error: {problem}", file=sys.stderr)
    return 2 if problems else 0


def _measured(experiment: Experiment, pairs: Sequence[tuple[Cell, Job]]) -> Experiment:
    """Give an experiment that names no measures one that its runs log, and say so if it is not the usual one."""
    chosen = with_measure(experiment, [job for _, job in pairs])
    if not experiment.measures and chosen.measures != (USUAL,):
        print(f"{chosen.id}: measured by {chosen.metric}, since the runs log no {USUAL}; --measures names others")
    return chosen


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
    """Make a user's own experiment, without numbers of a paper; its runs choose a measure if none is named."""
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


def _plan(
    experiment: Experiment,
    cells: Sequence[Cell],
    options: argparse.Namespace,
    folders: Folders,
) -> list[tuple[Cell, Job]]:
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    chosen, pairs = select(cells, options.subset or (), experiment.id), []
    announce(f"planning {experiment.id}: {counted(len(chosen), 'cell')} …")
    for cell in chosen:
        group = [experiment.id, *map(label, cell.labels.values())]
        arguments = [f"--config={experiment.config}", *cell.options]
        called = ", ".join(filter(None, (experiment.id, drawing.name(cell.labels, list(cell.labels)))))
        pairs += [(cell, job) for job in plan(group, arguments, seeds, folders, called)]
    return pairs


def _write(
    experiment: Experiment, pairs: Sequence[tuple[Cell, Job]], folder: Path, args: Sequence[str], more: Sequence[str]
) -> None:
    results = collect(experiment, pairs)
    _keep_earlier(folder, results)
    changed = changes(more)
    differs = experiment.scale or any(each.startswith("trainer.max_epochs") for each in changed)
    image = picture(replace(experiment, rows=()) if differs else experiment, pairs, folder)  # no marks of other rounds
    if is_trained(experiment):
        _write_tables(experiment, pairs, results, image, folder, args, changed)
    print(f"results: {folder}")


def _keep_earlier(folder: Path, results: pd.DataFrame) -> None:
    """Move the results of an earlier command into a folder of their own, if they have runs that ours do not have."""
    try:
        before = set(pd.read_csv(folder / RESULTS)["folder"])
    except (OSError, ValueError, KeyError):  # none, or without a run
        return
    if before <= set(results.get("folder", ())):
        return
    kept = folder / next(name for n in itertools.count(1) if not (folder / (name := f"earlier-{n}")).exists())
    files = [path for path in folder.iterdir() if path.is_file() and path.name != LOCK]
    kept.mkdir()
    for path in files:
        path.rename(kept / path.name)
    print(f"earlier results, with other runs: {kept}")


def changes(more: Sequence[str]) -> list[str]:
    """List the options of ``fit`` that were given for all runs and may change results, as "model.local_epochs 2".

    >>> changes(["--data.root", "DIR", "--model.local_epochs", "2", "--trainer.callbacks+=FedNova", "--num_threads=2"])
    ['model.local_epochs 2', 'trainer.callbacks+ FedNova']
    """
    text: list[str] = []
    for word in more:
        if word.startswith("--"):
            text.append(word.removeprefix("--").replace("=", " ", 1))
        else:
            text[-1] += f" {word}"
    return [each for each in text if each.split()[0] not in SAME]


def _write_tables(
    experiment: Experiment,
    pairs: Sequence[tuple[Cell, Job]],
    results: pd.DataFrame,
    image: Path | None,
    folder: Path,
    args: Sequence[str],
    changed: Sequence[str],
) -> None:
    compared, verdicts = compare(experiment, results), judge(experiment, results)
    finished = sum(job.finished for _, job in pairs)
    facts = [experiment.reduced] if experiment.scale else []
    if changed:
        paper = ": the paper's numbers belong to others" if experiment.rows else ""
        facts.append(f"settings in place of the config's: {', '.join(changed)}{paper}")
    for fact in facts:
        print(f"{experiment.id}: {fact}")
    facts += [f"`fl-lightning {' '.join(args)}`", f"{finished} of {counted(len(pairs), 'run')} finished"]
    if finished:
        seeds = ", ".join(map(str, sorted(results["seed"].unique())))
        facts.append(f"{'seeds' if ',' in seeds else 'seed'} {seeds}; {_versions(pairs)}")
        facts.append(f"{duration(results.drop_duplicates('folder')['seconds'].sum())} of training in all")
    if experiment.claims:
        facts.append("where the claims of all papers stand: fl-lightning reproduce --ledger")
    recorded = (
        results.assign(**{CHANGED: ", ".join(changed)}) if changed and finished and experiment.claims else results
    )
    recorded.to_csv(folder / RESULTS, index=False)
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
