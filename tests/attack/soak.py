"""Trains thousands of rounds, and says whether memory, open files or the time of a round grow.

    make attack

Trains a 2NN on scikit-learn's digits, ten clients and one step a round, with SCAFFOLD's states on disk, in a process
of its own. Prints for each measure the mean and the slope over the rounds after the first tenth, with a 95 % interval:
an interval that contains 0 is no growth beyond noise.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from lib.command import TINY
from scipy import stats


def main() -> int:
    """Train, and print the slopes; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5000, help="number of rounds (default 5000)")
    parser.add_argument("--out", type=Path, default=Path("runs/attack/soak"), help="where the run goes")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    (options.out / "tiny.yaml").write_text(TINY)
    command = [str(Path(sys.executable).with_name("fl-lightning")), "fit", "--config", "tiny.yaml"]
    command += ["--trainer.max_epochs", str(options.rounds), "--data.num_clients", "10", "--data.partition", "IID"]
    command += ["--trainer.callbacks+=Scaffold", "--model.client_states", "disk", "--model.local_steps", "1"]
    command += ["--trainer.check_val_every_n_epoch", "100"]
    began = time.monotonic()
    running = subprocess.Popen(command, cwd=options.out, stdout=subprocess.DEVNULL)
    process, run, opened = psutil.Process(running.pid), options.out / "runs/tiny/version_0", []
    while running.poll() is None:
        time.sleep(1)
        if (run / "timings.csv").exists() and running.poll() is None:
            opened.append(process.num_fds())
    if running.returncode:
        return 1
    timings = pd.read_csv(run / "timings.csv").iloc[options.rounds // 10 :]
    quick = timings[timings["round"] % 100 != 0]  # the other rounds evaluate, too
    print(f"{options.rounds} rounds of 10 clients in {time.monotonic() - began:.0f} s")
    say("seconds per round", quick["round"], quick["seconds"], "s")
    say("memory", timings["round"], timings["memory_mib"], "MiB")
    half = np.array(opened[len(opened) // 10 :])
    say("open files", pd.Series(np.linspace(options.rounds / 10, options.rounds, len(half))), pd.Series(half), "")
    print(
        f"metrics.csv: {(run / 'metrics.csv').stat().st_size / 1e6:.2f} MB; files in the run folder: "
        f"{sum(path.is_file() for path in run.rglob('*'))}"
    )
    return 0


def say(name: str, rounds: pd.Series, values: pd.Series, unit: str) -> None:
    """Print the mean and the slope of a measure per 1,000 rounds."""
    blocks = np.array_split(np.arange(len(values)), 40)  # means of blocks, whose noise is nearly independent
    x = [float(rounds.iloc[block].mean()) for block in blocks if len(block)]
    y = [float(values.iloc[block].median()) for block in blocks if len(block)]
    line = stats.linregress(x, y)
    half = stats.t.ppf(0.975, len(x) - 2) * line.stderr
    print(
        f"{name}: mean {values.mean():.4g} {unit}, slope {1000 * line.slope:+.2g} ± {1000 * half:.2g} per 1,000 rounds"
    )


if __name__ == "__main__":
    sys.exit(main())
