"""FAMO: weights under which all clients' losses fall at the same rate."""

import math

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, Server, TrainingError, check_not_negative, check_positive
from fl_lightning.callbacks.server.client_losses import ClientLosses

LEAST = 1e-8  # is added to losses, as in the released code
BETA1 = 0.9  # of Adam
BETA2 = 0.999
EPSILON = 1e-8


def move_logits(logits: Tensor, fall: Tensor, lr: float, gamma: float) -> Tensor:
    """Take a step of Adam that lowers the logits of the clients whose log-loss has fallen more than others'.

    Two clients of equal weight: the slopes are 1/2 (1 - 1/2) and 1/2 (0 - 1/2), and Adam's first step is lr long.

    >>> import torch
    >>> from fl_lightning.callbacks.server.famo import move_logits
    >>> moved = move_logits(torch.zeros(4, 2).double(), torch.tensor([1.0, 0.0]).double(), lr=0.1, gamma=0.0)
    >>> moved[0].round(decimals=6).tolist()
    [-0.1, 0.1]

    Args:
        logits: (4, k) of k clients: the logit ξ, Adam's two moving averages, and the number of steps so far.
        fall: (k,) log l - log l', from a client's last loss l to its loss l' now.
        lr: step size.
        gamma: weight decay, which is added to the slope.

    Returns:
        (4, k) logits after the step.
    """
    values, means, squares, steps = logits
    shares = values.softmax(0)
    slopes = shares * (fall - shares @ fall) + gamma * values
    steps = steps + 1
    means = BETA1 * means + (1 - BETA1) * slopes
    squares = BETA2 * squares + (1 - BETA2) * slopes**2
    lengths = (squares / (1 - BETA2**steps)).sqrt() + EPSILON
    values = values - lr * means / (1 - BETA1**steps) / lengths
    return torch.stack([values, means, squares, steps])


class FAMO(ClientLosses):
    """Raises the weights of clients whose losses fall, in proportion, more slowly than others' (Liu et al., 2023).

    Liu et al., 2023, "FAMO: Fast Adaptive Multitask Optimization", Algorithm 1, with Adam for the logits ξ, as in the
    released code. Clients stand for tasks, updates for gradients. A client of loss l has the weight z / l, scaled to a
    sum of one over the cohort, where z is the softmax of the cohort's ξ. Before that, ξ moves by how far log l has
    fallen since the client last took part: the step of one round is judged in a later one. Clients that are new or away
    keep their ξ, and are left out of that step's softmax. Losses are those at the model that clients start from, and
    the least loss that a client can reach is taken as 0. The run's weights do not count.

    Args:
        lr: β > 0, step size of ξ.
        gamma: γ >= 0, weight decay of ξ. The paper's experiments have 0.001 or 0.01, the released code's default is
            0.00001.

    Raises:
        ConfigurationError: an argument is out of range.
        TrainingError: in a round, a loss is negative, infinite or nan.
    """

    settles = frozenset({"weights"})

    def __init__(self, lr: float = 0.025, gamma: float = 0.001) -> None:
        check_positive(lr=lr)
        check_not_negative(gamma=gamma)
        self.lr, self.gamma = lr, gamma

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        clients = torch.tensor(cohort.clients)
        losses = self.losses(cohort) + LEAST
        if losses.min() <= 0:
            least = float(losses.min())
            raise TrainingError(f"round {cohort.round}: FAMO needs losses of at least 0, got {least - LEAST:g}")
        size = len(orchestrator.data.sizes)
        last = self.state.get("log losses", torch.full((size,), math.nan, dtype=torch.float64)).clone()
        logits = self.state.get("logits", torch.zeros(4, size, dtype=torch.float64)).clone()
        seen = ~last[clients].isnan()
        known = clients[seen]
        logits[:, known] = move_logits(logits[:, known], last[known] - losses[seen].log(), self.lr, self.gamma)
        last[clients] = losses.log()
        self.state["log losses"] = last
        self.state["logits"] = logits
        weights = logits[0, clients].softmax(0) / losses
        return cohort.replace(weights=weights / weights.sum())
