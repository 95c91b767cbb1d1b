"""Tables of results written by hand, as ``collect`` reads them from runs; B is claimed to be better than A."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fl_lightning.reproduce.experiments.experiment import Claim

A, B = {"method": "A"}, {"method": "B"}
BETTER = Claim("B is better", B, A)


def runs(values: Mapping[Any, Sequence[float]], *axes: str, round: int = 10) -> pd.DataFrame:
    """Results: labels of the axes (method unless named) to top-1 of seeds 1, 2, …; nan for a run that failed."""
    axes = axes or ("method",)
    cells = [(dict(zip(axes, labels, strict=True)), seeds) for labels, seeds in values.items()]
    return pd.DataFrame(
        [
            {"round": round, **labels, "seed": seed, "top1": value}
            for labels, seeds in cells
            for seed, value in enumerate(seeds, 1)
            if not math.isnan(value)
        ]
    )[[*(axis for axis in axes if axis != "round"), "round", "seed", "top1"]]
