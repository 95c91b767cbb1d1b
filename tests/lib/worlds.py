"""Worlds whose clients come and go, and data for them."""

from pathlib import Path
from typing import Any

import torch

from fl_lightning import Availability, AvailabilityTrace
from lib.toy import GivenData


class Given(Availability):
    """Client k takes the time times[k], whatever its steps."""

    def __init__(self, *times: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.times = times

    def duration(self, client: int, num_steps: int, seed: int) -> float:
        return self.times[client]


def given(clients: int, **settings: Any) -> GivenData:
    """Client k sends (k, 1)."""
    return GivenData(-torch.tensor([[k, 1.0] for k in range(clients)], dtype=torch.float64), **settings)


def trace(folder: Path, text: str, **settings: Any) -> AvailabilityTrace:
    (folder / "trace.csv").write_text(text)
    return AvailabilityTrace(str(folder / "trace.csv"), **settings)
