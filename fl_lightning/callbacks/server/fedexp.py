"""FedExP: the server's step is the longer, the less the clients agree."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_not_negative


class FedExP(FederatedCallback):
    """Lengthens the mean update, the more the updates differ in direction (Jhunjhunwala et al., 2023).

    The mean update u is multiplied by max(1, Σ λ_k ‖Δ_k‖² / (2 (‖u‖² + ε))). λ_k are the clients' weights; the paper
    has equal ones, and averages the last two models at the end: here the last one stands.

    Args:
        epsilon: ε >= 0; the paper chooses it for each task. The released code multiplies it by the number of clients,
            and by 0.998² in each round.

    Raises:
        ConfigurationError: ``epsilon`` is negative.
    """

    settles = frozenset({"step"})

    def __init__(self, epsilon: float = 0.001) -> None:
        check_not_negative(epsilon=epsilon)
        self.epsilon = epsilon

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        spread, length = float(cohort.weights @ cohort.norms**2), float(update.double().square().sum()) + self.epsilon
        return update * max(1.0, spread / (2 * length)) if length else update
