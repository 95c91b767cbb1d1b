"""Search: each method draws as many settings, the best third are trained to the end, and the best one is tested.

One search is one seed: of its partition, its validation images and its draws. What it chooses is tested with other
seeds, so that differences between methods vary with all that a user's own search would vary with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.read_config import config_of
from fl_lightning.reproduce.benchmark.space import Settings, as_options, draw, name_of
from fl_lightning.reproduce.experiments.choosing import select
from fl_lightning.reproduce.experiments.experiment import Cell, Experiment
from fl_lightning.reproduce.experiments.grid import option
from fl_lightning.reproduce.outcome.numbers import RESULTS, read
from fl_lightning.reproduce.run_options import RunOptions
from fl_lightning.reproduce.running import run
from fl_lightning.runs.folder.yaml_text import read_yaml

DRAWS = 12  # of each method in each search
PART = 3  # one of so many draws is trained to the end; all are trained for one of so many parts of the rounds
TEST = 1000  # a search's tests have its seed and this much more each
TESTS = {1: 3, 2: 1}  # number of each search's tests by their length in the problem's rounds; the short ones decide
BUDGETS = tuple(TESTS)
METHOD, TRY, BUDGET = "method", "try", "budget"  # axes: the methods, the settings drawn, the length of a test
CALLBACKS = "trainer.callbacks"  # followed by an argument's name: that of the last callback, the method's own


def with_rule(experiment: Experiment, rule: str, arguments: Sequence[str]) -> Experiment:
    """Add a rule of a user's own to the methods of an experiment.

    Args:
        experiment: an experiment with a tuning.
        rule: the rule's class, as ``my_rules.MedianClipping``.
        arguments: the arguments to search, as ``c=0.5,1,2`` or ``c={log: [0.1, 10]}``.

    Raises:
        ConfigurationError: the experiment is not tuned, or an argument has no values.
    """
    tuning = experiment.tuning
    if tuning is None:
        raise ConfigurationError(f"--rule adds a row to experiments whose methods are tuned, got {experiment.id}")
    space = {}
    for argument in arguments:
        name, _, text = argument.partition("=")
        if not name or not text:
            raise ConfigurationError(f"--grid must be ARGUMENT=VALUES, got {argument}: c=0.5,1 or c={{log: [0.1, 10]}}")
        is_yaml = text.startswith(("{", "["))
        space[f"{CALLBACKS}.{name}"] = read_yaml(f"--grid {argument}", text if is_yaml else f"[{text}]")
    name = short_name(rule)
    own = Cell({METHOD: name}, (f"--{CALLBACKS}+={rule}",))
    cells = [cell for cell in experiment.cells if cell.labels[METHOD] != name]
    return replace(experiment, cells=(*cells, own), tuning=replace(tuning, method={**tuning.method, name: space}))


def short_name(rule: str) -> str:
    """Name a rule's class without its module."""
    return rule.rpartition(".")[2]


