"""``fl-lightning reproduce``: the runs of a paper's tables and figures, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.arguments import arguments
from fl_lightning.reproduce.benchmark.compare import compare_methods
from fl_lightning.reproduce.benchmark.gains import BASELINE
from fl_lightning.reproduce.benchmark.page import write_answers
from fl_lightning.reproduce.benchmark.problems import searches_measured
from fl_lightning.reproduce.benchmark.search import METHOD, short_name, with_rule
from fl_lightning.reproduce.experiments.choosing import with_options
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.experiments.papers import find
from fl_lightning.reproduce.experiments.scale import at_scale
from fl_lightning.reproduce.ledger.page import write_ledger
from fl_lightning.reproduce.running import run, until_decided


def command(args: Sequence[str]) -> int:
    """Run ``reproduce …``; return the exit status of :func:`fl_lightning.reproduce.running.run`.

    ``reproduce --ledger`` trains nothing, and writes the ledger of all claims; ``--answers``, the page of a benchmark.
    """
    asked, runs = arguments(args)
    if asked.ledger is not None:
        return write_ledger(runs.out, asked.ledger)
    if asked.answers is not None:
        return write_answers(runs.out, asked.answers)
    experiments = [experiment for name in asked.id for experiment in find(name)]
    if asked.scale:
        scaled = [at_scale(asked.scale, experiment) for experiment in experiments]
        experiments = [experiment for experiment in scaled if experiment.cells]
        if not experiments:
            raise ConfigurationError(f"scale {asked.scale} keeps no cell of {' '.join(asked.id)}: leave out --scale")
    if asked.rule:
        experiments = [with_rule(experiment, asked.rule, asked.grid) for experiment in experiments]
        if not runs.subset:  # of the other methods, the results that come with the package are shown
            known = searches_measured(asked.id[0], asked.scale) if asked.quick and not runs.options else set()
            measured = set(runs.seeds) <= known
            trained = [*([] if measured else [BASELINE]), short_name(asked.rule)]
            runs = replace(runs, subset=[f"{METHOD}={','.join(trained)}"])
    plain = list[Experiment]()
    searched = list[Experiment]()
    for experiment in experiments:
        cells = with_options(experiment.cells, runs.options)
        (searched if experiment.tuning else plain).append(replace(experiment, cells=tuple(cells)))
    status = 0
    if plain:
        status = until_decided(plain, runs, asked.most_seeds) if asked.until_decided else run(plain, runs)
    for experiment in searched:
        if status <= 1:  # above, the runs were stopped
            status = max(status, compare_methods(experiment, runs, asked.rule))
    return status
