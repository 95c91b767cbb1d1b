"""Norm clipping: no update is longer than a threshold."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server


def clipping_factors(norms: Tensor, threshold: float) -> Tensor:
    """Compute the factors (K,) min(1, threshold / norm) for vectors with the norms (K,); 1 for a zero vector.

    >>> import torch
    >>> from fl_lightning.callbacks.server.norm_clipping import clipping_factors
    >>> clipping_factors(torch.tensor([0.0, 1.0, 4.0]), threshold=2.0).tolist()
    [1.0, 1.0, 0.5]
    """
    return torch.where(norms > threshold, threshold / norms, 1.0)


class NormClipping(FederatedCallback):
    """Scales each update down to a norm of at most the threshold (Sun et al., 2019).

    Sun et al., "Can You Really Backdoor Federated Learning?" (2019), "Norm thresholding of updates", without the noise
    that the paper adds as a second defence. The rule changes neither the updates' directions nor the weights.

    Args:
        threshold: > 0, the largest norm. None takes the median norm of the round's updates (of an even number, the mean
            of the two middle norms), which follows the training; the paper's threshold is fixed.

    Raises:
        ConfigurationError: threshold is out of range.
    """

    settles = frozenset({"updates"})
    anonymous = True
    streams = True
    needs_each_client = "reads the norms of single updates"

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is not None and not threshold > 0:
            raise ConfigurationError(f"threshold must be greater than 0, or None for the median norm, got {threshold}")
        self.threshold = threshold
        self.streams = threshold is not None  # type: ignore[misc]  # the median is known only at the round's end

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        threshold = float(cohort.norms.quantile(0.5)) if self.threshold is None else self.threshold
        return cohort.scaled(clipping_factors(cohort.norms, threshold))

    @override
    def stream_weights(self, orchestrator: Server, cohort: Cohort, weights: Tensor) -> Tensor:
        return weights if self.threshold is None else weights * clipping_factors(cohort.norms, self.threshold)
