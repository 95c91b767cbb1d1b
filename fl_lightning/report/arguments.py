"""The arguments of ``report`` and ``dashboard``, read before pandas, wandb and torch are imported."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.better import add_options
from fl_lightning.commands import CommandParser
from fl_lightning.runs.folder.files import check_folder


def report_arguments(args: Sequence[str]) -> Namespace:
    """Parse ``report …``.

    Raises:
        ConfigurationError: a folder does not exist.
    """
    about = "Write one HTML page about some runs, readable offline: curves, conflict, clients, settings, times."
    parser = CommandParser("report", about)
    runs = "a run folder (runs/<experiment>/<version>), or a folder of run folders"
    parser.add_argument("run", metavar="RUN", nargs="+", help=runs)
    parser.add_argument("--out", help="HTML file to write (default report.html in the folder that contains all runs)")
    parser.add_argument("--figures", metavar="DIR", help="also write every chart as PDF, SVG and CSV into this folder")
    parser.add_argument("--names", nargs="+", help="one name for each method, in the order of the methods' first runs")
    parser.add_argument("--metric", help="metric by which methods are compared (default: val/top1, or other val/*)")
    parser.add_argument("--baseline", help="method with which the others are compared (default FedAvg)")
    parser.add_argument(
        "--target",
        type=float,
        help="value of the metric: the rounds, bytes and time to reach it are compared (default: about the baseline's "
        "last value)",
    )
    add_options(parser)
    options = parser.parse_args(args[1:])
    for folder in options.run:
        check_folder(Path(folder))
    return options


def dashboard_arguments(args: Sequence[str]) -> Namespace:
    """Parse ``dashboard …``."""
    about = "Make W&B workspaces for federated runs, by method and by seed, or a W&B report."
    parser = CommandParser("dashboard", about)
    project = os.environ.get("WANDB_PROJECT", "lightning_logs")  # the default of Lightning's WandbLogger
    parser.add_argument(
        "--entity", default=os.environ.get("WANDB_ENTITY"), help="W&B user or team (default: that of the API key)"
    )
    parser.add_argument("--project", default=project, help="W&B project with the runs (default %(default)s)")
    parser.add_argument("--name", default="Federated", help="name of the workspaces or report (default %(default)s)")
    parser.add_argument(
        "--report", action="store_true", help="make a report, which can be shared, with the same panels"
    )
    parser.add_argument("--out", type=Path, help="write the layout to this JSON file, and send nothing to W&B")
    return parser.parse_args(args[1:])
