"""GaussianAttack: attackers that send noise."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import LocalRun, Server, check_not_negative
from fl_lightning.callbacks.attacks.attack import LocalAttack


class GaussianAttack(LocalAttack):
    """Replaces the attackers' updates by Gaussian noise (Blanchard et al., 2017).

    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (2017), draw gradients
    with the standard deviation 200. Updates are shorter than these gradients, so the default here is 1. The noise
    depends on the seed, the round and the client alone. List GaussianAttack after the client rules.

    Args:
        num_byzantine: >= 0, number of attackers among the clients that have data.
        std: >= 0, standard deviation of each coordinate of the noise.

    Raises:
        ConfigurationError: an argument is out of range; in a round, fewer than ``num_byzantine`` clients have data.
    """

    def __init__(self, num_byzantine: int, std: float = 1.0) -> None:
        super().__init__(num_byzantine)
        check_not_negative(std=std)
        self.std = std

    @override
    def forge(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        generator = orchestrator.generator("gaussian_attack", run.round, run.client)
        return self.std * torch.randn(update.shape, generator=generator, dtype=update.dtype).to(update.device)
