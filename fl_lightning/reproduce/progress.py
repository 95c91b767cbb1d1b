"""How far the runs are, and how long they will take."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fl_lightning.reproduce.runs import Run, train


def train_with_progress(runs: Sequence[Run], jobs: int) -> list[Run]:
    """Train what is not finished; a bar in a terminal, else a line for each run that ends.

    Returns:
        Those that failed.
    """
    distinct = list({run.folder: run for run in runs}.values())
    done = sum(run.finished for run in distinct)
    total = sum(run.rounds for run in distinct)
    console = Console(stderr=True)
    console.print(f"{len(distinct)} runs, {done} of them finished before", highlight=False)
    if not console.is_terminal:
        return train(distinct, jobs, _Lines(distinct))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=total, completed=sum(run.rounds for run in distinct if run.finished))

        def report(busy: Sequence[Run]) -> None:
            finished = sum(run.finished for run in distinct)
            rounds = sum(run.rounds if run.finished else min(run.rounds_done, run.rounds) for run in distinct)
            names = f": {', '.join(run.name for run in busy)}" if busy else ""
            bar.update(task, completed=rounds, description=f"{finished}/{len(distinct)} runs{names}")

        return train(distinct, jobs, report)


class _Lines:
    """A line for every run that has finished."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs, self.began = runs, time.monotonic()
        self.known = self.before = {run.folder for run in runs if run.finished}

    def __call__(self, busy: Sequence[Run]) -> None:
        finished = {run.folder for run in self.runs if run.finished}
        for run in self.runs:
            if run.folder in finished - self.known:
                minutes = (time.monotonic() - self.began) / 60
                left = minutes / len(finished - self.before) * (len(self.runs) - len(finished))
                print(f"{len(finished)}/{len(self.runs)} {run.name}; about {left:.0f} minutes left", flush=True)
        self.known = finished
