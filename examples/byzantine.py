"""Compare Byzantine-robust server rules on the digits: 4 of 20 clients send -10 times their update.

Prints a Markdown table of val/top1 in percent after the last round: the mean over the seeds, then the value of each
seed; nan where the model diverges. Data and local training are those of configs/rules/median.yaml, but for the
partition. Takes a few minutes; every run writes its folder into runs/byzantine/.
"""

import contextlib
import io
import math
from pathlib import Path

import pandas as pd

from fl_lightning.cli import main

SEEDS = (1, 2, 3)
ROUNDS = 40
ATTACK = "{class_path: SignFlip, init_args: {num_byzantine: 4, scale: 10.0}}"
PARTITIONS = {"IID": "{class_path: IID}", "Dirichlet(0.5)": "{class_path: Dirichlet, init_args: {alpha: 0.5}}"}
METHODS = {  # name of the method: its callbacks
    "FedAvg, no attack": ["{class_path: FedAvg}"],
    "FedAvg": [ATTACK, "{class_path: FedAvg}"],
    "Krum": [ATTACK, "{class_path: Krum, init_args: {num_byzantine: 4}}"],
    "Multi-Krum, m = 12": [ATTACK, "{class_path: Krum, init_args: {num_byzantine: 4, num_selected: 12}}"],
    "CoordinateMedian": [ATTACK, "{class_path: CoordinateMedian}"],
    "TrimmedMean, 0.2": [ATTACK, "{class_path: TrimmedMean, init_args: {ratio: 0.2}}"],
    "GeometricMedian": [ATTACK, "{class_path: GeometricMedian}"],
    "NormClipping, median norm": [ATTACK, "{class_path: NormClipping}"],
    "CentredClipping, τ = 0.2": [ATTACK, "{class_path: CentredClipping, init_args: {threshold: 0.2}}"],
    "GradientHarmonization": [ATTACK, "{class_path: GradientHarmonization}"],
}


def top1(callbacks: list[str], partition: str, seed: int) -> float:
    """Train one run and return its last val/top1 in percent; nan if the model diverges until no update is finite."""
    arguments = ["fit", "--config", "rules/median.yaml", "--experiment", "byzantine", "--seed_everything", str(seed)]
    arguments += ["--trainer.callbacks", f"[{', '.join(callbacks)}]", "--data.partition", partition]
    arguments += ["--trainer.max_epochs", str(ROUNDS), "--trainer.check_val_every_n_epoch", str(ROUNDS)]
    arguments += ["--trainer.enable_progress_bar", "false", "--trainer.enable_checkpointing", "false"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            status = main(arguments)
    except RuntimeError as error:
        if "finite" not in str(error):
            raise
        return math.nan
    if status:
        raise SystemExit(status)
    newest = max(Path("runs", "byzantine").glob("version_*"), key=lambda folder: folder.stat().st_mtime)
    return 100 * float(pd.read_csv(newest / "metrics.csv")["val/top1"].iloc[-1])


print(f"| rule | {' | '.join(PARTITIONS)} |\n|---{'|---' * len(PARTITIONS)}|")
for method, callbacks in METHODS.items():
    cells = []
    for partition in PARTITIONS.values():
        values = [top1(callbacks, partition, seed) for seed in SEEDS]
        cells.append(f"**{sum(values) / len(values):.1f}** ({', '.join(f'{value:.1f}' for value in values)})")
    print(f"| {method} | {' | '.join(cells)} |", flush=True)
