"""Lines of the commands other than ``fit`` for ``fuzz.py``: drawn from what their parsers accept.

A line starts from one that works, and gets one to three faults: an option with a hostile value, an argument replaced
by a hostile path, a value or a byte of a file changed, a variable of the environment set, or the working directory
deleted.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from attack.fuzz_fit import LABORIOUS, ODD, SKIPPED, as_yaml, is_large
from attack.fuzz_line import BOMB, Line
from lib.command import run

from fl_lightning.fit.command import FederatedCLI
from fl_lightning.fit.read_config import parser_of

RUN = "runs/tiny/version_0"
QUIET = "--trainer.enable_progress_bar=false"
SOUND = {  # lines that work
    "data": [("--config=tiny.yaml",)],
    "validate": [("--config=tiny.yaml", QUIET), ("--config=tiny.yaml", QUIET, "--ckpt_path=last")],
    "test": [("--config=tiny.yaml", QUIET, f"--ckpt_path={RUN}/checkpoints/last.ckpt")],
    "predict": [("--config=tiny.yaml", QUIET, "--ckpt_path=last")],
    "sweep": [
        ("--config=tiny.yaml", "--seeds=1", "--dry-run"),
        ("--config=tiny.yaml", "--seeds=1", "--dry-run", "--grid=data.batch_size=16,32"),
    ],
    "reproduce": [
        *(("--list",), ("--ledger", "--out=runs")),
        ("fedgh-slides/table-2", "--seeds=1", "--dry-run", "--data.download=false", "--data.root=nowhere"),
    ],
    "report": [(RUN,), ("runs", "--out=page.html")],
    "export": [(RUN, f"--out=model{suffix}") for suffix in (".ckpt", ".safetensors", ".pt2")],
    "dashboard": [("--out=layout.json",), ("--report", "--out=layout.json")],
}
PLACES = [
    *(
        "",
        ".",
        "..",
        "tiny.yaml",
        "runs",
        RUN,
        f"{RUN}/checkpoints",
        f"{RUN}/checkpoints/last.ckpt",
        f"{RUN}/config.yaml",
    ),
    *(
        "nowhere",
        "nowhere/x.ckpt",
        "tiny.yaml/x",
        "folder",
        "fifo",
        "loop",
        "empty",
        "binary",
        "list.yaml",
        "bomb.yaml",
    ),
    *("deep.yaml", "/dev/null", "/dev/full", "/proc/self/mem", "~", "last", "best", "é\u202e🙂", "\udcff", "a" * 3000),
]
WORDS = [
    *(
        "",
        "x",
        "-",
        "--x",
        "=",
        "a=b",
        "%s",
        "{}",
        "\x01",
        "\x1b[31m",
        "\n",
        "\udcff",
        "é\u202e🙂",
        "a" * 3000,
        "9" * 5000,
    ),
    *("null", "true", "-1", "0", "1", "2", "2.5", "nan", "1e400", "[1]", "[[1, 2]]", "{a: 1}", "{", "&a [*a]", "*a"),
    *("!!python/object/apply:os.getcwd []", "!!set {a}", "2020-13-45", "2020-01-01", "? [1]", "a: b: c", "val/top1"),
]
ADDED = ["grid", "base", "scale", "experiment", "x", "rules", "started", "wandb", "num_threads"]
READ = {  # files that the commands read; the others read the config alone
    "test": ["tiny.yaml", f"{RUN}/checkpoints/last.ckpt", f"{RUN}/environment.yaml", f"{RUN}/config.yaml"],
    "export": [f"{RUN}/checkpoints/best.ckpt", *[f"{RUN}/config.yaml"] * 4],
    "report": [
        *(*[f"{RUN}/config.yaml"] * 4, *[f"{RUN}/environment.yaml"] * 3, f"{RUN}/metrics.csv", f"{RUN}/timings.csv"),
        *(f"{RUN}/arrays/partition.npz", f"{RUN}/arrays/cosines_1.npz"),
    ],
}
GRIDS = ["data.batch_size", "model.local_epochs", "trainer.callbacks", "data", "x", "", "data.partition.alpha"]
ENVIRONMENT = {
    "OMP_NUM_THREADS": ["", "x", "0", "-1", "2.5", "2,2", "9" * 30, " 1", "²"],
    "FL_LIGHTNING_DATA": ["", ".", "nowhere", "tiny.yaml", "loop", "/dev/null", "~nobody/x", "a" * 3000],
    "XDG_CACHE_HOME": ["", ".", "tiny.yaml", "loop", "a" * 3000],
    "WANDB_PROJECT": ["", "a/b", "\udcff", "a" * 3000, "%s"],
    "WANDB_ENTITY": ["", "a/b", "\udcff"],
    "WANDB_MODE": ["", "x", "offline"],
    "NETRC": ["", ".", "tiny.yaml", "binary", "loop", "fifo", "~nobody"],
    "GLIBC_TUNABLES": ["", "x"],
    "HOME": ["", "tiny.yaml", "nowhere"],
    "COLUMNS": ["", "x", "0", "-1", "2"],
    "TERM": ["", "dumb", "x"],
    "TMPDIR": ["", "nowhere"],
}
UNREACHABLE = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40}
# Each of these is a process of its own: the imports, the standard streams and the exit of Python belong to the case.
PROCESSES = [
    *(Line(("--version",), shell=shell) for shell in (">&-", ">/dev/full", "| true", "2>&-", ">&- 2>&-", "<&-")),
    *(Line(("reproduce", "--list"), shell=shell) for shell in (">&-", ">/dev/full", "| true", "<&- >&- 2>&-")),
    *(Line(("data", "--config=tiny.yaml"), shell=shell) for shell in (">&-", ">/dev/full", "2>&-", "<&- >&- 2>&-")),
    *(Line(("data", "--config=tiny.yaml"), environment={"OMP_NUM_THREADS": text}, shell=";") for text in ("", "x")),
    *(Line(arguments, gone=True) for arguments in (("--version",), ("reproduce", "--list"), ("report", "."))),
    *(Line(("fit", "--config=digits_gh.yaml"), gone=True),),
    *(Line(("data", "--config=tiny.yaml"), environment={"PYTHONIOENCODING": "ascii"}, shell=";"),),
    *(Line(("report", "\udcff"), shell=";"), Line(("\udcff",), shell=";"), Line(("",), shell=";"), Line((), shell=";")),
]


@cache
def options_of(command: str) -> list[str]:
    """Name the options of a command, with their dashes."""
    if command not in FederatedCLI.subcommands():
        return sorted(set(re.findall(r"--[\w-]+", run(command, "--help").out)))
    names = {action.dest for action in parser_of(command)._actions}
    return [*sorted(f"--{name}" for name in names - SKIPPED if not name.endswith(".help")), "--ckpt_path", "--config"]


def value_of(option: str, draw: random.Random) -> str:
    """Draw a value of an option: a path, a word, or a value of any type."""
    name = option.rpartition(".")[2].lstrip("-")
    if name == "grid":
        return f"{draw.choice(GRIDS)}={draw.choice(WORDS)}"
    odd = [value for value in ODD if name not in LABORIOUS | {"seeds", "jobs", "rounds"} or not is_large(value)]
    if name in ("devices", "num_nodes"):
        return draw.choice(["x", "0", "1.5"])  # a fork can start no other rank
    odd = [value for value in odd if value != "/"]
    values = [*WORDS, *(value if isinstance(value, str) else as_yaml(value) for value in odd)]
    if name in ("out", "figures", "plot"):  # not a FIFO: who writes into one rightly waits for its reader
        return draw.choice([place for place in PLACES if place != "fifo"])
    return draw.choice(PLACES if draw.random() < 0.3 or name in ("config", "ckpt_path") else values)


def with_option(line: Line, draw: random.Random) -> Line:
    """Add an option."""
    command, *rest = line.arguments
    option = draw.choice(options_of(command))
    form = draw.random()
    added = (option,) if form < 0.1 else (f"{option}={value_of(option, draw)}",)
    return replace(line, arguments=(command, *rest, *((option, value_of(option, draw)) if form > 0.8 else added)))


def with_place(line: Line, draw: random.Random) -> Line:
    """Replace an argument, or what it says, by a path; or leave it out."""
    command, *rest = line.arguments
    if not rest:
        return line
    at = draw.randrange(len(rest))
    name, sign, _ = rest[at].partition("=")
    rest[at] = f"{name}={value_of('--out' if name == '--out' else '--config', draw)}" if sign else draw.choice(PLACES)
    return replace(line, arguments=(command, *(rest if draw.random() < 0.9 else rest[:at] + rest[at + 1 :])))


def with_file(line: Line, draw: random.Random, staged: Path) -> Line:
    """Change a value of a YAML file that the command reads, or damage a file that it reads."""
    path = draw.choice(READ.get(line.arguments[0], ["tiny.yaml"]))
    content = (staged / path).read_bytes()
    if path.endswith(".yaml") and draw.random() < 0.9:
        return replace(line, files={**line.files, path: _changed(yaml.safe_load(content), draw)})
    at = draw.randrange(len(content) or 1)
    damaged = [content[:at], content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :], b"\0", b"", BOMB.encode()]
    return replace(line, files={**line.files, path: draw.choice([*damaged, *damaged[:2]])})


def _changed(data: Any, draw: random.Random) -> bytes:
    """Replace, delete or add one value; values near the root change as often as the many deep ones."""
    if not isinstance(data, dict):
        return b"1"
    parent: Any = data
    while True:
        key = draw.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        if not isinstance(parent[key], dict | list) or not parent[key] or draw.random() < 0.4:
            break
        parent = parent[key]
    parent[key] = draw.choice([value for value in ODD if not is_large(value) and value != "/"])
    if draw.random() < 0.2:
        del parent[key]
    elif draw.random() < 0.2:
        data[draw.choice(ADDED)] = draw.choice(ODD)
    return yaml.safe_dump(data, allow_unicode=True).encode()


def with_environment(line: Line, draw: random.Random) -> Line:
    """Set a variable of the environment, or delete the working directory."""
    if draw.random() < 0.1:
        return replace(line, gone=True, files={})
    if draw.random() < 0.1 and line.arguments[0] == "dashboard":
        return replace(line, environment={**line.environment, **UNREACHABLE})
    name = draw.choice(list(ENVIRONMENT))
    return replace(line, environment={**line.environment, name: draw.choice(ENVIRONMENT[name])})


def command_lines(count: int, seed: int, staged: Path) -> list[Line]:
    """Draw lines of all commands in turn, the same for the same seed."""
    draw, found = random.Random(seed), []
    faults: list[Callable[[Line], Line]] = [
        *(lambda line: with_option(line, draw), lambda line: with_place(line, draw)),
        *(lambda line: with_file(line, draw, staged), lambda line: with_environment(line, draw)),
    ]
    for number in range(count):
        command = list(SOUND)[number % len(SOUND)]
        line = Line((command, *draw.choice(SOUND[command])))
        for fault in draw.choices(faults, [5, 3, 4, 1], k=draw.choice([1, 1, 2, 3])):
            line = fault(line) if not line.gone else line
        found.append(line)
    return found
