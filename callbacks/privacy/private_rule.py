"""PrivateRule: base of the private rules, which record what they release, and compute ε from that record alone."""

from abc import ABC, abstractmethod
from typing import Any, get_args

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Metric, Server
from fl_lightning.callbacks.privacy.accountant import Accountant, Release, Sampling, epsilon_of

EPSILON = Metric(
    "privacy/epsilon",
    "Privacy spent, ε",
    "ε of differential privacy at the rule's δ, for the models of all rounds so far.",
    panel="privacy spent",
)
SAMPLINGS = get_args(Sampling)


class PrivateRule(FederatedCallback, ABC):
    """Base of rules that release noisy sums. Their ``state`` is the record of them, from which ε is computed.

    ``state["releases"]`` (E, 5) has a row for each kind of sum: the number of its sampling in ``SAMPLINGS``, the number
    of vectors drawn, of how many, the noise multiplier and the clip. ``state["made"]`` (E, U) counts how many sums of
    that kind each of U units (clients, or the federation) had a part in, and ``state["rounds"]`` the rounds of the
    global model that the record knows. A model that is older than the record makes ε infinite.
    """

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        orchestrator: Any = pl_module
        made = orchestrator.rounds_before + orchestrator.rounds_done
        if "made" in self.state and self.state["made"].shape[1] != self.units(orchestrator):
            self.state.clear()  # the record is of other clients
        missing = made - int(self.state.get("rounds", 0))
        if missing > 0:
            name = type(self).__name__
            rank_zero_warn(
                f"{name}: the record of what was released lacks {missing} of this model's {made} rounds, so ε is "
                f"infinite: list {name} from round 1 on, and go on by ckpt_path, not by a second fit"
            )
            self.record(Accountant("fixed"), 0.0, torch.inf, torch.ones(self.units(orchestrator), dtype=torch.int64))
        self.state["rounds"] = torch.tensor(made)

    @abstractmethod
    def units(self, orchestrator: Server) -> int:
        """Return U, the number of units that the record tells apart."""

    def record(self, accountant: Accountant, noise_multiplier: float, clip: float, sums: Tensor) -> None:
        """Record how many sums of a kind each unit had a part in, ``sums`` (U,) int64, in a round."""
        number = SAMPLINGS.index(accountant.sampling)
        row = torch.tensor([[number, accountant.drawn, accountant.of, noise_multiplier, clip]], dtype=torch.float64)
        rows, counts = self.state.get("releases", row[:0]), self.state.get("made", sums[None, :][:0])
        known = (rows == row).all(1)
        if known.any():
            counts = counts + known[:, None] * sums
        else:
            rows, counts = torch.cat([rows, row]), torch.cat([counts, sums[None, :]])
        self.state["releases"], self.state["made"] = rows, counts
        self.state["rounds"] = torch.tensor(int(self.state.get("rounds", 0)) + 1)

    def releases(self) -> list[Release]:
        """Return what the record has of the unit from which most can be told."""
        if "releases" not in self.state:
            return []
        rows, counts = self.state["releases"], self.state["made"]
        weights = torch.where(counts > 0, counts / rows[:, 3:4] ** 2, 0.0)  # order sums in which all are as ε does
        times = counts[:, int(weights.sum(0).argmax())].tolist()
        return [
            (Accountant(SAMPLINGS[int(number)], int(drawn), int(of)), noise, count)
            for (number, drawn, of, noise, _), count in zip(rows.tolist(), times, strict=True)
        ]

    def epsilon(self, delta: float) -> float:
        """Return ε at δ for all that the record has."""
        return epsilon_of(self.releases(), delta)


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
