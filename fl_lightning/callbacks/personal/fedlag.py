"""FedLAG: layers in which clients conflict become their own."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import (
    Buffers,
    Cohort,
    ConfigurationError,
    FederatedCallback,
    LocalRun,
    Server,
    check_at_least,
    cosines,
    pairs,
)
from fl_lightning.callbacks.server.by_layer import grams


def conflict_counts(layers: list[Tensor], threshold: float) -> Tensor:
    """Count, in each layer, the pairs of updates with a cosine below a threshold.

    >>> import torch
    >>> from fl_lightning.callbacks.personal.fedlag import conflict_counts
    >>> updates = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [0.0, 1.0]]).double()
    >>> conflict_counts([updates @ updates.T, torch.eye(3).double()], threshold=0.0)
    tensor([1, 0])

    Args:
        layers: for each of the L layers, the inner products (K, K) of the updates' parts.
        threshold: the threshold.

    Returns:
        (L,) counts.
    """
    return torch.stack([(pairs(cosines(gram)) < threshold).sum() for gram in layers])


class FedLAG(FederatedCallback):
    """Keeps on each client the layers in which updates conflict most (Nguyen et al., 2024).

    Nguyen et al., "Towards Layer-Wise Personalized Federated Learning: Adaptive Layer Disentanglement via Conflicting
    Gradients". In the first rounds, all layers are averaged, and the pairs of updates with a cosine below ξ are
    counted. From then on, the layers with the most such pairs are the clients' own, and their updates are not sent.
    Each parameter is a layer, and equal counts go to the first one, as in the released code, which compares the
    gradients of the clients' last batches in place of updates; there, nothing reaches the clients after the first
    rounds, here the other layers go on to be shared. A client begins its own layers at the global ones.
    :class:`LocalPart` keeps layers that are named.

    Args:
        warmup: number of rounds in which conflicts are counted, at least 1; the released code has 30, or half of all.
        layers: number of parameters that become the clients' own, at least 1; the released code has 2.
        threshold: ξ in [-1, 1], the cosine below which a pair counts.

    Raises:
        ConfigurationError: an argument is out of range; the client module has no more parameters than ``layers``.
    """

    broadcasts = ("own",)
    stacks = True

    def __init__(self, warmup: int = 30, layers: int = 2, threshold: float = 0.0) -> None:
        check_at_least(1, warmup=warmup, layers=layers)
        if not -1 <= threshold <= 1:
            raise ConfigurationError(f"threshold must be in [-1, 1], got {threshold}")
        self.warmup, self.layers, self.threshold = warmup, layers, threshold

    @override
    def start(self, orchestrator: Server, client: int, params: Tensor, buffers: Buffers) -> tuple[Tensor, Buffers]:
        own = self._own(orchestrator)
        if own is None:
            return params, buffers
        params = params.clone()
        params[own] = self.recall(f"layers/{client}", params[own])
        return params, buffers

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        own = self._own(orchestrator)
        if own is not None:
            self.keep(run, "layers", run.params[own])

    @override
    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        own = self._own(orchestrator)
        if own is None:
            return update
        run.upload_bytes = int((~own).sum()) * update.element_size()
        return update.masked_fill(own, 0.0)

    def _own(self, orchestrator: Server) -> Tensor | None:
        """Return the mask (P,) of the clients' own layers; None while there are none."""
        start = torch.full((self.layers,), -1, device=orchestrator.params.device)
        chosen = self.recall("own", start).tolist()
        if chosen[0] < 0:
            return None
        names = orchestrator.flat.names
        return orchestrator.mask_of(names[number] for number in chosen)

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        if "own" in self.state:
            return cohort
        sizes = [part.numel() for part in orchestrator.split(cohort.anchor)]
        if len(sizes) <= self.layers:
            raise ConfigurationError(
                f"FedLAG with layers={self.layers} needs a module with more parameters than that, got {len(sizes)}"
            )
        counts = conflict_counts(list(grams(cohort, sizes)), self.threshold)
        self.state["counts"] = self.recall("counts", torch.zeros_like(counts)) + counts
        if cohort.round >= self.warmup:
            self.state["own"] = self.state["counts"].argsort(descending=True, stable=True)[: self.layers]
        return cohort
