"""FedProx: stay near the global model."""

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun


class FedProx(FederatedCallback):
    """Proximal local training (Li et al., 2020, Algorithm 2): the gradient gains μ (w_local - w), inside momentum.

    Args:
        mu: μ >= 0, weight of the term (μ/2)‖w_local - w‖². FedGH's slides use 0.1, FedLAW 0.001.
    """

    def __init__(self, mu: float) -> None:
        if not mu >= 0:
            raise ConfigurationError(f"mu must be at least 0, got {mu}")
        self.mu = mu

    def on_client_start(self, orchestrator: FederatedOrchestrator, run: LocalRun) -> None:
        """Tell FedNova's normaliser of the term: see :class:`FederatedCallback`."""
        run.proximal += self.mu

    def on_before_client_step(self, run: LocalRun) -> None:
        """Add the term's gradient: see :class:`FederatedCallback`."""
        if self.mu:
            run.grads.add_(run.params - run.anchor, alpha=self.mu)
