"""The arguments of ``reproduce`` and ``sweep``, read before pandas and torch are imported."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from fl_lightning.commands import CommandParser, counted, whole_number
from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.fit.configs import find_config
from fl_lightning.fit.messages import meant
from fl_lightning.reproduce.figures import borrowed, tables_and_figures
from fl_lightning.reproduce.papers import experiments

SWEPT = "an option of fit and its values, as data.partition.alpha=0.1,1 or a YAML list; give --grid once per option"
PASSED_ON = "Options of fit go to every run: --data.root DIR, --trainer.precision bf16-mixed, …"
PARTS = ("trainer", "model", "data", "num_threads")  # beginnings of the options that are passed on
# Options of fit that the command sets for each run, and what to give in their place.
SET = {
    "seed_everything": "--seeds and --first_seed choose the seeds",
    "ckpt_path": "the same command continues a stopped run, and --model.init_from gives an initial model",
    "trainer.default_root_dir": "--out names the folder of all results",
    "experiment": "results are named by the id of the table or figure, and --out names another folder",
}


def arguments(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse ``reproduce …`` or ``sweep …``.

    Returns:
        The command's own options, and the options of ``fit`` that it passes on to every run.

    Raises:
        ConfigurationError: there is no such option, experiment or config, or no experiment is named.
        SystemExit: help or the list of all experiments is asked for, and has been printed.
    """
    own, passed_on = _divided(args[1:], [*PARTS, "config"] if args[0] == "reproduce" else PARTS)
    options, unknown = _parser(args[0]).parse_known_args(own)
    if unknown:
        raise ConfigurationError(_unknown(unknown[0], vars(options)))
    if args[0] == "sweep":
        find_config(options.config)
        return options, passed_on
    if options.list or options.id == ["list"]:
        print(_listed(), flush=True)
        raise SystemExit(0)
    if options.ledger is not None:
        if options.id or passed_on or options.scale or options.subset or options.rounds:
            raise ConfigurationError(
                "--ledger takes all experiments and trains nothing: give --out alone, the folder of all results"
            )
        return options, passed_on
    if not options.id:
        raise ConfigurationError("reproduce needs the id of an experiment: fl-lightning reproduce --list names all")
    for name in options.id:
        tables_and_figures(name)  # refuses an unknown name
    return options, passed_on


def _divided(args: Sequence[str], parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide arguments into the command's own arguments, and options of ``fit`` with their values."""
    own: list[str] = []
    passed_on: list[str] = []
    rest = deque(args)
    while rest:
        argument = rest.popleft()
        name = option_name(argument)
        if not argument.startswith("--") or name.partition(".")[0] not in parts or name in SET:
            own.append(argument)
            continue
        passed_on.append(argument)
        if "=" not in argument and rest and not rest[0].startswith("--"):
            passed_on.append(rest.popleft())
    return own, passed_on


def option_name(argument: str) -> str:
    """Name the option of an argument: "trainer.callbacks" of "--trainer.callbacks+=FedNova"."""
    return argument.removeprefix("--").partition("=")[0].rstrip("+")


def _unknown(argument: str, known: Iterable[str]) -> str:
    """Describe the mistake in an argument that the command does not have."""
    name = option_name(argument)
    if not argument.startswith("-"):
        return f"expected an option, got {argument}: --help lists the options"
    if name in SET:
        return f"--{name} is set for each run: {SET[name]}"
    part, dot, below = name.partition(".")
    near = nearest(part, PARTS) if dot else nearest(name, [*known, *PARTS])
    if near:
        return f"there is no option --{name}; did you mean --{near}{dot}{below}?"
    hint = meant(name) or "--help lists the options; those of fit begin with trainer., model. or data."
    return f"there is no option --{name}: {hint}"


def _listed() -> str:
    """List all experiments, one per line: id, number of cells, and claim."""
    known = [*((each, each.cells()) for each in experiments().values()), *borrowed()]
    return "\n".join(f"{each.id:30} {counted(len(cells), 'cell'):9} {each.claim}" for each, cells in known)


def _parser(name: str) -> CommandParser:
    about = {
        "reproduce": "Train the runs of a paper's table or figure, and compare their numbers with the paper's.",
        "sweep": "Train a config with every combination of the values in --grid.",
    }[name]
    parser = CommandParser(f"fl-lightning {name}", description=about, epilog=PASSED_ON, allow_abbrev=False)
    if name == "sweep":
        parser.add_argument("--config", required=True, help="config of every run; --grid is added to the config's grid")
        parser.add_argument(
            "--experiment", metavar="NAME", help="name of the folder of results (default: the config's name)"
        )
        parser.add_argument("--grid", action="append", default=[], metavar="OPTION=VALUES", help=SWEPT)
        parser.add_argument(
            "--measures", nargs="+", default=[], help="metrics to tabulate (default val/top1, or the report's metric)"
        )
    else:
        parser.add_argument("id", nargs="*", help="a table or figure (fedgh-slides/table-2), or a document (fedgam)")
        parser.add_argument("--list", action="store_true", help="list all experiments")
        parser.add_argument(
            "--ledger",
            nargs="?",
            const="",
            metavar="FILE",
            help="print where every claim of the papers stands, by the results in --out; write it to FILE, too",
        )
        parser.add_argument(
            "--scale",
            default="",
            metavar="NAME",
            help="a smaller version of the experiment: laptop (default: the paper's)",
        )
    parser.add_argument("--seeds", type=partial(whole_number, "--seeds"), default=3, help="number of seeds (default 3)")
    parser.add_argument("--first_seed", type=int, default=1, help="the first seed (default 1)")
    rounds = "number of rounds of every run, in place of the config's"
    parser.add_argument("--rounds", type=partial(whole_number, "--rounds"), help=rounds)
    subset = "train some cells only: method=FedAvg alpha=0.1,1"
    parser.add_argument("--subset", nargs="+", action="extend", metavar="AXIS=LABELS", help=subset)
    jobs = "number of runs at a time (default 1)"
    parser.add_argument("--jobs", type=partial(whole_number, "--jobs"), default=1, help=jobs)
    parser.add_argument("--accelerator", help="kind of device: cpu, gpu, …")
    parser.add_argument(
        "--dry-run",
        "--dry_run",
        action="store_true",
        help="look for callbacks and data, print the number of runs and, once runs have begun, the time; train nothing",
    )
    parser.add_argument("--out", default=f"runs/{name}", help=f"folder of all results (default runs/{name})")
    return parser
