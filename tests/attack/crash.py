"""Attacks runs with interruptions: each must go on to what the uninterrupted run gives, and leave no file behind.

    make attack

Trains SCAFFOLD on scikit-learn's digits again and again, with client states in memory and on disk, on one and two
devices, with and without TensorBoard and W&B. Interrupts each run several times: by SIGKILL, SIGTERM, SIGINT and SIGHUP
at random times, and by SIGKILL at random operations on files. Goes on with ``--ckpt_path last`` each time, compares
model, server optimizer, client states and metrics.csv with those of a run that was never interrupted, bit for bit, and
looks for files that nothing needs. With ``--full``, fills the disk instead: at random moments, a folder has no more
room; the run goes on when there is room again. The exit status is 1 if a run differs, or leaves a file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from lib.command import TINY
from safetensors.torch import load_file

from fl_lightning.cli import main as fl_lightning

ROUNDS = 10
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WRITING = {"os.rename", "os.remove", "os.mkdir", "os.truncate", "shutil.rmtree"}
LOGGERS = {"none": [], "tensorboard": ["TensorBoardLogger"], "wandb": ["WandbLogger"]}
IN_FORKS = "{class_path: lib.in_forks.InForks, init_args: {start_method: fork}}"
KNOWN = {"better.yaml", "config.yaml", "environment.yaml", "metrics.csv", "timings.csv"}
HANG = 300  # seconds after which a run hangs
GRACE = 15  # seconds after which the ranks of an interrupted run must have ended


@dataclass
class Case:
    """One run and what became of it.

    Attributes:
        number: the case's number, from which all its interruptions are drawn.
        states: place of the client states, "memory" or "disk".
        logger: name of the logger, a key of LOGGERS.
        devices: number of devices.
        interruptions: the signals and kills that stopped the run, in words, in order.
        faults: one sentence for each fault found; empty for a clean case.
    """

    number: int
    states: str
    logger: str
    devices: int
    interruptions: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def train(arguments: Sequence[str], folder: Path, stop_at: int | None) -> None:
    """Run ``fl-lightning`` in this process; kill the process at an operation on a file, counted from the start."""
    os.chdir(folder)
    os.setpgid(0, 0)
    with Path("log.txt").open("a") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    count = 0

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        if event in WRITING or (event == "open" and isinstance(args[1], str) and set("wax+") & set(args[1])):
            count += 1
            if count == stop_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    sys.exit(fl_lightning(arguments))


def arguments_of(case: Case, root: str, resume: bool) -> list[str]:
    """The arguments of ``fit`` for a case."""
    options = {"model.client_states": case.states, "trainer.max_epochs": ROUNDS, "trainer.default_root_dir": root}
    given = ["fit", "--config=tiny.yaml", "--trainer.callbacks+=Scaffold", "--trainer.enable_progress_bar=false"]
    given += [f"--{name}={value}" for name, value in options.items()]
    given += [f"--trainer.logger={name}" for name in LOGGERS[case.logger]]
    given += [f"--trainer.logger.save_dir={root}" for _ in LOGGERS[case.logger]]
    if case.logger == "wandb":
        given.append("--trainer.logger.offline=true")
    if case.devices > 1:
        given += [f"--trainer.devices={case.devices}", f"--trainer.strategy={IN_FORKS}"]
    return [*given, "--ckpt_path=last"] if resume else given


def start(case: Case, folder: Path, root: str = "runs", stop_at: int | None = None) -> Any:
    """Start a case's process, or go on with it; a run without a checkpoint begins anew."""
    resume = last(folder, root).is_file()
    if not resume:
        shutil.rmtree(folder / root / "tiny", ignore_errors=True)
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=train, args=(arguments_of(case, root, resume), folder, stop_at))
    process.start()
    return process


def last(folder: Path, root: str = "runs") -> Path:
    """Path of a run's last checkpoint."""
    return folder / root / "tiny/version_0/checkpoints/last.ckpt"


def attack(case: Case, folder: Path, whole: Path, interruptions: int) -> Case:
    """Interrupt a run, let it end, and compare it with the whole one."""
    draw = random.Random(case.number)
    prepare(folder)
    while len(case.interruptions) < interruptions:
        at_file = draw.random() < 0.4
        stop_at = draw.randrange(1, 100) if at_file else None
        process = start(case, folder, stop_at=stop_at)
        chosen = signal.SIGKILL if at_file else draw.choice(SIGNALS)
        process.join(HANG if at_file else draw.uniform(0.2, 3.0))
        if process.exitcode == 0:  # it was over before
            shutil.rmtree(folder / "runs")
            continue
        if process.exitcode is None:
            os.kill(process.pid, chosen)
            process.join(HANG)
        if process.exitcode is None:
            case.faults.append(f"hangs after {chosen.name}")
            os.killpg(process.pid, signal.SIGKILL)
            return case
        case.interruptions.append("a file operation" if at_file else chosen.name)
        if left := ranks_left(process.pid):
            case.faults.append(f"processes outlive {case.interruptions[-1]} by {GRACE} s: {left}")
            return case
    process = start(case, folder)
    process.join(HANG)
    if process.exitcode != 0:
        case.faults.append(f"status {process.exitcode} at the end")
    else:
        case.faults += differences(folder / "runs", whole / "runs")
    return case


def ranks_left(group: int) -> list[str]:
    """Wait until all processes of a group have ended; name those that have not after a while."""
    deadline = time.monotonic() + GRACE
    while True:
        left = [f"{each.pid} ({each.status()})" for each in psutil.process_iter() if belongs(each, group)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def belongs(process: psutil.Process, group: int) -> bool:
    """Whether a process is in a group."""
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid) == group
    return False


