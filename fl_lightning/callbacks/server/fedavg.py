"""FedAvg: how much each client counts."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_choice


class FedAvg(FederatedCallback):
    """Averages the updates by the clients' numbers of examples, or uniformly (McMahan et al., 2017, Algorithm 1).

    A run without any rule averages by the numbers of examples, too.

    Args:
        weighting: "samples" gives client k the weight n_k / Σ n, "uniform" gives every client 1/K.

    Raises:
        ConfigurationError: ``weighting`` is neither of these.
    """

    settles = frozenset({"base weights"})
    streams = True

    def __init__(self, weighting: Literal["samples", "uniform"] = "samples") -> None:
        check_choice("weighting", weighting, "samples", "uniform")
        self.weighting = weighting

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        if self.weighting == "uniform":
            return cohort.uniform()
        return cohort.replace(weights=cohort.num_samples.double() / cohort.num_samples.sum())

    @override
    def stream_weights(self, orchestrator: Server, cohort: Cohort, weights: Tensor) -> Tensor:
        return torch.ones_like(weights) if self.weighting == "uniform" else cohort.num_samples.double()
