"""Write an experiment's results: picture, table as CSV, Markdown and HTML, and the comparison of a sweep."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from rich.console import Console

from fl_lightning.commands import counted
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.jobs import Job, Pairs
from fl_lightning.reproduce.outcome import tables
from fl_lightning.reproduce.outcome.gate import with_columns
from fl_lightning.reproduce.outcome.numbers import CHANGED, RESULTS, USUAL, collect, compare, with_measure
from fl_lightning.reproduce.outcome.pictures import picture
from fl_lightning.reproduce.outcome.sweep_comparison import write_comparison
from fl_lightning.reproduce.outcome.verdict import judge
from fl_lightning.reproduce.run_options import RunOptions
from fl_lightning.runs.display.progress import duration
from fl_lightning.runs.folder.lock import LOCK

# Options of fit that change no result.
HARMLESS = (
    "data.root",
    "data.download",
    "data.num_workers",
    "num_threads",
    "trainer.accelerator",
    "trainer.devices",
)


def write(experiment: Experiment, pairs: Pairs, folder: Path, runs: RunOptions) -> None:
    """Print an experiment's results, and write them to an existing folder.

    Args:
        experiment: the experiment; if it names no measures, one that its runs log is taken.
        pairs: the experiment's cells and jobs.
        folder: the folder; results of other runs in the folder are moved aside.
        runs: seeds, options and folders of the runs, as read from the command line.
    """
    measured = with_measure(experiment, [job for _, job in pairs])
    if not experiment.measures and measured.measures != (USUAL,):
        print(f"{measured.id}: measured by {measured.metric}, since the runs log no {USUAL}; --measures names others")
    results = with_columns(measured, pairs, collect(measured, pairs))
    _keep_earlier(folder, results)
    differs = measured.scale or any(each.startswith("trainer.max_epochs") for each in changes(runs.options))
    image = picture(replace(measured, rows=()) if differs else measured, pairs, folder)  # no marks of other rounds
    if measured.is_trained:
        _write_tables(measured, pairs, results, image, folder, runs)
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
    return [each for each in text if each.split()[0] not in HARMLESS]


def _write_tables(
    experiment: Experiment, pairs: Pairs, results: pd.DataFrame, image: Path | None, folder: Path, runs: RunOptions
) -> None:
    changed = changes(runs.options)
    notes = [experiment.reduced] if experiment.scale else []
    if changed:
        paper = ": the paper's numbers belong to others" if experiment.rows else ""
        notes.append(f"settings in place of the config's: {', '.join(changed)}{paper}")
    for note in notes:
        print(f"{experiment.id}: {note}")
    facts = [*notes, f"`{runs.line}`", *_about_runs([job for _, job in pairs], results)]
    if experiment.claims:
        facts.append("where the claims of all papers stand: fl-lightning reproduce --ledger")
        results = results.assign(**{CHANGED: ", ".join(changed)}) if changed and len(results) else results
    results.to_csv(folder / RESULTS, index=False)
    page = tables.Page(experiment, compare(experiment, results), judge(experiment, results), facts, image)
    (folder / "table.md").write_text(tables.markdown(page))
    (folder / "table.html").write_text(tables.html(page))
    console = Console()
    if experiment.rows or results.empty:
        for table in tables.terminal(page):
            console.print(table)
    else:
        write_comparison(experiment, pairs, folder, console)


def _about_runs(jobs: Sequence[Job], results: pd.DataFrame) -> list[str]:
    """Tell how many runs are finished, with which seeds, by which versions (all if they differ), in which time."""
    done = [job for job in jobs if job.finished]
    facts = [f"{len(done)} of {counted(len(jobs), 'run')} finished"]
    if done:
        seeds = sorted({job.seed for job in done})
        made = dict.fromkeys(f"{name} {version}" for job in done for name, version in job.facts["versions"].items())
        facts.append(f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}; {', '.join(made)}")
        facts.append(f"{duration(results.drop_duplicates('folder')['seconds'].sum())} of training in all")
    return facts
