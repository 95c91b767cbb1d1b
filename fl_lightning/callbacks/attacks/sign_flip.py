"""SignFlip: attackers that send the opposite of what they learned."""

from torch import Tensor
from typing_extensions import override

from fl_lightning import LocalRun, Server
from fl_lightning.callbacks.attacks.scaling import ScalingAttack


class SignFlip(ScalingAttack):
    """Flips the sign of the attackers' updates and scales them: each attacker sends -scale times its update.

    List SignFlip after the client rules.

    Args:
        num_byzantine: >= 0, number of attackers among the clients that have data.
        scale: >= 0, factor on the flipped update.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer than ``num_byzantine`` clients have data.
    """

    @override
    def forge(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        return -super().forge(orchestrator, run, update)
