"""ScalingAttack: attackers that enlarge what they learned."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import LocalRun, Server, check_not_negative
from fl_lightning.callbacks.attacks.attack import LocalAttack


class ScalingAttack(LocalAttack):
    """Scales up the attackers' updates, as model replacement does (Bagdasaryan et al., 2020).

    Bagdasaryan et al., "How To Backdoor Federated Learning" (2020), scale an update that has learned a backdoor so that
    it outweighs all others. Here the attackers learn no backdoor: they train on their own data. List ScalingAttack
    after the client rules.

    Args:
        num_byzantine: >= 0, number of attackers among the clients that have data.
        scale: >= 0, factor on the update. If the other updates are near zero and weights are equal, a factor of K, the
            cohort's size, makes the average the attacker's model.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer than ``num_byzantine`` clients have data.
    """

    def __init__(self, num_byzantine: int, scale: float = 10.0) -> None:
        super().__init__(num_byzantine)
        check_not_negative(scale=scale)
        self.scale = scale

    @override
    def forge(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        return self.scale * update
