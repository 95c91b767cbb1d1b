"""Progress of the jobs: the results so far and the time left."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fl_lightning.commands import counted, duration
from fl_lightning.report.numbers import fixed, fixed_interval
from fl_lightning.report.statistics import interval
from fl_lightning.reproduce.jobs import Job, Planned
from fl_lightning.reproduce.outcome.tables import DIGITS
from fl_lightning.reproduce.progress.tracker import Row, Tracker
from fl_lightning.reproduce.workers import Workers, train
from fl_lightning.runs.catalogue import metric_and_factor
from fl_lightning.runs.display.progress import Display

OTHER_LINES = 4  # lines of the display beside the rows: bar, head, number of hidden cells, the cursor's line


def train_with_progress(
    planned: Planned, workers: Workers, processes: int, shorter: str = "", until: float = math.inf
) -> list[Job]:
    """Train all jobs that are not finished; show a live table in a terminal, or else print a line for each ended run.

    Args:
        planned: the experiments, each with the jobs of its cells.
        workers: the processes that train the jobs, here or on a cluster.
        processes: number of jobs at a time.
        shorter: an option of the command that makes the runs shorter; "" for none.
        until: when the training stops, in seconds of the monotonic clock.

    Returns:
        The jobs that failed.
    """
    tracker = Tracker(planned, processes, shorter)
    began = time.monotonic()
    display = Display(stderr=True, transient=True)  # the tables of the results follow
    task = display.add_task("", total=len(tracker.jobs), left=tracker.left, elapsed=lambda: time.monotonic() - began)
    display.say(_first_line(len(tracker.jobs), len(tracker.finished)))
    if workers.about:
        display.say(workers.about)

    def report(busy: Sequence[Job], failed: Sequence[Job]) -> None:
        finished, lost = tracker.update(busy, failed)
        for line in tracker.news:
            display.say(line)
        for job in lost:
            display.say(job.failure, style="red")
        if display.disable:  # the output is no terminal
            before = len(tracker.finished) - len(finished)
            for position, job in enumerate(finished, before + 1):
                for line in lines_on_finished(tracker, job, position):
                    display.say(line)
            return
        words = f"runs {len(tracker.finished)}/{len(tracker.jobs)}"
        if tracker.failed:
            words = f"{words}, {len(tracker.failed)} failed"
        display.update(task, description=words, completed=tracker.done())
        display.below = table_of_cells(tracker, display.console.height)

    report((), ())
    with display:
        return train(tracker.jobs, workers, report, until)


def announce(words: str) -> None:
    """Print a line on standard error if that is a terminal, where the live table is; else on standard output."""
    Display(stderr=True).say(words)


def _first_line(runs: int, finished: int) -> str:
    words = counted(runs, "run")
    if finished == runs:
        return f"{words}, finished before"
    if finished:
        return f"{words}, {finished:,} finished before; starting the next …"
    return f"{words}; starting the first …"


def lines_on_finished(tracker: Tracker, job: Job, position: int) -> list[str]:
    """Write a line on the job that finished as number 1, 2, …, and a line on each cell that this job completes."""
    rows = [row for row in tracker.rows if job.folder in {other.folder for other in row.jobs}]
    first = rows[0]  # of several experiments that share the job, the first names it
    result = f"{first.measure} {_as_text(first, tracker.value(first, job))}"
    line = f"{position}/{len(tracker.jobs)} {first.name} seed {job.seed}: {result}"
    left = tracker.left()
    if left:
        line = f"{line}; about {duration(left)} left"
    lines = [line]
    for row in rows:
        if len(row.jobs) > 1 and _is_finished(row, tracker):
            middle, half_width = interval([tracker.value(row, own) for own in row.jobs])
            result = fixed_interval(middle, half_width, DIGITS[metric_and_factor(row.measure)[1]])
            lines.append(f"{row.name}: {row.measure} {result} over {counted(len(row.jobs), 'seed')}")
    return lines


def _is_finished(row: Row, tracker: Tracker) -> bool:
    return all(job.folder in tracker.finished for job in row.jobs)


def table_of_cells(tracker: Tracker, height: int) -> RenderableType:
    """Make a table of the cells: those in training, then the last finished, then the next, as many as fit.

    Args:
        tracker: follows the jobs.
        height: number of lines of the terminal.
    """
    shown, hidden = _divide_rows(tracker, max(height - OTHER_LINES, 1))
    measures = list(dict.fromkeys(row.measure for row in tracker.rows))
    busy_folders = {job.folder for job in tracker.busy}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("cell")
    for head in ("seeds", measures[0] if len(measures) == 1 else "result", "under way"):
        table.add_column(Text(head), no_wrap=True, justify="right")
    for row in shown:
        done = [job for job in row.jobs if job.folder in tracker.finished]
        busy = [job for job in row.jobs if job.folder in busy_folders]
        seeds = f"{len(done)}/{len(row.jobs)}"
        failed = sum(job.folder in tracker.failed for job in row.jobs)
        if failed:
            seeds = f"{seeds}, {failed} failed"
        result = _as_text(row, tracker.mean(row, done))
        if len(measures) > 1:
            result = f"{row.measure} {result}"
        under_way = ""
        if busy:
            rounds = ", ".join(f"{tracker.rounds(job)}/{job.rounds}" for job in busy)
            under_way = f"round {rounds}: {_as_text(row, tracker.mean(row, busy))}"
        table.add_row(
            Text(row.name, no_wrap=True, overflow="ellipsis"),
            Text(seeds, "red" if failed else ""),
            Text(result),
            Text(under_way, "dim"),
        )
    if not hidden:
        return table
    finished = sum(_is_finished(row, tracker) for row in hidden)
    more = f"{counted(len(hidden), 'more cell')}, {finished} of them finished"
    return Group(table, Text(more, "dim", no_wrap=True))


def _divide_rows(tracker: Tracker, space: int) -> tuple[list[Row], list[Row]]:
    """Divide the rows into those that are shown, as many as there is space for, and the others, in the plan's order."""
    busy = {job.folder for job in tracker.busy}
    order = {folder: position for position, folder in enumerate(tracker.finished)}

    def urgency(position: int) -> float:
        """Rows under way come first, then those whose last job finished last."""
        folders = [job.folder for job in tracker.rows[position].jobs]
        if busy.intersection(folders):
            return math.inf
        return max(order.get(folder, -1) for folder in folders)

    positions = sorted(range(len(tracker.rows)), key=urgency, reverse=True)
    shown = [tracker.rows[position] for position in sorted(positions[:space])]
    hidden = [tracker.rows[position] for position in sorted(positions[space:])]
    return shown, hidden


def _as_text(row: Row, value: float) -> str:
    return fixed(value, DIGITS[metric_and_factor(row.measure)[1]])
