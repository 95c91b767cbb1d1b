"""The runs of experiments as one command: plan, look for the data, train, write the results."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from fl_lightning.commands import counted
from fl_lightning.report.statistics import label
from fl_lightning.reproduce.cluster import OnCluster
from fl_lightning.reproduce.experiments.choosing import in_words, select
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.jobs import Folders, Job, Planned, plan
from fl_lightning.reproduce.outcome.numbers import RESULTS, read, unknown_measures
from fl_lightning.reproduce.outcome.results_folder import write
from fl_lightning.reproduce.outcome.verdict import LEVELS, OPEN, judge
from fl_lightning.reproduce.preflight import dry_run, preflight
from fl_lightning.reproduce.progress.display import announce, train_with_progress
from fl_lightning.reproduce.run_options import RunOptions
from fl_lightning.reproduce.workers import Here
from fl_lightning.runs.folder.lock import held

TIME_OVER = 124  # exit status when the minutes are over, as of the command timeout
PATIENCE_S = 60  # seconds that a shard waits for another one to write the tables
RUNS = "runs"  # in the folder of all results, the folder of the runs


def run(experiments: Sequence[Experiment], runs: RunOptions) -> int:
    """Train the cells of experiments, and write the results.

    Args:
        experiments: the experiments.
        runs: seeds, options and folders of the runs, as read from the command line.

    Returns:
        The exit status: 0; 1 if a run failed, which the tables then lack; 2 if data are missing or a measure is
        unknown; 130 after Ctrl-C, 143 after SIGTERM and 124 after ``--minutes``, with tables of the finished runs.
    """
    known = Folders(runs.out / RUNS)
    planned = [(experiment, _plan(experiment, runs, known)) for experiment in experiments]
    own = share(planned, *runs.shard)
    problems, to_come = preflight(own, fetch=not runs.dry_run)
    if runs.dry_run:
        return dry_run(own, problems, to_come, runs.jobs)
    if problems:
        return _print_problems(problems)
    is_shard = runs.shard[1] > 1
    folders = [runs.out / experiment.scale / experiment.id for experiment in experiments]
    with ExitStack() as holds:
        # Two commands must not write the same results: the second one is refused. Shards write one after the other.
        for folder in () if is_shard else folders:
            holds.enter_context(held(folder))
        failed, stopped = _train(own, runs)
        if is_shard and not _all_finished(planned):
            _tell_of_shards(planned, runs)
        else:
            for (experiment, pairs), folder in zip(planned, folders, strict=True):
                if is_shard:
                    holds.enter_context(held(folder, PATIENCE_S))
                unknown = unknown_measures(experiment, [job for _, job in pairs])
                if not unknown:  # tables of a measure that no run has would replace those of one that they have
                    write(experiment, pairs, folder, runs)
                problems += unknown
    for job in failed:
        print(job.failure)
    if stopped:
        print("stopped: the same command continues the runs")
        return stopped
    return 1 if failed else _print_problems(problems)


def share(planned: Planned, number: int, count: int) -> Planned:
    """Return the pairs of every ``count``-th job, from job ``number`` on; jobs with the same folder are one job."""
    folders = dict.fromkeys(job.folder for _, pairs in planned for _, job in pairs)
    own = set(list(folders)[number::count])
    shared = []
    for experiment, pairs in planned:
        own_pairs = [(cell, job) for cell, job in pairs if job.folder in own]
        shared.append((experiment, own_pairs))
    return shared


def _all_finished(planned: Planned) -> bool:
    return all(job.finished for experiment, pairs in planned if experiment.is_trained for _, job in pairs)


def _tell_of_shards(planned: Planned, runs: RunOptions) -> None:
    """Say how many runs of all shards are finished, and who writes the tables."""
    jobs = {job.folder: job for experiment, pairs in planned if experiment.is_trained for _, job in pairs}
    finished = sum(job.finished for job in jobs.values())
    number, count = runs.shard
    print(
        f"shard {number} of {count}: {finished} of {counted(len(jobs), 'run')} are finished in all; the shard that "
        "ends last writes the tables, and so does the same command without --shard"
    )


def until_decided(experiments: Sequence[Experiment], runs: RunOptions, most: int) -> int:
    """Train the cells of experiments as :func:`run` does; add seeds to those that hold an open claim.

    Args:
        experiments: the experiments.
        runs: as in :func:`run`; the seeds are the first of all, and as many as trained at first.
        most: largest number of seeds; a dry run plans this number.

    Returns:
        The exit status, see :func:`run`; the first that is not 0 ends the training.
    """
    first = runs.seeds[0]
    begun = len(runs.seeds)
    looks = [begun, *(seeds for seeds in LEVELS if begun < seeds <= most)]
    if runs.dry_run:  # it trains nothing, so that no look can decide a claim
        return run(experiments, replace(runs, seeds=range(first, first + looks[-1])))
    for seeds in looks:
        status = run(experiments, replace(runs, seeds=range(first, first + seeds)))
        experiments = [experiment for experiment in experiments if _is_open(experiment, runs)]
        if status or not experiments:
            break
    return status


def _is_open(experiment: Experiment, runs: RunOptions) -> bool:
    results = read(runs.out / experiment.scale / experiment.id / RESULTS)
    return any(finding.verdict == OPEN for finding in judge(experiment, results))


def _plan(experiment: Experiment, runs: RunOptions, folders: Folders) -> list[tuple[Cell, Job]]:
    """Plan the jobs of the chosen cells of an experiment."""
    chosen = select(experiment.cells, runs.subset, experiment.id)
    announce(f"planning {experiment.id}: {counted(len(chosen), 'cell')} …")
    pairs = []
    for cell in chosen:
        group = [experiment.id, *map(label, cell.labels.values())]
        arguments = [f"--config={experiment.config}", *cell.options]
        name = ", ".join(filter(None, (experiment.id, in_words(cell.labels, list(cell.labels)))))
        for job in plan(group, arguments, cell.seeds or runs.seeds, folders, name):
            pairs.append((cell, job))
    return pairs


def _train(planned: Planned, runs: RunOptions) -> tuple[list[Job], int]:
    """Train all jobs; return those that failed, and the exit status of a training that was stopped, or 0."""
    trained = [(experiment, pairs) for experiment, pairs in planned if experiment.is_trained]
    failed: list[Job] = []
    try:
        with _stopped_by_sigterm():
            if trained:
                workers = Here(runs.jobs) if runs.on is None else OnCluster(runs.on, runs.jobs, runs.out)
                failed = train_with_progress(trained, workers, runs.jobs, runs.shorter, runs.until)
    except KeyboardInterrupt as interrupt:
        # SIGTERM leaves its number in the interrupt (_stopped_by_sigterm); Ctrl-C leaves nothing.
        return [], 128 + int(next(iter(interrupt.args), signal.SIGINT))
    ended = {job.folder for job in failed}
    left = [job for _, pairs in trained for _, job in pairs if not job.finished and job.folder not in ended]
    return failed, TIME_OVER if left else 0


def _print_problems(problems: Sequence[str]) -> int:
    """Print problems as errors; return the exit status."""
    for problem in problems:
        print(f"fl-lightning: error: {problem}", file=sys.stderr)
    return 2 if problems else 0


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
