"""Jobs' folders written by hand, as ``fl-lightning reproduce`` finds them."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fl_lightning.reproduce.jobs import Job


def finished(folder: Path, seed: int = 1, cosines: Sequence[Sequence[float]] = (), **metrics: Sequence[float]) -> Job:
    """A job's folder: a value a round of each metric (``top1`` for val/top1), nan for none; cosines after the last."""
    rounds = max(map(len, metrics.values()), default=4)
    job = Job("a job", (), seed, rounds, folder / f"seed_{seed}")
    job.run.folder.mkdir(parents=True)
    columns = {"val/top1" if name == "top1" else name: values for name, values in metrics.items()}
    table = pd.DataFrame(columns, index=pd.RangeIndex(1, rounds + 1, name="round"))
    table.to_csv(job.run.folder / "metrics.csv")
    if len(cosines):
        (job.run.folder / "arrays").mkdir()
        both = {"before": np.array(cosines), "after": np.eye(len(cosines))}
        np.savez(job.run.folder / "arrays" / f"cosines_{rounds}.npz", clients=range(len(cosines)), **both)
    (job.folder / "finished.json").write_text(json.dumps({"seconds": 1.0, "versions": {"torch": "2.0"}}))
    return job


def under_way(folder: Path, seed: int = 1, rounds: int = 4, seconds: float = 40.0, **metrics: Sequence[float]) -> Job:
    """A job's folder after as many rounds as the metrics have values; each round took ``seconds``."""
    done = finished(folder, seed, **metrics)
    (done.folder / "finished.json").unlink()
    parts = dict.fromkeys(("local", "server", "monitors", "memory_mib", "gpu_mib"), 0.0)
    times = pd.DataFrame({"seconds": seconds, **parts}, index=pd.RangeIndex(1, done.rounds + 1, name="round"))
    times.to_csv(done.run.folder / "timings.csv")
    return dataclasses.replace(done, rounds=rounds)


def waiting(folder: Path, seed: int = 1, rounds: int = 4) -> Job:
    """A job that has not begun."""
    return Job(("a job",), (), seed, rounds, folder / f"seed_{seed}")
