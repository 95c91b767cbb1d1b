"""CoherenceMonitor: whether the clients of a cohort strengthen each other, and whether they represent all clients."""

import math

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedDataModule, Metric, Monitor, Server, cosines, log_each, pairs
from fl_lightning.runs.critical_round import critical_round as critical_round  # a public name of this module


def local_coherence(gram: Tensor, weights: Tensor) -> float:
    """Local gradient coherence of a cohort, 1/m Σ_{i≠j} λ_i λ_j cos(g_i, g_j) (Li et al., 2023, Definition 5.1).

    Every pair counts twice, once in each order. With equal weights the coherence is (m - 1) / m² times the mean cosine.
    Its magnitude falls with m: between cohorts of different sizes, compare the sign and not the value.

    Two clients of equal weight with opposite updates: 1/2 · 2 · 1/4 · (-1).

    >>> import torch
    >>> from fl_lightning.callbacks.monitors.coherence import local_coherence
    >>> updates = torch.tensor([1.0, -3.0]).double()  # two updates of one coordinate
    >>> local_coherence(updates.outer(updates), weights=torch.tensor([0.5, 0.5]).double())
    -0.25

    Args:
        gram: (m, m) inner products of the updates of m clients; gradients would have the same cosines.
        weights: (m,) λ, the clients' weights.

    Returns:
        The coherence, in [-1/m, 1/m] for weights that sum to 1.
    """
    return 2 * float(pairs(cosines(gram) * weights.outer(weights)).sum()) / len(gram)


def class_shares(counts: Tensor) -> Tensor:
    """Turn each client's class counts (N, C) into shares (N, C) of its examples; zeros for a client without examples.

    >>> import torch
    >>> from fl_lightning.callbacks.monitors.coherence import class_shares
    >>> class_shares(torch.tensor([[3, 1], [0, 0]])).tolist()
    [[0.75, 0.25], [0.0, 0.0]]
    """
    return counts.double() / counts.sum(1, keepdim=True).clamp(min=1)


