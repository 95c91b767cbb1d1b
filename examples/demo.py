"""Compare FedAvg with FedAvg + gradient harmonization on the digits, 20 clients, alpha = 0.1. Run: ``make demo``."""

from pathlib import Path

import pandas as pd

from fl_lightning.cli import main

RUNS = {
    "FedAvg": ["--experiment", "demo/fedavg", "--trainer.callbacks", "ConflictMonitor"],
    "FedAvg + GH": ["--experiment", "demo/fedavg_gh"],
}
folders = {}
for method, arguments in RUNS.items():
    print(f"\n{method}: fl-lightning fit --config digits_gh.yaml {' '.join(arguments)}")
    if status := main(["fit", "--config", "digits_gh.yaml", *arguments]):
        raise SystemExit(status)
    versions = Path("runs", arguments[1]).glob("version_*")
    folders[method] = max(versions, key=lambda folder: folder.stat().st_mtime)

print()
for method, folder in folders.items():
    last = pd.read_csv(folder / "metrics.csv").iloc[-1]
    before, after = last["conflict/ratio"], last["conflict/ratio_after"]
    corrected = f" → {after:.1%} after correction" if after != before else ""
    print(f"{method}: top-1 {last['val/top1']:.2%}, conflicting pairs of clients {before:.1%}{corrected}")
raise SystemExit(main(["report", *map(str, folders.values()), "--names", *folders, "--out", "runs/demo/report.html"]))
