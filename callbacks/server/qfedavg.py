"""QFedAvg: clients with larger losses count more."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, LocalRun, Server
from fl_lightning.errors import check_not_negative


class QFedAvg(FederatedCallback):
    """Weighs clients by their losses to the power q, for fairness (Li et al., 2020, q-FFL, Algorithm 2).

    With F_k the mean loss of client k's examples at the model that it starts from, and g_k = Δ_k / η_k its update in
    steps of its learning rate, the step is Σ F_k^q g_k / Σ (q F_k^(q-1) ‖g_k‖² + F_k^q / η_k). A client's loss costs
    one more pass over its examples.

    Args:
        q: q >= 0; 0 averages the clients uniformly.

    Raises:
        ConfigurationError: ``q`` is negative.
    """

    settles = frozenset({"weights"})
    streams = True
    stacks = True

    def __init__(self, q: float = 1.0) -> None:
        check_not_negative(q=q)
        self.q = q

    @override
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        run.send("qfedavg", orchestrator.client_loss(run.client, run.anchor)[None])

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        weights = self.stream_weights(orchestrator, cohort, cohort.weights)
        bends = self.q * self._losses(cohort) ** (self.q - 1) * (cohort.norms / cohort.learning_rates) ** 2
        return cohort.replace(weights=weights / (bends + weights).sum())

    @override
    def stream_weights(self, orchestrator: Server, cohort: Cohort, weights: Tensor) -> Tensor:
        return self._losses(cohort) ** self.q / cohort.learning_rates

    def _losses(self, cohort: Cohort) -> Tensor:
        losses = [float(result.vectors["qfedavg"]) for result in cohort.results]
        return cohort.weights.new_tensor(losses).clamp(min=1e-10)
