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
from fl_lightning.reproduce.jobs import Job, train
from fl_lightning.reproduce.outcome.tables import DIGITS
from fl_lightning.reproduce.progress.tracker import Planned, Row, Tracker
from fl_lightning.runs.catalogue import measured
from fl_lightning.runs.display.progress import Display

OTHER_LINES = 4  # lines of the display beside the rows: bar, head, number of hidden cells, the cursor's line


def train_with_progress(planned: Planned, processes: int, shorter: str = "") -> list[Job]:
    """Train all jobs that are not finished; show a live table in a terminal, or else print a line for each ended run.

    Args:
        planned: the experiments, each with the jobs of its cells.
        processes: number of jobs at a time.
        shorter: an option of the command that makes the runs shorter; "" for none.

    Returns:
        The jobs that failed.
    """
    tracker, began = Tracker(planned, processes, shorter), time.monotonic()
    display = Display(stderr=True, transient=True)  # the tables of the results follow
    task = display.add_task("", total=len(tracker.jobs), left=tracker.left, elapsed=lambda: time.monotonic() - began)
    display.say(_begun(len(tracker.jobs), len(tracker.finished)))

    def report(busy: Sequence[Job], failed: Sequence[Job]) -> None:
        finished, lost = tracker.update(busy, failed)
        for line in tracker.news:
            display.say(line)
        for job in lost:
            display.say(job.failure, style="red")
        if display.disable:
            for position, job in enumerate(finished, len(tracker.finished) - len(finished) + 1):
                for line in lines(tracker, job, position):
                    display.say(line)
            return
        failures = f", {len(tracker.failed)} failed" if tracker.failed else ""
        words = f"runs {len(tracker.finished)}/{len(tracker.jobs)}{failures}"
        display.update(task, description=words, completed=tracker.done())
        display.below = cells(tracker, display.console.height)

    report((), ())
    with display:
        return train(tracker.jobs, tracker.processes, report)


def announce(words: str) -> None:
    """Print a line on standard error if that is a terminal, where the live table is; else on standard output."""
    Display(stderr=True).say(words)


def _begun(runs: int, finished: int) -> str:
    if finished == runs:
        return f"{counted(runs, 'run')}, finished before"
    before = f", {finished:,} finished before; starting the next …" if finished else "; starting the first …"
    return f"{counted(runs, 'run')}{before}"


def lines(tracker: Tracker, job: Job, position: int) -> list[str]:
    """Write a line on the job that finished as number 1, 2, …, and a line on each cell that this job completes."""
    rows = [row for row in tracker.rows if any(each.folder == job.folder for each in row.jobs)]
    left = tracker.left()
    result = f"{rows[0].measure} {_written(rows[0], tracker.value(rows[0], job))}"
    words = f"{position}/{len(tracker.jobs)} {rows[0].name} seed {job.seed}: {result}"
    made = [f"{words}; about {duration(left)} left" if left else words]
    for row in rows:
        if len(row.jobs) > 1 and all(each.folder in tracker.finished for each in row.jobs):
            middle, half_width = interval([tracker.value(row, each) for each in row.jobs])
            result = fixed_interval(middle, half_width, DIGITS[measured(row.measure)[1]])
            made.append(f"{row.name}: {row.measure} {result} over {counted(len(row.jobs), 'seed')}")
    return made


def cells(tracker: Tracker, height: int) -> RenderableType:
    """Make a table of the cells: those in training, then the last finished, then the next, as many as fit.

    Args:
        tracker: follows the jobs.
        height: number of lines of the terminal.
    """
    shown, hidden = _divided(tracker, max(height - OTHER_LINES, 1))
    measures = list(dict.fromkeys(row.measure for row in tracker.rows))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("cell")
    for head in ("seeds", measures[0] if len(measures) == 1 else "result", "under way"):
        table.add_column(Text(head), no_wrap=True, justify="right")
    for row in shown:
        named = "" if len(measures) == 1 else f"{row.measure} "
        done = [job for job in row.jobs if job.folder in tracker.finished]
        busy = [job for job in row.jobs if any(job.folder == each.folder for each in tracker.busy)]
        failed = sum(job.folder in tracker.failed for job in row.jobs)
        rounds = ", ".join(f"{tracker.rounds(job)}/{job.rounds}" for job in busy)
        result, so_far = (_written(row, tracker.mean(row, jobs)) for jobs in (done, busy))
        table.add_row(
            Text(row.name, no_wrap=True, overflow="ellipsis"),
            Text(f"{len(done)}/{len(row.jobs)}{f', {failed} failed' if failed else ''}", "red" if failed else ""),
            Text(named + result),
            Text(f"round {rounds}: {so_far}" if busy else "", "dim"),
        )
    finished = sum(all(job.folder in tracker.finished for job in row.jobs) for row in hidden)
    more = f"{counted(len(hidden), 'more cell')}, {finished} of them finished"
    return Group(table, Text(more, "dim", no_wrap=True)) if hidden else table


def _divided(tracker: Tracker, space: int) -> tuple[list[Row], list[Row]]:
    """Divide the rows into those that are shown, as many as there is space for, and the others, in the plan's order."""
    busy = {job.folder for job in tracker.busy}
    order = {folder: position for position, folder in enumerate(tracker.finished)}

    def urgency(position: int) -> float:
        folders = [job.folder for job in tracker.rows[position].jobs]
        return math.inf if busy.intersection(folders) else max(order.get(folder, -1) for folder in folders)

    positions = sorted(range(len(tracker.rows)), key=urgency, reverse=True)
    shown, hidden = ([tracker.rows[each] for each in sorted(part)] for part in (positions[:space], positions[space:]))
    return shown, hidden


def _written(row: Row, value: float) -> str:
    return fixed(value, DIGITS[measured(row.measure)[1]])
