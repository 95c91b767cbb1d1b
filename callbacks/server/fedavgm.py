"""FedAvgM: momentum on the server."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, FederatedCallback, Server
from fl_lightning.errors import check_choice, check_within

Convention = Literal["heavy ball", "ema", "nesterov"]


def momentum_step(velocity: Tensor, update: Tensor, momentum: float, convention: Convention) -> tuple[Tensor, Tensor]:
    """Take one step of server momentum.

    >>> import torch
    >>> from fl_lightning.callbacks.server.fedavgm import momentum_step
    >>> v, u = torch.tensor([4.0]), torch.tensor([1.0])
    >>> momentum_step(v, u, momentum=0.5, convention="heavy ball")  # v = 0.5 · 4 + 1, and the step is v
    (tensor([3.]), tensor([3.]))
    >>> momentum_step(v, u, momentum=0.5, convention="nesterov")  # the same v, and the step is 0.5 · 3 + 1
    (tensor([3.]), tensor([2.5000]))

    Args:
        velocity: (P,) velocity v of the last round; zeros at first.
        update: (P,) u, the round's reduced update.
        momentum: β in [0, 1).
        convention: see :class:`FedAvgM`.

    Returns:
        The new velocity (P,) and the step (P,).
    """
    velocity = momentum * velocity + (1 - momentum if convention == "ema" else 1) * update
    return velocity, momentum * velocity + update if convention == "nesterov" else velocity


class FedAvgM(FederatedCallback):
    """Adds momentum to the server's steps (Hsu et al., 2019).

    The velocity v accumulates the round's update u, as left by the rules listed before. The paper's form is the heavy
    ball, v ← βv + u, w ← w + v, which is also what SGD with lr 1 and momentum β does as ``model.server_optimizer``. The
    heavy ball makes steps up to 1 / (1 - β) times as long: with a large β, clients need a smaller learning rate.

    Args:
        momentum: β in [0, 1); 0 is FedAvg.
        convention: "heavy ball" as above; "ema" averages, v ← βv + (1 - β)u, so that steps keep the updates' length;
            "nesterov" looks ahead, v ← βv + u, w ← w + βv + u. The paper has neither "ema" nor "nesterov".

    Raises:
        ConfigurationError: an argument is out of range.
    """

    settles = frozenset({"step"})
    streams = True

    def __init__(self, momentum: float = 0.9, convention: Convention = "heavy ball") -> None:
        check_within("[0, 1)", momentum=momentum)
        check_choice("convention", convention, "heavy ball", "ema", "nesterov")
        self.momentum, self.convention = momentum, convention

    @override
    def update(self, orchestrator: Server, cohort: Cohort, update: Tensor) -> Tensor:
        velocity = self.recall("velocity", torch.zeros_like(update))
        self.state["velocity"], step = momentum_step(velocity, update, self.momentum, self.convention)
        return step
