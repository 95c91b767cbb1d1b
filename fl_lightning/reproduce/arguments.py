"""The arguments of ``reproduce``, read before pandas and torch are imported."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fl_lightning.commands import CommandParser, counted, whole_number
from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.experiments.papers import experiments, figures, find
from fl_lightning.reproduce.run_options import PARTS, PASSED_ON, RunOptions, read_options

ABOUT = "Train the runs of a paper's table or figure, and compare their numbers with the paper's."
LEDGER = "print where every claim of the papers stands, by the results in --out; write it to FILE, too"
UNTIL = "add seeds to the tables with an open claim: up to 5, 8 and 12"
MOST = "largest number of seeds with --until-decided (default 12)"
ANSWERS = "write the page of the tuned experiments to FILE, by the results in --out: who beats FedAvg"
QUICK = "the benchmark's problem label-skew alone, with one search if --seeds is not given"
RULE = "add a rule of your own to the methods of a tuned experiment, as my_rules.MedianClipping"
GRID = "an argument of --rule, and the values or the range to search: c=0.5,1 or c={log: [0.1, 10]}"
SCALES = "a smaller version of the experiment: laptop (default: the paper's)"


def arguments(args: Sequence[str]) -> tuple[Namespace, RunOptions]:
    """Parse ``reproduce …``.

    Returns:
        ``id``, the names of tables, figures and documents; ``scale``; ``ledger``, None without the option;
        ``answers`` and ``rule``, likewise; ``grid``; ``until_decided`` and ``most_seeds``; and the options of the runs.

    Raises:
        ConfigurationError: there is no such option or experiment, or no experiment is named.
        SystemExit: help or the list of all experiments is asked for, and has been printed.
    """
    parser = CommandParser("reproduce", ABOUT, PASSED_ON)
    parser.add_argument("id", nargs="*", help="a table or figure (fedgh-slides/table-2), or a document (fedgam)")
    parser.add_argument("--list", action="store_true", help="list all experiments")
    parser.add_argument("--ledger", nargs="?", const="", metavar="FILE", help=LEDGER)
    parser.add_argument("--scale", default="", metavar="NAME", help=SCALES)
    parser.add_argument("--until-decided", action="store_true", help=UNTIL)
    parser.add_argument("--most-seeds", type=partial(whole_number, "--most-seeds"), default=12, help=MOST)
    parser.add_argument("--answers", metavar="FILE", help=ANSWERS)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    parser.add_argument("--rule", metavar="CLASS", help=RULE)
    parser.add_argument("--grid", action="append", default=[], metavar="ARGUMENT=VALUES", help=GRID)
    asked, runs = read_options(parser, args, [*PARTS, "config"])
    if asked.list or asked.id == ["list"]:
        for experiment in [*experiments().values(), *figures()]:
            cells = counted(len(experiment.cells), "cell")
            print(f"{experiment.id:30} {cells:9} {experiment.claim}", flush=True)
        raise SystemExit(0)
    if asked.quick:
        asked.id = ["benchmark/label-skew"]
        if not any(argument.startswith("--seeds") for argument in args):
            runs = replace(runs, seeds=runs.seeds[:1])
    if asked.ledger is not None and (asked.id or asked.scale or asked.until_decided or runs.subset or runs.options):
        raise ConfigurationError(
            "--ledger takes all experiments and trains nothing: give --out alone, the folder of all results"
        )
    for name, page in (("ledger", asked.ledger), ("answers", asked.answers)):
        if page and Path(page).is_dir():
            raise ConfigurationError(f"--{name} must be a file, got {page}, a folder: give {Path(page, name)}.md")
    if asked.ledger is None and asked.answers is None and not asked.id:
        raise ConfigurationError("reproduce needs the id of an experiment: fl-lightning reproduce --list names all")
    if asked.until_decided and runs.shard[1] > 1:
        raise ConfigurationError("--until-decided looks at all runs before it adds seeds: leave --shard out")
    if asked.grid and asked.rule is None:
        raise ConfigurationError("--grid says what --rule tries: add --rule CLASS")
    for name in asked.id:
        find(name)  # refuses an unknown name
    return asked, runs if asked.scale else replace(runs, shorter="--scale laptop")
