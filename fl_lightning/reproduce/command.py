"""``fl-lightning reproduce``: the runs of a paper's tables and figures, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.arguments import arguments
from fl_lightning.reproduce.experiments.choosing import with_options
from fl_lightning.reproduce.experiments.papers import find
from fl_lightning.reproduce.experiments.scale import at_scale
from fl_lightning.reproduce.ledger.page import write_ledger
from fl_lightning.reproduce.running import run, until_decided


def command(args: Sequence[str]) -> int:
    """Run ``reproduce …``; return the exit status of :func:`fl_lightning.reproduce.running.run`.

    ``reproduce --ledger`` trains nothing, and writes the ledger of all claims.
    """
    asked, runs = arguments(args)
    if asked.ledger is not None:
        return write_ledger(runs.out, asked.ledger)
    experiments = [experiment for name in asked.id for experiment in find(name)]
    if asked.scale:
        scaled = [at_scale(asked.scale, experiment) for experiment in experiments]
        experiments = [experiment for experiment in scaled if experiment.cells]
        if not experiments:
            raise ConfigurationError(f"scale {asked.scale} keeps no cell of {' '.join(asked.id)}: leave out --scale")
    chosen = []
    for experiment in experiments:
        cells = with_options(experiment.cells, runs.options)
        chosen.append(replace(experiment, cells=tuple(cells)))
    if asked.until_decided:
        return until_decided(chosen, runs, asked.most_seeds)
    return run(chosen, runs)
