"""``fl-lightning reproduce``: the runs of a paper's tables and figures, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.arguments import arguments
from fl_lightning.reproduce.benchmark.confirming import confirm
from fl_lightning.reproduce.benchmark.gains import BASELINE
from fl_lightning.reproduce.benchmark.page import print_answers, write_answers
from fl_lightning.reproduce.benchmark.tuning import METHOD, name_of, tuned, with_rule
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
            runs = replace(runs, subset=[f"{METHOD}={BASELINE},{name_of(asked.rule)}"])
    chosen = []
    for experiment in experiments:
        cells = with_options(experiment.cells, runs.options)
        chosen.append(replace(experiment, cells=tuple(cells)))
    to_tune = [experiment for experiment in chosen if experiment.tuning]
    best = list[Experiment]()
    if to_tune:
        best, status = tuned(to_tune, runs)
        chosen = [experiment for experiment in chosen if not experiment.tuning] + best
        if status > 1 or not chosen:  # the tries were stopped, or others train a part of them
            return status
    if asked.until_decided:
        return until_decided(chosen, runs, asked.most_seeds)
    status = run(chosen, runs)
    if runs.dry_run or status > 1:
        return status
    status = max(status, confirm(best, runs))
    for experiment in best:
        print_answers(experiment, runs.out / experiment.scale)
    return status
