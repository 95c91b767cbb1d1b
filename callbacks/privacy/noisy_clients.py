"""NoisyClients: base of the rules with which clients add noise themselves."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server
from fl_lightning.callbacks.privacy.accountant import Accountant
from fl_lightning.errors import check_positive, check_within
from fl_lightning.runs.catalogue import Metric

EPSILON = Metric(
    "privacy/epsilon",
    "Privacy spent, ε",
    "ε of differential privacy at the rule's δ, for the models of all rounds so far.",
    panel="privacy spent",
)


def refuse_beside_the_update(rule: FederatedCallback, orchestrator: Server, cohort: Cohort) -> None:
    """Refuse what clients send beside their updates, since it has no noise.

    Raises:
        ConfigurationError: a rule has sent a tensor, or buffers have changed that do not stay with the clients.
    """
    name, known = type(rule).__name__, orchestrator.read_buffers()
    for result in cohort.results:
        if result.vectors:
            raise ConfigurationError(
                f"{name}: clients send {', '.join(result.vectors)} beside their updates, without noise: leave out the "
                "rule that sends it"
            )
        triples = zip(orchestrator.buffer_names, result.buffers, known, strict=True)
        if moved := [buffer for buffer, new, old in triples if new is not old]:
            raise ConfigurationError(
                f"{name}: the server averages {', '.join(moved[:2])}, without noise: set the network WithGroupNorm, or "
                "list FedBN, with which they stay with the clients"
            )


class NoisyClients(FederatedCallback, ABC):
    """Base of rules whose clients send nothing but noise added to what is clipped; it logs ``privacy/epsilon``.

    ε is that of the client from which most sums of noisy vectors have come.

    Args:
        clip: S > 0, largest norm.
        noise_multiplier: z > 0; each coordinate of the noise has the standard deviation z S.
        delta: δ in (0, 1).

    Raises:
        ConfigurationError: an argument is out of range; clients send more than their updates.
    """

    metrics: ClassVar = (EPSILON,)
    streams = True

    def __init__(self, clip: float = 1.0, noise_multiplier: float = 1.0, delta: float = 1e-5) -> None:
        check_positive(clip=clip, noise_multiplier=noise_multiplier)
        check_within("(0, 1)", delta=delta)
        self.clip, self.noise_multiplier, self.delta = clip, noise_multiplier, delta

    @abstractmethod
    def sums(self, orchestrator: Server, cohort: Cohort) -> Tensor:
        """Return how many sums with noise each of the K clients of a cohort has made in this round, (K,) int64."""

    def factors(self, vectors: Tensor) -> Tensor:
        """Return the factors (…,) that clip vectors (…, P) to the norm S."""
        factors: Tensor = self.clip / torch.linalg.vector_norm(vectors, dim=-1)
        return factors.clamp(max=1.0)

    def add_noise(self, vector: Tensor, draw: torch.Generator) -> Tensor:
        """Add noise to a vector (P,) in place, and return it."""
        noise = torch.randn(len(vector), generator=draw).to(vector)
        return vector.add_(noise, alpha=self.noise_multiplier * self.clip)

    @override
    def aggregate(self, orchestrator: Server, cohort: Cohort) -> Cohort:
        refuse_beside_the_update(self, orchestrator, cohort)
        return cohort

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        none = torch.zeros(orchestrator.data.num_clients, dtype=torch.int64)
        made = self.state.get("sums", none).clone()
        made[list(cohort.clients)] += self.sums(orchestrator, cohort)
        self.state["sums"] = made
        spent = Accountant("fixed").epsilon(self.noise_multiplier, int(made.max()), self.delta)
        orchestrator.log_round(EPSILON.name, spent)
