"""Run folders written by hand, as ``fl-lightning reproduce`` finds them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fl_lightning.reproduce.runs import Run


def finished(folder: Path, seed: int = 1, cosines: Sequence[Sequence[float]] = (), **metrics: Sequence[float]) -> Run:
    """A run's folder: a value a round of each metric (``top1`` for val/top1), nan for none; cosines after the last."""
    rounds = max(map(len, metrics.values()), default=4)
    run = Run("a run", (), seed, rounds, folder / f"seed_{seed}")
    run.metrics.parent.mkdir(parents=True)
    columns = {"val/top1" if name == "top1" else name: values for name, values in metrics.items()}
    pd.DataFrame(columns, index=pd.RangeIndex(1, rounds + 1, name="round")).to_csv(run.metrics)
    if len(cosines):
        (run.metrics.parent / "arrays").mkdir()
        both = {"before": np.array(cosines), "after": np.eye(len(cosines))}
        np.savez(run.metrics.parent / "arrays" / f"cosines_{rounds}.npz", clients=range(len(cosines)), **both)
    (run.folder / "finished.json").write_text(json.dumps({"seconds": 1.0}))
    return run
