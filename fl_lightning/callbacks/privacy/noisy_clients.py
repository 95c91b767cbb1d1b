"""NoisyClients: base of the rules with which clients add noise themselves."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Server, check_positive, check_within, rules_of
from fl_lightning.callbacks.privacy.accountant import Accountant
from fl_lightning.callbacks.privacy.fingerprints import client_fingerprints
from fl_lightning.callbacks.privacy.private_rule import EPSILON, PrivateRule, refuse_beside_the_update


class NoisyClients(PrivateRule, ABC):
    """Base of rules whose clients send nothing but noise added to what is clipped; it logs ``privacy/epsilon``.

    ε is that of the client from which most can be told. A client counts when it adds noise, whatever becomes of its
    update.

    Args:
        clip: S > 0, largest norm.
        noise_multiplier: z > 0; each coordinate of the noise has the standard deviation z S.
        delta: δ in (0, 1).

    Raises:
        ConfigurationError: an argument is out of range; clients send more than their updates, or a rule reads more.
    """

    needs_one_machine = "draws the clients' noise from the config's seed, which the server has, so ε would be false"
    metrics: ClassVar = (EPSILON,)
    streams = True
    may_read = frozenset({"steps"})  # which ε does not cover, as the documentation says

    def __init__(self, clip: float = 1.0, noise_multiplier: float = 1.0, delta: float = 1e-5) -> None:
        check_positive(clip=clip, noise_multiplier=noise_multiplier)
        check_positive(**{"noise_multiplier × clip": noise_multiplier * clip})
        check_within("(0, 1)", delta=delta)
        self.clip, self.noise_multiplier, self.delta = clip, noise_multiplier, delta

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.check(pl_module, rules_of(trainer))
        super().on_train_start(trainer, pl_module)
        self.made: dict[int, int] = {}  # sums with noise of this device's clients in this round

    def check(self, orchestrator: Any, rules: Sequence[FederatedCallback]) -> None:
        """Refuse what would make ε false, before the first round."""
        for rule in rules:
            if rule is not self and (refusal := self.refusal_of(rule)):
                reason, advice = refusal
                raise ConfigurationError(f"{type(self).__name__}: {reason}, so ε would be false: {advice}")

    @override
    def units(self, orchestrator: Server) -> int:
        return orchestrator.data.num_clients

    @override
    def fingerprints(self, orchestrator: Server) -> Tensor:
        return client_fingerprints(orchestrator.data)

    @abstractmethod
    def sums(self, orchestrator: Server) -> Mapping[int, int]:
        """Return how many sums with noise clients have released in the round that has ended, by client."""

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
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        orchestrator: Any = pl_module
        if orchestrator.rounds_before + orchestrator.rounds_done == int(self.state["rounds"]):
            return  # the round goes on
        sums = torch.zeros(self.units(orchestrator), dtype=torch.int64, device=orchestrator.device)
        for client, count in self.sums(orchestrator).items():
            sums[client] = count
        if trainer.world_size > 1:
            torch.distributed.all_reduce(sums, torch.distributed.ReduceOp.MAX)
        self.record(Accountant("fixed"), self.noise_multiplier, self.clip, sums.cpu())
        self.made = {}
        orchestrator.log_round(EPSILON.name, self.epsilon(self.delta))
