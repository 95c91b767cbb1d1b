"""Global weight shrinking by a fixed factor."""

from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_positive


class GlobalWeightShrinking(FederatedCallback):
    """Multiplies the new global model by a fixed factor γ (Li et al., 2023, eq. 4, Tables 1 and 9).

    The new model is γ (w + Σ λ_k Δ_k). γ < 1 acts like weight decay once a round; γ = 1 is FedAvg. :class:`FedLAW` in
    mode "shrinking" learns γ.

    Args:
        gamma: γ > 0; 0.9 to 1 in the paper.

    Raises:
        ConfigurationError: gamma is out of range.
    """

    settles = frozenset({"shrinking"})
    streams = True

    def __init__(self, gamma: float) -> None:
        check_positive(gamma=gamma)
        self.gamma = gamma

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        return cohort.replace(shrinking=self.gamma)