def prepare(folder: Path) -> None:
    """Make the folder of a case."""
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(TINY)


def differences(root: Path, whole: Path) -> list[str]:
    """Say in which way a run differs from the whole one, and name the files that nothing needs."""
    mine, theirs = root / "tiny/version_0", whole / "tiny/version_0"
    found = [
        f"another {name}" for name in ("metrics.csv",) if (mine / name).read_bytes() != (theirs / name).read_bytes()
    ]
    one, other = (torch.load(run / "checkpoints/last.ckpt", weights_only=True) for run in (mine, theirs))
    for part in ("state_dict", "optimizer_states", "rounds_done"):
        found += [] if same(one[part], other[part]) else [f"another {part}"]
    found += [] if same(states(mine, one), states(theirs, other)) else ["other client states"]
    return found + [f"a file too many: {path}" for path in orphans(mine, one)]


def same(one: Any, other: Any) -> bool:
    """Whether two nested structures are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def states(run: Path, checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Read the control variates of SCAFFOLD from the checkpoint or from the files that it names."""
    saved = checkpoint["callbacks"]["Scaffold"]
    if "numbers" not in saved:
        return dict(saved)
    return saved["shared"] | {name: load_file(run / "states/Scaffold" / file)["value"] for name, file in files(saved)}


def files(saved: dict[str, Any]) -> list[tuple[str, str]]:
    """Names of the states on disk, and their files."""
    names = json.loads(saved["names"])
    return [(name, f"{name}.{k}.safetensors") for name, k in zip(names, saved["numbers"].tolist(), strict=True)]


def orphans(run: Path, checkpoint: dict[str, Any]) -> list[str]:
    """Files in a run folder that no part of the product names."""
    saved = checkpoint["callbacks"]["Scaffold"]
    needed = (
        {"id", *(file for _, file in files(saved)), *(file for _, file in saved["replaced"])}
        if "id" in saved
        else set()
    )
    known = KNOWN | {f"states/Scaffold/{file}" for file in needed} | {"arrays/partition.npz"}
    known |= {f"checkpoints/{name}.ckpt" for name in ("last", "best")}
    paths = (str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    return sorted(path for path in paths if path not in known and "tfevents" not in path)


def fill(case: Case, folder: Path, whole: Path, disk: Path) -> Case:
    """Let a folder run out of room at a random moment, then make room and let the run end."""
    draw = random.Random(case.number)
    prepare(folder)
    root = disk / f"runs_{case.number}"
    process = start(case, folder, str(root))
    time.sleep(draw.uniform(0.2, 2.5))
    room = shutil.disk_usage(disk).free - draw.randrange(200_000)
    with (disk / "filler").open("wb") as filler, contextlib.suppress(OSError):  # the run was faster
        filler.write(bytes(max(room, 0)))
    process.join(HANG)
    lines = (folder / "log.txt").read_text().splitlines()
    case.interruptions.append(f"status {process.exitcode}")
    if process.exitcode and any("Traceback" in line for line in lines):
        case.faults.append("a traceback")
    (disk / "filler").unlink()
    process = start(case, folder, str(root))
    process.join(HANG)
    case.faults += [f"status {process.exitcode} at the end"] if process.exitcode else differences(root, whole / "runs")
    shutil.rmtree(root)
    return case


def main() -> int:
    """Attack all runs; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=100, help="number of runs (default 100)")
    parser.add_argument("--interruptions", type=int, default=5, help="interruptions of each run (default 5)")
    parser.add_argument("--first", type=int, default=0, help="number of the first run (default 0)")
    parser.add_argument("--full", type=Path, help="folder of a small disk to fill, such as a tmpfs of 8 MB")
    parser.add_argument("--out", type=Path, default=Path("runs/attack/crash"), help="where the runs go")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    out = options.out.absolute()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["fl_lightning.fit.command", "attack.crash"])
    whole = out / "whole"
    prepare(whole)
    process = start(Case(-1, "memory", "none", 1), whole)
    process.join()
    if process.exitcode:
        raise SystemExit(f"the whole run fails: {(whole / 'log.txt').read_text()[-2000:]}")
    kinds = [("none", 1), ("tensorboard", 1), ("none", 2), ("none", 1), ("wandb", 1), ("tensorboard", 2)]
    cases = [
        Case(number, ("disk", "memory")[number % 2 if options.full is None else 0], *kinds[number // 2 % len(kinds)])
        for number in range(options.first, options.first + options.runs)
    ]
    if options.full is not None:
        cases = [
            fill(Case(case.number, "disk", "none", 1), out / str(case.number), whole, options.full) for case in cases
        ]
    else:
        with ThreadPoolExecutor(2) as pool:
            cases = list(
                pool.map(lambda case: attack(case, out / str(case.number), whole, options.interruptions), cases)
            )
    return summary(cases)


def summary(cases: Sequence[Case]) -> int:
    """Print a table, and every fault; return the exit status."""
    for kind in sorted({(case.states, case.logger, case.devices) for case in cases}):
        group = [case for case in cases if (case.states, case.logger, case.devices) == kind]
        good = sum(not case.faults for case in group)
        print(
            f"states {kind[0]:6} logger {kind[1]:11} devices {kind[2]}: {good} of {len(group)} identical, nothing left"
        )
    print(dict(Counter(each for case in cases for each in case.interruptions)))
    for case in cases:
        if case.faults:
            print(f"run {case.number} ({', '.join(case.interruptions)}): {'; '.join(case.faults)}")
    return int(any(case.faults for case in cases))


if __name__ == "__main__":
    sys.exit(main())