class CoherenceMonitor(Monitor):
    """Logs whether a cohort's updates agree and its classes represent all clients (Li et al., 2023, Section 5).

    λ_k are the cohort's final weights. The updates are those that the clients sent. The monitor changes nothing.

    - ``coherence/local``: see :func:`local_coherence`; not logged for a cohort of one client.
    - ``coherence/heterogeneity``: sim(D_cohort, D), where D_cohort = Σ λ_k D_k mixes the class shares D_k of the
      cohort's clients, and D mixes those of all clients by n_k (Definition 5.2). The paper leaves "sim" open; here it
      is the cosine: in [0, 1], and 1 if the cohort has the classes in the federation's proportions.
    - ``cohort/share/<class>``: D_cohort, which sums to 1 (Fig. 7); logged to the loggers alone, since there may be many
      classes.

    - ``coherence/balanced``, ``coherence/imbalanced``: mean cosine of the updates within each half of the cohort, the
      half whose class shares vary less and the half whose vary more (Fig. 5); not logged for fewer than four clients.
    - ``weights/size``, ``weights/balance``, ``weights/product``: Pearson's correlation, over the clients that have
      data, of the sum of λ_k over the rounds so far with n_k, with 1 / Var(D_k), and with the product of both (Table
      11); not logged where a factor does not vary. ``weights/spread`` is the sum's standard deviation over the clients.

    All but the first need a data module whose ``class_counts()`` returns counts, not None.
    """

    metrics = (
        Metric(
            "coherence/local",
            "Client coherence",
            "Positive while the clients' updates strengthen each other (FedLAW, Definition 5.1).",
            formula="1/K Σ_{i≠j} λ_i λ_j cos(Δ_i, Δ_j), each pair in both orders.",
            panel="coherence",
        ),
        Metric(
            "coherence/heterogeneity",
            "Heterogeneity coherence",
            "Cosine between the class shares of the cohort and of the federation; 1 if they are equal.",
            formula="D_cohort = Σ λ_k D_k and D = Σ n_j D_j / Σ n_j, by class shares D_k (Definition 5.2).",
            panel="coherence",
        ),
        Metric(
            "cohort/share/<class>",
            "share of a class",
            formula="Share of the class in D_cohort (FedLAW, Fig. 7).",
            percent=True,
            panel="classes in the cohort",
        ),
        Metric(
            "coherence/balanced",
            "Coherence of balanced clients",
            "Mean cosine of the updates of the half of the cohort whose classes are the more balanced.",
            formula="Half with the smaller Var(D_k) (FedLAW, Fig. 5).",
            panel="coherence by balance",
        ),
        Metric(
            "coherence/imbalanced",
            "Coherence of imbalanced clients",
            "Mean cosine of the updates of the half of the cohort whose classes are the less balanced.",
            formula="Half with the larger Var(D_k) (FedLAW, Fig. 5).",
            panel="coherence by balance",
        ),
        Metric(
            "weights/size",
            "Correlation of weights and data sizes",
            "1 if a client's weight, summed over the rounds, grows in proportion to its examples.",
            formula="Pearson's correlation over the clients of Σ_t λ_k with n_k (FedLAW, Table 11).",
            panel="what the weights follow",
        ),
        Metric(
            "weights/balance",
            "Correlation of weights and balance",
            "Positive if clients with balanced classes have the larger weights, summed over the rounds.",
            formula="Pearson's correlation over the clients of Σ_t λ_k with 1 / Var(D_k) (FedLAW, Table 11).",
            panel="what the weights follow",
        ),
        Metric(
            "weights/product",
            "Correlation of weights with size times balance",
            "Positive if large clients with balanced classes have the larger weights, summed over the rounds.",
            formula="Pearson's correlation over the clients of Σ_t λ_k with n_k / Var(D_k) (FedLAW, Table 11).",
            panel="what the weights follow",
        ),
        Metric(
            "weights/spread",
            "Spread of the weights",
            "Standard deviation over the clients of a client's weight, summed over the rounds.",
            formula="Standard deviation of Σ_t λ_k, over the clients that have data.",
            panel="spread of the weights",
        ),
    )

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Once is enough: the clients' classes do not change during a fit.
        data: FederatedDataModule = trainer.datamodule  # type: ignore[attr-defined]  # set outside Trainer.__init__
        self._counts = data.class_counts()

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if len(cohort.clients) > 1:
            orchestrator.log_round("coherence/local", local_coherence(cohort.gram, cohort.weights))
        if self._counts is None:
            return
        clients, shares = list(cohort.clients), class_shares(self._counts)
        mix = cohort.weights @ shares[clients]
        similarity = float(F.cosine_similarity(mix, self._counts.sum(0).double(), dim=0).clamp(max=1))
        orchestrator.log_round("coherence/heterogeneity", similarity)
        log_each(orchestrator, "cohort/share", range(len(mix)), (mix / mix.sum()).tolist())
        variance = shares.var(1, correction=0)
        if (half := len(clients) // 2) > 1:
            alike, order = cosines(cohort.gram), variance[clients].argsort(stable=True)
            for name, part in (("balanced", order[:half]), ("imbalanced", order[-half:])):
                orchestrator.log_round(f"coherence/{name}", float(pairs(alike[part][:, part]).mean()))
        weights = self.state.get("weights", torch.zeros_like(variance)).clone()
        weights[clients] += cohort.weights
        self.state["weights"] = weights
        sizes = self._counts.sum(1).double()
        orchestrator.log_round("weights/spread", float(weights[sizes > 0].std(correction=0)))
        for name, factor in (("size", sizes), ("balance", 1 / variance), ("product", sizes / variance)):
            both = torch.stack([weights, factor])[:, sizes > 0]
            if math.isfinite(value := float(torch.corrcoef(both)[0, 1])):
                orchestrator.log_round(f"weights/{name}", value)
