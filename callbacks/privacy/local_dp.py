"""LocalDP: clients add noise to their updates before they send them."""

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, LocalRun, Server
from fl_lightning.callbacks.privacy.noisy_clients import NoisyClients


class LocalDP(NoisyClients):
    """Clips each client's update, and adds noise before it is sent: local privacy (Kasiviswanathan et al., 2011).

    A client sends Δ min(1, S / ‖Δ‖) + z S N(0, 1). All that the server does with it costs no more privacy: any server
    rule goes with it. What the server knows beside it is not covered: the number of examples, by which FedAvg weighs,
    of steps (FedNova), and the training loss (FedFV, DominantGradientCorrection). ``privacy/epsilon`` is what the
    updates of the client that took part most often tell of its data, whatever the server knows of all others; no
    sampling makes it smaller. Two updates of a client differ by at most 2 S. List the rule after those that compress or
    correct the update.

    Args:
        clip: S > 0, largest norm of an update.
        noise_multiplier: z > 0; each coordinate of the noise has the standard deviation z S.
        delta: δ in (0, 1).

    Raises:
        ConfigurationError: an argument is out of range; clients send more than their updates.
    """

    @override
    def sums(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        return torch.ones(len(cohort.clients), dtype=torch.int64)

    @override
    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        draw = orchestrator.generator("local dp", run.round, run.client)
        return self.add_noise(update * self.factors(update), draw)
