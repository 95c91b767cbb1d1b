"""Progress of the jobs: finished runs and the time left."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fl_lightning.reproduce.jobs import Job, train


def train_with_progress(jobs: Sequence[Job], processes: int) -> list[Job]:
    """Train all jobs that are not finished, with a bar in a terminal, or else a line for each run that ends.

    Returns:
        The jobs that failed.
    """
    distinct = list({job.folder: job for job in jobs}.values())
    done = sum(job.finished for job in distinct)
    total = sum(job.rounds for job in distinct)
    console = Console(stderr=True)
    console.print(f"{len(distinct)} runs, {done} of them finished before", highlight=False)
    if not console.is_terminal:
        return train(distinct, processes, _Lines(distinct))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=total, completed=sum(job.rounds for job in distinct if job.finished))

        def report(busy: Sequence[Job]) -> None:
            finished = sum(job.finished for job in distinct)
            rounds = sum(job.rounds if job.finished else min(job.rounds_done, job.rounds) for job in distinct)
            names = f": {', '.join(job.name for job in busy)}" if busy else ""
            bar.update(task, completed=rounds, description=f"{finished}/{len(distinct)} runs{names}")

        return train(distinct, processes, report)


class _Lines:
    """Prints a line for every job that has finished."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs, self.began = jobs, time.monotonic()
        self.known = self.before = {job.folder for job in jobs if job.finished}

    def __call__(self, busy: Sequence[Job]) -> None:
        finished = {job.folder for job in self.jobs if job.finished}
        for job in self.jobs:
            if job.folder in finished - self.known:
                minutes = (time.monotonic() - self.began) / 60
                left = minutes / len(finished - self.before) * (len(self.jobs) - len(finished))
                print(f"{len(finished)}/{len(self.jobs)} {job.name}; about {left:.0f} minutes left", flush=True)
        self.known = finished
