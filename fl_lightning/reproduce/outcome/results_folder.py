"""Write an experiment's results: picture, table as CSV, Markdown and HTML, and the comparison of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from rich.console import Console

from fl_lightning.better import Better
from fl_lightning.commands import counted, duration
from fl_lightning.files import whole
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.jobs import Job, Pairs
from fl_lightning.reproduce.outcome import tables
from fl_lightning.reproduce.outcome.gate import with_columns
from fl_lightning.reproduce.outcome.numbers import CHANGED, RESULTS, USUAL, collect, compare, with_measure
from fl_lightning.reproduce.outcome.pictures import picture
from fl_lightning.reproduce.outcome.sweep_comparison import write_comparison
from fl_lightning.reproduce.outcome.verdict import judge
from fl_lightning.reproduce.run_options import RunOptions
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


@dataclass(frozen=True, eq=False)
class Results:
    """Holds an experiment's results, of which each part of the folder is written.

    Attributes:
        experiment: the experiment, which names its measures.
        pairs: the experiment's cells and jobs.
        table: our runs, see :func:`fl_lightning.reproduce.outcome.numbers.collect`.
        page: the numbers beside the paper's, the findings, the facts and the picture.
        better: which values of metrics are better, see :class:`RunOptions`.
    """

    experiment: Experiment
    pairs: Pairs
    table: pd.DataFrame
    page: tables.Page
    better: Mapping[str, Better]


def write(experiment: Experiment, pairs: Pairs, folder: Path, runs: RunOptions) -> None:
    """Print an experiment's results, and write them to an existing folder, part by part (PARTS), or as numbers alone.

    Args:
        experiment: the experiment; if it names no measures, one that its runs log is taken.
        pairs: the experiment's cells and jobs.
        folder: the folder; results of other runs in the folder are moved aside.
        runs: seeds, options and folders of the runs, as read from the command line.
    """
    measured = with_measure(experiment, [job for _, job in pairs])
    if not experiment.measures and measured.measures != (USUAL,):
        print(f"{measured.id}: measured by {measured.metric}, since the runs log no {USUAL}; --measures names others")
    table = with_columns(measured, pairs, collect(measured, pairs))
    _keep_earlier(folder, table)
    image = _draw(measured, pairs, folder, runs) if measured.prints else None
    if measured.is_trained:
        results = _results(measured, pairs, table, image, runs)
        for write_part in PARTS if measured.prints else [_write_numbers]:
            write_part(results, folder)
    print(f"results: {folder}")


def _draw(experiment: Experiment, pairs: Pairs, folder: Path, runs: RunOptions) -> Path | None:
    """Draw the picture; if the runs are shorter or longer than the paper's, without its numbers."""
    other_rounds = any(change.startswith("trainer.max_epochs") for change in changes(runs.options))
    if experiment.scale or other_rounds:
        experiment = replace(experiment, rows=())
    return picture(experiment, pairs, folder)


def _results(
    experiment: Experiment, pairs: Pairs, table: pd.DataFrame, image: Path | None, runs: RunOptions
) -> Results:
    """Compare the runs with the paper, judge its claims, and collect facts; print how the runs differ from the paper's.

    A table with claims, or of a benchmark, has the changed settings in a column of their own.
    """
    changed = ", ".join(changes(runs.options))
    notes = []
    if experiment.scale:
        notes.append(experiment.reduced)
    if changed:
        paper = ": the paper's numbers belong to others" if experiment.rows else ""
        notes.append(f"settings in place of the config's: {changed}{paper}")
    for note in notes:
        print(f"{experiment.id}: {note}")
    facts = [*notes, f"`{runs.line}`", *_about_runs([job for _, job in pairs], table)]
    if experiment.claims:
        facts.append("where the claims of all papers stand: fl-lightning reproduce --ledger")
    is_compared_later = experiment.claims or not experiment.prints
    if changed and len(table) and is_compared_later:
        table = table.assign(**{CHANGED: changed})
    page = tables.Page(experiment, compare(experiment, table), judge(experiment, table), facts, image)
    return Results(experiment, pairs, table, page, runs.better)


def _write_numbers(results: Results, folder: Path) -> None:
    """Write the table of our runs as CSV."""
    with whole(folder / RESULTS) as part:
        results.table.to_csv(part, index=False)


def _write_pages(results: Results, folder: Path) -> None:
    """Write the page as Markdown and as HTML."""
    (folder / "table.md").write_text(tables.markdown(results.page))
    (folder / "table.html").write_text(tables.html(results.page))


def _print_tables(results: Results, folder: Path) -> None:
    """Print the tables beside a paper's; without a paper's numbers, compare the cells, and write that comparison."""
    console = Console()
    if results.experiment.rows or results.table.empty:
        for table in tables.terminal(results.page):
            console.print(table)
    else:
        write_comparison(results.experiment, results.pairs, results.better, folder, console)


# What a folder consists of beside the picture, in the order in which it is written.
PARTS: tuple[Callable[[Results, Path], None], ...] = (_write_numbers, _write_pages, _print_tables)


def _keep_earlier(folder: Path, results: pd.DataFrame) -> None:
    """Move the results of an earlier command into a folder of their own, if they have runs that ours do not have."""
    try:
        before = set(pd.read_csv(folder / RESULTS)["folder"])
    except (OSError, ValueError, KeyError):  # none, or without a run
        return
    if before <= set(results.get("folder", ())):
        return
    number = 1
    while (folder / f"earlier-{number}").exists():
        number += 1
    kept = folder / f"earlier-{number}"
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(LOCK)]
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
    return [option for option in text if option.split()[0] not in HARMLESS]


def _about_runs(jobs: Sequence[Job], results: pd.DataFrame) -> list[str]:
    """Tell how many runs are finished, with which seeds, by which versions (all if they differ), in which time."""
    finished = [job for job in jobs if job.finished]
    facts = [f"{len(finished)} of {counted(len(jobs), 'run')} finished"]
    if finished:
        seeds = sorted({job.seed for job in finished})
        versions: dict[str, None] = {}  # in their order, each once
        for job in finished:
            versions |= dict.fromkeys(f"{name} {version}" for name, version in job.facts["versions"].items())
        word = "seeds" if len(seeds) > 1 else "seed"
        facts.append(f"{word} {', '.join(map(str, seeds))}; {', '.join(versions)}")
        seconds = results.drop_duplicates("folder")["seconds"].sum()
        facts.append(f"{duration(seconds)} of training in all")
    return facts
