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
    found = [each for name in asked.id for each in find(name)]
    if asked.scale:
        scaled = [at_scale(asked.scale, each) for each in found]
        if not (found := [each for each in scaled if each.cells]):
            raise ConfigurationError(f"scale {asked.scale} keeps no cell of {' '.join(asked.id)}: leave out --scale")
    chosen = [replace(each, cells=tuple(with_options(each.cells, runs.options))) for each in found]
    shorter = "" if asked.scale else "--scale laptop"
    return until_decided(chosen, runs, asked.most_seeds, shorter) if asked.until_decided else run(chosen, runs, shorter)
