"""One page about two methods with two seeds each, with all sections, for all tests of reports."""

from pathlib import Path

import numpy as np
import pytest
from lib.command import run
from report.folders import NAMES, config, similar, write

COLUMNS = ["conflict/ratio", "conflict/layer/fc", "coherence/local", "fedlaw/gamma", "hessian/eigenvalue_1"]
COLUMNS += [f"{group}/{client}" for group in ("fedlaw/weight", "clients/loss") for client in range(len(NAMES))]
# By seed, the first and the last of six values: intervals of two seeds are as wide as 12.7 times half their distance.
RISING = {"val/top1": {1: (0.5, 0.9), 2: (0.7, 0.95)}, "train/loss": {1: (1, 2), 2: (2, 2.5)}}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedLAW with seeds 1 and 2 in version_0 and version_1, FedNova in version_2 and version_3, and report.html."""
    folder, draw = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    for number, (rule, seed) in enumerate([("FedLAW", 1), ("FedLAW", 2), ("FedNova", 1), ("FedNova", 2)]):
        metrics = {name: np.linspace(*ends[seed], 6).tolist() for name, ends in RISING.items()}
        metrics |= {name: draw.random(6) for name in COLUMNS}
        metrics |= {"val/loss": [-0.1, *draw.random(5)]}
        cosines = {
            f"cosines_{n}": {"clients": range(4), "before": similar(4, draw), "after": similar(4, draw)}
            for n in (2, 4, 6)
        }
        write(
            folder / f"version_{number}",
            metrics,
            config(rule, "ConflictMonitor", seed=seed),
            {name: draw.random(6) for name in ("seconds", "local", "server", "memory_mib", "gpu_mib")},
            {"versions": {"torch": f"2.{seed}"}, "command": "fl-lightning fit --config digits_gh.yaml " * 4},
            partition={"sizes": [4, 3, 2, 1], "counts": [[4, 0], [0, 3], [1, 1], [1, 0]], "names": NAMES},
            **{f"surface_{n}": {"steps": [-1.0, 0.0, 1.0], "loss": draw.random((3, 3))} for n in (3, 6)},
            **cosines,
        )
    assert run("report", folder).status == 0
    return folder
