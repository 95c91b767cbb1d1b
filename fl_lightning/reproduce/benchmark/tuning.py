"""Tuning: each method gets the same number of tries, on a seed that no comparison has, before methods are compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.experiments.choosing import read_axis, select
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment, Tuning
from fl_lightning.reproduce.experiments.grid import option
from fl_lightning.reproduce.outcome.numbers import RESULTS, read
from fl_lightning.reproduce.run_options import RunOptions
from fl_lightning.reproduce.running import run

SEED = 0  # of the tries
FRESH = range(101, 109)  # seeds of the confirmation
METHOD = "method"  # the axis of the methods
TRY = "try"  # the axis of a method's tries
CALLBACKS = "trainer.callbacks"  # followed by an argument's name: that of the last callback, the method's own


def with_rule(experiment: Experiment, rule: str, arguments: Sequence[str]) -> Experiment:
    """Add a rule of a user's own to the methods of an experiment.

    Args:
        experiment: an experiment with a tuning.
        rule: the rule's class, as ``my_rules.MedianClipping``.
        arguments: the arguments to try, as ``c=0.5,1,2``.

    Raises:
        ConfigurationError: the experiment is not tuned, or an argument has no values.
    """
    tuning = experiment.tuning
    if tuning is None:
        raise ConfigurationError(f"--rule adds a row to experiments whose methods are tuned, got {experiment.id}")
    values = {}
    for argument in arguments:
        points = read_axis(argument)
        values[f"{CALLBACKS}.{points[0][0]}"] = [value for _, value in points]
    name = name_of(rule)
    own = Cell({METHOD: name}, (f"--{CALLBACKS}+={rule}",))
    cells = [cell for cell in experiment.cells if cell.labels[METHOD] != name]
    return replace(experiment, cells=(*cells, own), tuning=replace(tuning, method={**tuning.method, name: values}))


def name_of(rule: str) -> str:
    """Name a rule's class without its module."""
    return rule.rpartition(".")[2]


def tuned(experiments: Sequence[Experiment], runs: RunOptions) -> tuple[list[Experiment], int]:
    """Train the tries of experiments, and give each method the options of its best one.

    Args:
        experiments: experiments, each with a tuning.
        runs: seeds, options and folders of the runs, as read from the command line.

    Returns:
        The experiments whose tries are finished, in a dry run all, and the exit status of the tries, see :func:`run`.

    Raises:
        ConfigurationError: the seeds of the comparison have the tries' seed, or one of the confirmation.
    """
    taken = {SEED, *FRESH} & set(runs.seeds)
    if taken:
        raise ConfigurationError(
            f"seed {SEED} is that of the tries, and {FRESH[0]} to {FRESH[-1]} are those of the confirmation, which no "
            f"comparison may have, got {min(taken)}: set --first_seed 1"
        )
    chosen = []
    for experiment in experiments:
        cells = select(experiment.cells, runs.subset, experiment.id)
        chosen.append(replace(experiment, cells=tuple(cells)))
    tries = [in_tries(experiment) for experiment in chosen]
    status = run(tries, replace(runs, seeds=[SEED]))
    ready = []
    for experiment, tried in zip(chosen, tries, strict=True):
        results = read(runs.out / tried.scale / tried.id / RESULTS)
        if not results.empty:
            ready.append(with_best(experiment, results))
        elif runs.dry_run:
            ready.append(replace(experiment, tuning=None))
    return ready, status


def in_tries(experiment: Experiment) -> Experiment:
    """Return the experiment of the tries, with a cell for each try of each method.

    Raises:
        ConfigurationError: a method has another number of tries than the others.
    """
    cells = []
    counts = dict[int, str]()  # of tries, each with the last method that has so many
    for cell in experiment.cells:
        method = cell.labels[METHOD]
        tries = list(_tries(_tuning(experiment), method))
        counts[len(tries)] = method
        for name, options in tries:
            cells.append(Cell({**cell.labels, TRY: name}, (*cell.options, *options)))
    if len(counts) > 1:
        told = " and ".join(f"{method} has {count}" for count, method in counts.items())
        raise ConfigurationError(
            f"{experiment.id}: all methods must have the same number of tries, but {told}: give --grid as many values "
            "as the others have"
        )
    return replace(experiment, id=tries_of(experiment), cells=tuple(cells), claims=(), tuning=None, prints=False)


def tries_of(experiment: Experiment) -> str:
    """Name the experiment of the tries."""
    document, _, name = experiment.id.partition("/")
    return f"{document}-tuning/{name}"


def with_best(experiment: Experiment, results: pd.DataFrame) -> Experiment:
    """Give each method the options of its best try, by the first measure; leave a method without any result out.

    Args:
        experiment: the experiment.
        results: the results of :func:`in_tries`, see :func:`fl_lightning.reproduce.outcome.numbers.collect`.
    """
    measure = experiment.measures[0]
    known = results.dropna(subset=[measure])
    cells = []
    for cell in experiment.cells:
        method = cell.labels[METHOD]
        options_of = dict(_tries(_tuning(experiment), method, with_more=False))
        own = known[known[METHOD].eq(method) & known[TRY].isin(options_of)]
        if own.empty:
            print(f"{experiment.id}: no try of {method} has a result: it is left out")
            continue
        own = own.sort_values(measure, kind="stable")
        best = str(own[TRY].iloc[-1])
        print(f"{experiment.id}: {method} takes {best} ({own[measure].iloc[-1]:.2f} on validation images)")
        cells.append(Cell(cell.labels, (*cell.options, *options_of[best])))
    return replace(experiment, cells=tuple(cells), tuning=None, prints=False)


def _tuning(experiment: Experiment) -> Tuning:
    assert experiment.tuning is not None
    return experiment.tuning


def _tries(tuning: Tuning, method: str, with_more: bool = True) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each try of a method, and its options, with those of the tries alone if asked for.

    Raises:
        ConfigurationError: the tuning does not name the method.
    """
    if method not in tuning.method:
        raise ConfigurationError(f"paper.tune.method must name what {method} tries, got {', '.join(tuning.method)}")
    axes: Mapping[str, Sequence[Any]] = {**tuning.every, **tuning.method[method]}
    of_tries_alone = tuning.options.items() if with_more else ()
    more = [option(name, value) for name, value in of_tries_alone]
    for point in itertools.product(*axes.values()):
        words = [f"{'.'.join(name.split('.')[-2:])} {value}" for name, value in zip(axes, point, strict=True)]
        options = [option(name, value) for name, value in zip(axes, point, strict=True)]
        yield ", ".join(words), [*options, *more]
