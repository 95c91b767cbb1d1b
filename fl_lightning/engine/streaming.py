"""Streaming: the weights of updates that are summed as they come."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from fl_lightning.engine.callback import FederatedCallback, Monitor
from fl_lightning.engine.cohort import Cohort


def stream_weights(callbacks: Iterable[FederatedCallback], cohort: Cohort) -> Tensor:
    """Compute the weights (k,) of some clients' updates in the sum, up to a factor that all of a round share."""
    weights = cohort.num_samples.double()
    for callback in callbacks:
        if not isinstance(callback, Monitor):
            weights = callback.stream_weights(cohort, weights)
    return weights
