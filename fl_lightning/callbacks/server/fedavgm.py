"""FedAvgM: momentum on the server."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server, check_within


def momentum_step(velocity: Tensor, update: Tensor, momentum: float) -> Tensor:
    """Return the new velocity (P,), which is the server's step.

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedavgm import momentum_step
    >>> momentum_step(torch.tensor([4.0]), torch.tensor([1.0]), momentum=0.5)  # 0.5 · 4 + 1
    tensor([3.])

    Args:
        velocity: (P,) velocity v of the last round; zeros at first.
        update: (P,) u, the round's reduced update.
        momentum: β in [0, 1).
    """
    return momentum * velocity + update


class FedAvgM(FederatedCallback):
    """Adds momentum to the server's steps (Hsu et al., 2019).

    The velocity v accumulates the round's update u, as left by the rules listed before: v ← βv + u, w ← w + v. SGD with
    lr 1 and momentum β does the same as ``model.server_optimizer``. Steps become up to 1 / (1 - β) times as long: with
    a large β, clients need a smaller learning rate.

    Args:
        momentum: β in [0, 1); 0 is FedAvg.

    Raises:
        ConfigurationError: ``momentum`` is out of range.
    """

    settles = frozenset({"step"})
    streams = True

    def __init__(self, momentum: float = 0.9) -> None:
        check_within("[0, 1)", momentum=momentum)
        self.momentum = momentum

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        velocity = self.recall("velocity", torch.zeros_like(update))
        self.state["velocity"] = momentum_step(velocity, update, self.momentum)
        return self.state["velocity"]