def searched(experiment: Experiment, runs: RunOptions) -> tuple[Experiment | None, int]:
    """Train the searches of an experiment's methods, one for each seed, and return the experiment of the tests.

    Args:
        experiment: an experiment with a tuning.
        runs: seeds, options and folders of the runs, as read from the command line.

    Returns:
        The experiment, with a cell for each setting that was chosen, and 0. Or None and the exit status of :func:`run`,
        if the training was stopped, if other shards train a part of it, or if no draw has a result. A draw that fails
        is not chosen, and does not change the status.

    Raises:
        ConfigurationError: a seed has the number of a test, or a method does not say what it draws.
    """
    if max(runs.seeds) >= TEST:
        raise ConfigurationError(
            f"seeds of a search must be below {TEST}, got {max(runs.seeds)}: its tests have {TEST} more each. "
            "Set --first_seed"
        )
    experiment = replace(experiment, cells=tuple(select(experiment.cells, runs.subset, experiment.id)))
    runs = replace(runs, subset=[])
    kept, status = _best_of(in_draws(experiment, runs.seeds), runs, DRAWS // PART)
    if kept:
        kept, status = _best_of(in_final(experiment, kept), runs, 1)
    return (in_tests(experiment, kept), 0) if kept else (None, status)


Kept = Mapping[tuple[str, int], Sequence[str]]  # by method and seed: names of the settings that go on, the best first


def _best_of(stage: Experiment, runs: RunOptions, count: int) -> tuple[Kept, int]:
    """Train a stage of a search; keep the ``count`` best settings of each method and seed by the first measure.

    Returns:
        What is kept, in a dry run the first ones; empty if the stage is not finished. And the exit status.
    """
    status = run([stage], runs)
    if status > 1:
        return {}, status
    measure = stage.measures[0]
    if runs.dry_run:
        rows = [{**cell.labels, "seed": seed} for cell in stage.cells for seed in cell.seeds]
        results = pd.DataFrame(rows).assign(**{measure: 0.0})
    else:
        results = read(runs.out / stage.scale / stage.id / RESULTS)
    if results.empty:
        return {}, status
    known = results.dropna(subset=[measure]).sort_values(measure, ascending=False, kind="stable")
    kept = dict[tuple[str, int], list[str]]()
    for row in known.to_dict("records"):
        names = kept.setdefault((row[METHOD], row["seed"]), [])
        if len(names) < count:
            names.append(row[TRY])
    return kept, status


def in_draws(experiment: Experiment, seeds: Sequence[int]) -> Experiment:
    """Return the experiment in which all draws of each search are trained for a part of the rounds.

    That part has its own schedule of the learning rate, so that a decay shows what it can do.
    """
    trainer = _trainer(experiment)
    rounds, every = trainer["max_epochs"], trainer["check_val_every_n_epoch"] or 1
    short = max(1, round(rounds / PART / every)) * every  # ends with an evaluation
    cells = []
    for cell in experiment.cells:
        for seed in seeds:
            for name in _drawn(experiment, cell, seed):
                cells.append(_cell_of_search(experiment, cell, seed, name, short))
    return _stage(experiment, "draws", cells, max(1, round(experiment.last * short / rounds)))


def in_final(experiment: Experiment, kept: Kept) -> Experiment:
    """Return the experiment in which the kept settings of each search are trained to the end."""
    rounds = rounds_of(experiment)
    cells = []
    for cell, seed, names in _kept_of(experiment, kept):
        cells += [_cell_of_search(experiment, cell, seed, name, rounds) for name in names]
    return _stage(experiment, "final", cells, experiment.last)


def in_tests(experiment: Experiment, kept: Kept) -> Experiment:
    """Return the experiment in which the best settings of each search are tested, with seeds of their own."""
    rounds = rounds_of(experiment)
    cells = []
    for cell, seed, names in _kept_of(experiment, kept):
        settings = _drawn(experiment, cell, seed)[names[0]]
        for budget, tests in TESTS.items():
            labels = {**cell.labels, TRY: names[0], BUDGET: budget}
            options = (*cell.options, *as_options(settings, budget * rounds), f"--trainer.max_epochs={budget * rounds}")
            seeds = tuple(seed + test * TEST for test in range(1, tests + 1))
            cells.append(replace(cell, labels=labels, options=options, seeds=seeds))
    return replace(experiment, cells=tuple(cells), tuning=None, prints=False)


def search_of(tests: pd.DataFrame) -> pd.Series:
    """Return the seed of the search that each test belongs to."""
    return tests["seed"] % TEST


def rounds_of(experiment: Experiment) -> int:
    """Return the rounds of a problem, as ``fit`` reads them from its config and its cells."""
    return int(_trainer(experiment)["max_epochs"])


def _trainer(experiment: Experiment) -> Mapping[str, Any]:
    arguments = [f"--config={experiment.config}", *experiment.cells[0].options]
    trainer: Mapping[str, Any] = config_of(arguments)["trainer"]
    return trainer


def _drawn(experiment: Experiment, cell: Cell, seed: int) -> dict[str, Settings]:
    """Draw a method's settings in a search, by their names.

    Raises:
        ConfigurationError: the tuning does not name the method.
    """
    tuning = experiment.tuning
    assert tuning is not None
    method = cell.labels[METHOD]
    if method not in tuning.method:
        raise ConfigurationError(f"paper.tune.method must name what {method} draws, got {', '.join(tuning.method)}")
    return {name_of(drawn): drawn for drawn in draw(tuning.every, tuning.method[method], method, seed, DRAWS)}


def _cell_of_search(experiment: Experiment, cell: Cell, seed: int, name: str, rounds: int) -> Cell:
    """Return a cell of a search: some settings of a method, with the options of searches alone."""
    assert experiment.tuning is not None
    settings = _drawn(experiment, cell, seed)[name]
    more = [option(key, value) for key, value in experiment.tuning.options.items()]
    options = (*cell.options, *as_options(settings, rounds), *more, f"--trainer.max_epochs={rounds}")
    return replace(cell, labels={**cell.labels, TRY: name}, options=options, seeds=(seed,))


def _kept_of(experiment: Experiment, kept: Kept) -> Iterator[tuple[Cell, int, Sequence[str]]]:
    """Yield what is kept, with the cell of its method and the seed of its search, in the order of the cells."""
    for cell in experiment.cells:
        for (method, seed), names in sorted(kept.items()):
            if method == cell.labels[METHOD]:
                yield cell, seed, names


def _stage(experiment: Experiment, stage: str, cells: Sequence[Cell], last: int) -> Experiment:
    id = id_of(experiment, stage)
    return replace(experiment, id=id, cells=tuple(cells), claims=(), tuning=None, prints=False, last=last, noted=())


def id_of(experiment: Experiment, stage: str) -> str:
    """Name the experiment of a stage of the search, "draws" or "final"."""
    document, _, name = experiment.id.partition("/")
    return f"{document}-{stage}/{name}"
