"""Compare FedAvg with FedAvg + gradient harmonization on the digits, 20 clients, alpha = 0.1. Run: ``make demo``."""

from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from fl_lightning.cli import main

RUNS = {
    "FedAvg": ["--experiment", "demo/fedavg", "--trainer.callbacks", "ConflictMonitor"],
    "FedAvg + GH": ["--experiment", "demo/fedavg_gh"],
}
COLUMNS = {"val/top1": "top-1 %", "val/top3": "top-3 %", "conflict/ratio": "conflicting pairs %"}


def newest(experiment: str) -> Path:
    """Return the newest run folder of an experiment."""
    return max(Path("runs", experiment).glob("version_*"), key=lambda folder: folder.stat().st_mtime)


table = Table("method", *COLUMNS.values(), title="Digits, 20 clients, Dirichlet(0.1), seed 1")
folders = []
for method, arguments in RUNS.items():
    if status := main(["fit", "--config", "digits_gh.yaml", *arguments]):
        raise SystemExit(status)
    folder = newest(arguments[1])
    last = pd.read_csv(folder / "metrics.csv").iloc[-1]
    table.add_row(method, *(f"{100 * last[name]:.1f}" for name in COLUMNS))
    folders.append(folder)
Console().print(table)
print("run folders:", *folders)
print("beside each other in a browser: fl-lightning report", *folders)
