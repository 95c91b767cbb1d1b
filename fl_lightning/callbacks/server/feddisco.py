"""FedDisco: clients with unbalanced classes count less."""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_not_negative
from fl_lightning.callbacks.client.classes import class_counts

NOTHING = 1e-12  # weight of a client that is to weigh nothing, in shares of the examples


class FedDisco(FederatedCallback):
    """Weighs clients by their examples, and less the further their classes are from even (Ye et al., 2023).

    Client k has the weight max(0, n_k / n - a d_k + b). d_k is the Euclidean distance of the client's class shares from
    1 / C, and n the number of all clients' examples. Where every client of a cohort would weigh nothing, as with the
    paper's a and b on strong label skew, the weights are those of FedAvg, by n_k. The released code, for which its a
    and b are chosen, takes the Kullback-Leibler divergence divided by its sum over the cohort as d_k by default, and n
    as the number of the cohort's examples.

    Args:
        a: a >= 0, weight of the distance; the paper uses 0.5.
        b: b >= 0, what is added to each weight; the paper uses 0.1.

    Raises:
        ConfigurationError: an argument is negative; the data module does not know its ``class_counts``.
    """

    settles = frozenset({"weights"})
    reads = frozenset({"class counts"})
    streams = True

    def __init__(self, a: float = 0.5, b: float = 0.1) -> None:
        check_not_negative(a=a, b=b)
        self.a, self.b = a, b

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        counts = class_counts(self, trainer.datamodule).double()  # type: ignore[attr-defined]
        shares, sizes = counts / counts.sum(1, keepdim=True).clamp(min=1), counts.sum(1)
        apart = (shares - 1 / counts.shape[1]).norm(dim=1)
        scores = (sizes / sizes.sum() - self.a * apart + self.b).clamp(min=0)
        self.scores = torch.where(scores > 0, scores, NOTHING * sizes / sizes.sum())

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        weights = self.stream_weights(orchestrator, cohort, cohort.weights)
        return cohort.replace(weights=weights / weights.sum())

    @override
    def stream_weights(self, orchestrator: Server, cohort: Cohort, weights: Tensor) -> Tensor:
        return self.scores[list(cohort.clients)]
