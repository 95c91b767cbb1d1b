"""The options that commands of many runs have in common, read before pandas and torch are imported."""

from __future__ import annotations

import math
import re
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fl_lightning.better import Better, add_options, better_in
from fl_lightning.commands import CommandParser, whole_number
from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.fit.configs import check_options
from fl_lightning.fit.messages import option_meant_by
from fl_lightning.reproduce.experiments.grid import option, option_name

PASSED_ON = "Options of fit go to every run: --data.root DIR, --trainer.precision bf16-mixed, …"
PARTS = ("trainer", "model", "data", "num_threads")  # beginnings of the options that are passed on
# Options of fit that the command sets for each run, and what to give in their place.
SET_BY_COMMAND = {
    "seed_everything": "--seeds and --first_seed choose the seeds",
    "ckpt_path": "the same command continues a stopped run, and --model.init_from gives an initial model",
    "trainer.default_root_dir": "--out names the folder of all results",
    "experiment": "results are named by the id of the table or figure, and --out names another folder",
}


@dataclass(frozen=True)
class RunOptions:
    """Holds the options of a command's runs, which are the same for all of its experiments.

    Attributes:
        line: the command line, for readers of the results.
        out: folder of all results.
        seeds: the seeds of each cell.
        options: options of ``fit`` for every run.
        subset: labels of the cells to train, as "axis=label,label"; empty for all cells.
        jobs: number of runs at a time.
        dry_run: whether to look for callbacks and data only.
        shorter: an option of the command that makes the runs shorter, to name where a run takes long; "" for none.
        on: file that says on which cluster the runs are trained; None for this machine.
        shard: which share of the runs this command trains, and of how many: (0, 1) for all runs.
        until: when the training stops, in seconds of the monotonic clock.
        better: which values of metrics are better, by name, whatever the runs say.
    """

    line: str
    out: Path
    seeds: Sequence[int]
    options: tuple[str, ...]
    subset: Sequence[str]
    jobs: int
    dry_run: bool
    shorter: str = ""
    on: Path | None = None
    shard: tuple[int, int] = (0, 1)
    until: float = math.inf
    better: Mapping[str, Better] = field(default_factory=dict)


def read_options(
    parser: CommandParser, args: Sequence[str], parts: Sequence[str] = PARTS
) -> tuple[Namespace, RunOptions]:
    """Read a command line.

    Args:
        parser: the parser of the command, to which the options of all such commands are added.
        args: the command's name and its arguments.
        parts: beginnings of the options that go to every run.

    Raises:
        ConfigurationError: there is no such option, or an option has no such value.
        SystemExit: help is asked for, and has been printed.
    """
    began = time.monotonic()
    _add_options(parser, args[0])
    own, passed_on = _divide(args[1:], parts)
    asked, unknown = parser.parse_known_args(own)
    if unknown:
        known = re.findall(r"--([\w-]+)", parser.format_usage())
        raise ConfigurationError(_what_is_wrong(unknown[0], known))
    short_names = {"trainer.max_epochs": asked.rounds, "trainer.accelerator": asked.accelerator}
    given = [option(name, value) for name, value in short_names.items() if value is not None]
    check_options(["fit", *given, *passed_on])
    return asked, RunOptions(
        line=f"fl-lightning {' '.join(args)}",
        out=Path(asked.out),
        seeds=range(asked.first_seed, asked.first_seed + asked.seeds),
        options=(*given, *passed_on),
        subset=asked.subset,
        jobs=asked.jobs,
        dry_run=asked.dry_run,
        on=asked.on,
        shard=asked.shard,
        until=began + 60 * asked.minutes,
        better=better_in(asked.lower_is_better, asked.higher_is_better),
    )


def _add_options(parser: CommandParser, name: str) -> None:
    def number(option: str, about: str, default: int | None = None) -> None:
        parser.add_argument(option, type=partial(whole_number, option), default=default, help=about)

    number("--seeds", "number of seeds (default 3)", 3)
    parser.add_argument("--first_seed", type=int, default=1, help="the first seed (default 1)")
    number("--rounds", "number of rounds of every run, in place of the config's")
    subset = "train some cells only: method=FedAvg alpha=0.1,1"
    parser.add_argument("--subset", nargs="+", action="extend", default=[], metavar="AXIS=LABELS", help=subset)
    number("--jobs", "number of runs at a time (default 1)", 1)
    on = "train each run as a job of SLURM; YAML FILE has submitit's parameters: timeout_min, gpus_per_node, …"
    parser.add_argument("--on", type=Path, metavar="FILE", help=on)
    shard = "train one of N shares of the runs, I from 0 to N-1; the share that ends last writes the tables"
    parser.add_argument("--shard", type=read_shard, default=(0, 1), metavar="I/N", help=shard)
    minutes = "stop after M minutes, and write the tables of the finished runs; the same command continues the others"
    parser.add_argument("--minutes", type=read_minutes, default=math.inf, metavar="M", help=minutes)
    parser.add_argument("--accelerator", help="kind of device: cpu, gpu, …")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="look for callbacks and data, print the number of runs and, once runs have begun, the time; train nothing",
    )
    add_options(parser)
    parser.add_argument("--out", default=f"runs/{name}", help=f"folder of all results (default runs/{name})")


def read_shard(text: str) -> tuple[int, int]:
    """Read ``--shard I/N``: the number of a share of the runs, from 0, and the number of shares."""
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and int(number) < int(count):
        return int(number), int(count)
    raise ConfigurationError(
        f"--shard must be I/N, I from 0 to N-1, got {text}: the tasks of an array of 8 (--array=0-7) give "
        "$SLURM_ARRAY_TASK_ID/8"
    )


def read_minutes(text: str) -> float:
    """Read ``--minutes M``: a number above 0, such as 14 or 0.5."""
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?|\.[0-9]+", text) and float(text) > 0:
        return float(text)
    raise ConfigurationError(f"--minutes must be a number above 0, got {text}: 14 or 0.5")


def _divide(args: Sequence[str], parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide arguments into the command's own arguments, and options of ``fit`` with their values."""
    own: list[str] = []
    passed_on: list[str] = []
    rest = deque(args)
    while rest:
        argument = rest.popleft()
        name = option_name(argument)
        if not argument.startswith("--") or name.partition(".")[0] not in parts or name in SET_BY_COMMAND:
            own.append(argument)
            continue
        passed_on.append(argument)
        # Whether an option of fit takes a value is not known here: what follows is one, unless it is an option.
        if "=" not in argument and rest and not rest[0].startswith("--"):
            passed_on.append(rest.popleft())
    return own, passed_on


def _what_is_wrong(argument: str, known: Iterable[str]) -> str:
    """Describe the mistake in an argument that the command does not have."""
    name = option_name(argument)
    if not argument.startswith("-"):
        return f"expected an option, got {argument}: --help lists the options"
    if name in SET_BY_COMMAND:
        return f"--{name} is set for each run: {SET_BY_COMMAND[name]}"
    part, dot, below = name.partition(".")
    # With a dot, it is an option of fit whose first part is misspelt: options with a right first part are passed on.
    near = nearest(part, PARTS) if dot else nearest(name, [*known, *PARTS])
    if near:
        return f"there is no option --{name}; did you mean --{near}{dot}{below}?"
    hint = option_meant_by(name) or "--help lists the options; those of fit begin with trainer., model. or data."
    return f"there is no option --{name}: {hint}"
