"""The arguments of ``reproduce`` and ``sweep``, read before pandas and torch are imported."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.arguments import CommandParser
from fl_lightning.fit.configs import find_config

SWEPT = "an option of fit and its values: data.partition.alpha=0.1,1 or a YAML list; given again, another axis"
PASSED_ON = "Everything else goes to every run as it is: --data.root DIR, --trainer.precision bf16-mixed, …"


def arguments(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse ``reproduce …`` or ``sweep …``.

    Returns:
        The command's own options, and the arguments that it passes on to every run.

    Raises:
        ConfigurationError: no experiment is named, or there is no such config.
    """
    options, passed_on = _parser(args[0]).parse_known_args(args[1:])
    if args[0] == "sweep":
        find_config(options.config)
        return options, passed_on
    options.list = options.list or options.id == ["list"]
    if not options.list and not options.id:
        raise ConfigurationError("reproduce needs the id of an experiment: fl-lightning reproduce --list names all")
    return options, passed_on


def _parser(name: str) -> CommandParser:
    about = {"reproduce": "A paper's table: ours beside theirs.", "sweep": "A grid of your own over any config."}[name]
    parser = CommandParser(f"fl-lightning {name}", description=about, epilog=PASSED_ON, allow_abbrev=False)
    if name == "sweep":
        parser.add_argument("--config", required=True, help="what every run has in common; its own grid is kept")
        parser.add_argument("--grid", action="append", default=[], metavar="OPTION=VALUES", help=SWEPT)
        parser.add_argument(
            "--measures", nargs="+", default=["val/top1"], help="metrics to tabulate (default val/top1)"
        )
    else:
        parser.add_argument("id", nargs="*", help="a table or figure (fedgh-slides/table-2), or a document (fedgam)")
        parser.add_argument("--list", action="store_true", help="name all experiments")
    parser.add_argument("--seeds", type=_positive, default=3, help="how many seeds (default 3)")
    parser.add_argument("--first_seed", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--rounds", type=_positive, help="rounds of every run, in place of the config's")
    parser.add_argument("--subset", nargs="+", metavar="AXIS=LABELS", help="some rows: method=FedAvg alpha=0.1,1")
    parser.add_argument("--jobs", type=_positive, default=1, help="runs at a time (default 1)")
    parser.add_argument("--accelerator", help="cpu, gpu, …")
    parser.add_argument("--out", default=f"runs/{name}", help=f"folder of all results (default runs/{name})")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(text)
