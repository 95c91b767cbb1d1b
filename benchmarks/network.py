"""Run a federation over gRPC on this machine, and the same run here: seconds a round, to the first one, and memory.

    python -m benchmarks.network --sites 3 10
    python -m benchmarks.network --sites 3 --hidden 3280      # 11 million parameters

All sites and the server share this machine, over mutual TLS on loopback. *Here* is the median round of ``fit``, which
trains one client after another on one thread; *over gRPC* that of ``serve``, whose sites share the cores. The first
round counts in neither. The memory is the largest of a process, without what it shares with others.
"""

import argparse
import csv
import os
import socket
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

from fl_lightning.network.kits import make_kits

COMMAND = str(Path(sys.executable).with_name("fl-lightning"))
MIB = 2**20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def options(asked: Namespace, sites: int) -> list[str]:
    """Return the options that the commands of one run share: the digits, dealt evenly, and a 2NN."""
    given = {
        "config": "digits_gh.yaml",
        "data.num_clients": sites,
        "data.partition": "IID",
        "trainer.max_epochs": asked.rounds,
        "trainer.enable_progress_bar": "false",
        "model.local_epochs": 1,
    }
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    if asked.hidden:
        words += ["--model.client.network", "MultilayerPerceptron", "--model.client.network.in_features", "64"]
        words += ["--model.client.network.hidden", f"[{asked.hidden},{asked.hidden}]"]
    return words


def rounds_of(run: Path) -> list[float]:
    """The seconds of each round but the first."""
    with (run / "timings.csv").open() as lines:
        return [float(row["seconds"]) for row in csv.DictReader(lines)][1:]


def most_memory(processes: "Sequence[subprocess.Popen[bytes]]", last: "subprocess.Popen[bytes]") -> list[float]:
    """The largest memory of each process, in MiB, until the last one ends."""
    most = [0.0] * len(processes)
    while last.poll() is None:
        for place, process in enumerate(processes):
            with suppress(psutil.Error):
                most[place] = max(most[place], psutil.Process(process.pid).memory_full_info().uss / MIB)
        time.sleep(0.2)
    return most


def measure(asked: Namespace, sites: int, folder: Path) -> None:
    names = [f"site{number}" for number in range(sites)]
    make_kits(names, "localhost", folder / "kits", free_port())
    shared = options(asked, sites)
    quiet = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    fit = subprocess.Popen([COMMAND, "fit", *shared, "--trainer.devices", "1", "--experiment", "here"], **quiet)
    alone = most_memory([fit], fit)
    shared += ["--network.sites", f"[{','.join(names)}]", "--network.dealt", "true"]
    joins = [subprocess.Popen([COMMAND, "join", *shared, "--network.kit", f"kits/{name}"], **quiet) for name in names]
    began = time.monotonic()
    serve = [COMMAND, "serve", *shared, "--network.kit", "kits/server", "--experiment", "over"]
    server = subprocess.Popen(serve, **quiet)
    most = most_memory([*joins, server], server)
    for join in joins:
        join.wait()
    if server.returncode:
        raise SystemExit(f"serve ended with status {server.returncode}")
    whole = time.monotonic() - began
    here = median(rounds_of(folder / "runs/here/version_0"))
    over = rounds_of(folder / "runs/over/version_0")
    site, at_server = median(most[:-1]), most[-1]
    print(
        f"{sites} sites: here {here:.2f} s a round, over gRPC {median(over):.2f} s ({min(over):.2f} to "
        f"{max(over):.2f}), {median(over) - here:+.2f} s; all of it {whole:.0f} s; memory of fit {alone[0]:,.0f} MiB, "
        f"a site {site:,.0f}, the server {at_server:,.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network")
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=0, help="width of the 2NN's layers; by default the config's")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for sites in asked.sites:
        with tempfile.TemporaryDirectory() as folder:
            measure(asked, sites, Path(folder))


if __name__ == "__main__":
    main()
