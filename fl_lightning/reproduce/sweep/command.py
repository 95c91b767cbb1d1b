"""``fl-lightning sweep``: one's own runs, one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.configs import experiment_in, find_config
from fl_lightning.reproduce.experiments.choosing import refine, with_options
from fl_lightning.reproduce.experiments.experiment import Experiment
from fl_lightning.reproduce.experiments.grid import grid
from fl_lightning.reproduce.running import RUNS, run
from fl_lightning.reproduce.sweep.arguments import arguments


def command(args: Sequence[str]) -> int:
    """Run ``sweep …``; return the exit status of :func:`fl_lightning.reproduce.running.run`."""
    asked, runs = arguments(args)
    config = find_config(asked.config)
    name = asked.experiment or experiment_in(config)
    parts = Path(name).parts
    if Path(name).is_absolute() or not parts or ".." in parts or parts[0] == RUNS:
        raise ConfigurationError(
            f"experiment must name a folder in {runs.out}, and not {RUNS}, which holds the runs, got {name}: "
            "choose another name by --experiment, and another place by --out"
        )
    measures = tuple(dict.fromkeys(asked.measures))
    cells = refine(with_options(grid(config), runs.options), asked.grid)
    experiment = Experiment(
        id=name,
        source=f"Sweep of {asked.config}",
        metric=", ".join(measures),
        claim="",
        rows=(),
        config=config,
        measures=measures,
        cells=tuple(cells),
    )
    return run([experiment], runs)
