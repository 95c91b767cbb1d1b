"""CoherenceMonitor: whether the clients of a cohort strengthen each other, and whether they stand for all."""

from collections.abc import Sequence
from statistics import fmean

import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedDataModule, Monitor, Server, cosines, log_each, pairs


def local_coherence(gram: Tensor, weights: Tensor) -> float:
    """Local gradient coherence of a cohort, 1/m Σ_{i≠j} λ_i λ_j cos(g_i, g_j) (Li et al., 2023, Definition 5.1).

    Every pair counts twice, once in each order. With equal weights it is (m - 1) / m² times the mean cosine: its size
    falls with m, so that its sign can be compared between cohorts of different sizes, and its value cannot.

    Args:
        gram: (m, m) inner products of the updates; those of gradients would have the same cosines.
        weights: (m,) λ.

    Returns:
        In [-1/m, 1/m] for weights that sum to 1.
    """
    return 2 * float(pairs(cosines(gram) * weights.outer(weights)).sum()) / len(gram)


def class_shares(counts: Tensor) -> Tensor:
    """(N, C) numbers of examples to (N, C) shares of each client's own; all zero for a client without any."""
    return counts.double() / counts.sum(1, keepdim=True).clamp(min=1)


def critical_round(coherence: Sequence[float], window: int = 5) -> int | None:
    """The round after which the clients no longer strengthen each other: the "critical point" of FedLAW, Section 5.2.

    The paper reads it off a curve, as the round in which the coherence has fallen from positive values to about zero.
    Here it is the first round with a negative centred mean after one with a positive one. The mean over a round and
    (window - 1) / 2 on either side of it, those before the first left out, keeps a single round from deciding; a mean
    over past rounds alone would come late.

    Args:
        coherence: ``coherence/local`` of round 1, 2, …
        window: rounds in a mean, odd.

    Returns:
        The round, 1, 2, …; None as long as there is none.

    Raises:
        ConfigurationError: the window is not odd and positive.
    """
    if not window % 2 == 1 or window < 1:
        raise ConfigurationError(f"window must be an odd number of rounds, got {window}")
    half, positive = window // 2, False
    for index in range(len(coherence) - half):
        mean = fmean(coherence[max(index - half, 0) : index + half + 1])
        if positive and mean < 0:
            return index + 1
        positive = positive or mean > 0
    return None


class CoherenceMonitor(Monitor):
    """Logs FedLAW's client coherence (Li et al., 2023, Section 5) under any rule and without changing it.

    λ are the cohort's final weights, updates those that came.

    - ``coherence/local``: see :func:`local_coherence`. A cohort of one client has none.
    - ``coherence/heterogeneity``: sim(D_cohort, D), where D_cohort = Σ λ_k D_k mixes the class shares D_k of the
      cohort's clients, and D is the mix of all clients by n_k (Definition 5.2). The paper leaves "sim" open; here it is
      the cosine: in [0, 1], and 1 if the cohort has the classes in the federation's proportions.
    - ``cohort/share/<class>``: D_cohort, which sums to 1 (Fig. 7); to the loggers alone, as it can be long.

    The last two need a data module that knows its ``class_counts``.
    """

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Who holds which classes does not change while a fit lasts.
        data: FederatedDataModule = trainer.datamodule  # type: ignore[attr-defined]  # set outside Trainer.__init__
        self._counts = data.class_counts()

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if len(cohort.clients) > 1:
            orchestrator.log_round("coherence/local", local_coherence(cohort.gram, cohort.weights))
        if self._counts is not None:
            mix = cohort.weights @ class_shares(self._counts[list(cohort.clients)])
            similarity = float(F.cosine_similarity(mix, self._counts.sum(0).double(), dim=0).clamp(max=1))
            orchestrator.log_round("coherence/heterogeneity", similarity)
            log_each(orchestrator, "cohort/share", range(len(mix)), (mix / mix.sum()).tolist())
