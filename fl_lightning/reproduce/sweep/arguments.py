"""The arguments of ``sweep``, read before pandas and torch are imported."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from fl_lightning.commands import CommandParser
from fl_lightning.fit.configs import find_config
from fl_lightning.reproduce.run_options import PASSED_ON, RunOptions, read_options

ABOUT = "Train a config with every combination of the values in --grid."
CONFIG = "config of every run; --grid is added to the config's grid"
EXPERIMENT = "name of the folder of results (default: the config's name)"
SWEPT = "an option of fit and its values, as data.partition.alpha=0.1,1 or a YAML list; give --grid once per option"
MEASURES = "metrics to tabulate (default val/top1, or the report's metric)"


def arguments(args: Sequence[str]) -> tuple[Namespace, RunOptions]:
    """Parse ``sweep …``.

    Returns:
        ``config``, a path; ``experiment``, None without the option; ``grid`` and ``measures``; and the options of the
        runs.

    Raises:
        ConfigurationError: there is no such option or config.
        SystemExit: help is asked for, and has been printed.
    """
    parser = CommandParser("sweep", ABOUT, PASSED_ON)
    parser.add_argument("--config", required=True, help=CONFIG)
    parser.add_argument("--experiment", metavar="NAME", help=EXPERIMENT)
    parser.add_argument("--grid", action="append", default=[], metavar="OPTION=VALUES", help=SWEPT)
    parser.add_argument("--measures", nargs="+", default=[], help=MEASURES)
    asked, runs = read_options(parser, args)
    find_config(asked.config)
    return asked, runs
