"""q-FedAvg: clients that the global model serves badly count more."""

from typing_extensions import override

from fl_lightning import Cohort, Server, check_not_negative
from fl_lightning.callbacks.server.client_losses import ClientLosses

LEAST = 1e-10  # is added to losses, as in the released code


class QFedAvg(ClientLosses):
    """Weighs clients by their losses to the power of q, and sets the step's length (Li et al., 2020, Algorithm 2).

    With L_k = 1 / η_k for the client's learning rate, a client's weight is L_k F_k^q / Σ_j h_j, where h_j = q F_j^(q-1)
    ‖L_j Δ_j‖² + L_j F_j^q: the weights do not sum to one. F_k is the mean loss of its examples at the model that it
    starts from.

    Args:
        q: q >= 0, how much fairness counts; 0 is the uniform mean.

    Raises:
        ConfigurationError: ``q`` is negative.
    """

    settles = frozenset({"weights"})

    def __init__(self, q: float = 1.0) -> None:
        check_not_negative(q=q)
        self.q = q

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        losses, inverse = self.losses(cohort) + LEAST, 1 / cohort.learning_rates
        shares = inverse * losses**self.q
        total = self.q * losses ** (self.q - 1) * (inverse * cohort.norms) ** 2 + shares
        return cohort.replace(weights=shares / total.sum())
