"""PrivateRule: base of the private rules, which record what they release, and compute ε from that record alone."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, get_args

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, Metric, Monitor, Server
from fl_lightning.callbacks.privacy.accountant import Accountant, Release, Sampling, epsilon_of
from fl_lightning.engine.rules.declared import stands

EPSILON = Metric(
    "privacy/epsilon",
    "Privacy spent, ε",
    "ε of differential privacy at the rule's δ, for the models of all rounds so far.",
    panel="privacy spent",
)
SAMPLINGS = get_args(Sampling)
SERVER_HOOKS = ("aggregate", "stream_weights", "reduce", "update", "refine")
CLIENT_HOOKS = ("start", "on_client_start", "on_before_client_step", "on_after_client_step", "on_client_end", "upload")


class PrivateRule(FederatedCallback, ABC):
    """Base of rules that release noisy sums. Their ``state`` is the record of them, from which ε is computed.

    ``state["releases"]`` (E, 5) has a row for each kind of sum: the number of its sampling in ``SAMPLINGS``, the number
    of vectors drawn, of how many, the noise multiplier and the clip. ``state["made"]`` (E, U) counts how many sums of
    that kind each of U units (clients, or the federation) had a part in, and ``state["rounds"]`` the rounds of the
    global model that the record knows. A model that is older than the record makes ε infinite. ``state["units"]`` (U,
    16) has the units' fingerprints: where they differ from those now, the largest entry counts for each unit.
    """

    #: What other rules may read of the clients, as they say in ``reads``: what ε covers, or says that it does not.
    may_read: ClassVar[frozenset[str]] = frozenset()

    #: The hooks with which a rule of the user's must say what it reads.
    telling_hooks: ClassVar[tuple[str, ...]] = SERVER_HOOKS

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        orchestrator: Any = pl_module
        self._refuse_measured(orchestrator)
        made = orchestrator.rounds_before + orchestrator.rounds_done
        self._compare_units(trainer, orchestrator)
        missing = made - int(self.state.get("rounds", 0))
        if missing > 0:
            name = type(self).__name__
            rank_zero_warn(
                f"{name}: the record of what was released lacks {missing} of this model's {made} rounds, so ε is "
                f"infinite: list {name} from round 1 on, and go on by ckpt_path, not by a second fit"
            )
            self.record(Accountant("fixed"), 0.0, torch.inf, torch.ones(self.units(orchestrator), dtype=torch.int64))
        self.state["rounds"] = torch.tensor(made)

    def _refuse_measured(self, orchestrator: Server) -> None:
        """Refuse settings that all clients' examples have a part in, so that one moves what the others send."""
        data = orchestrator.data
        for what, remedy in data.measured.items():
            raise ConfigurationError(
                f"{type(self).__name__}: {type(data.named).__name__} measures {what} on the examples of all clients, "
                f"without noise, so ε would be false: {remedy}"
            )

    @abstractmethod
    def units(self, orchestrator: Server) -> int:
        """Return U, the number of units that the record tells apart."""

    def fingerprints(self, orchestrator: Server) -> Tensor | None:
        """Return the (U, 16) uint8 fingerprints of the units, zeros for an unknown one; None for one unit for ever."""
        return None

    def _compare_units(self, trainer: Trainer, orchestrator: Server) -> None:
        """Let the largest entry of the record count for each unit, unless all are known to be those of the record."""
        found = self.fingerprints(orchestrator) if trainer.is_global_zero else None
        units: Tensor | None = trainer.strategy.broadcast(found)
        if units is None:
            return
        recorded = self.state.get("units")
        are_known = recorded is not None and torch.equal(recorded, units) and bool(units.any(1).all())
        if "made" in self.state and not are_known:
            largest = self.state["made"].max(1, keepdim=True).values
            self.state["made"] = largest.repeat(1, len(units))
            rank_zero_warn(
                f"{type(self).__name__}: the clients' names or data differ from those of the record of what was "
                "released, or are not known: the client with most counts for each of them"
            )
        self.state["units"] = units

    def refusal_of(self, rule: FederatedCallback) -> tuple[str, str] | None:
        """Return why another rule may make ε false by what it reads, and what to do; None for a rule that does not."""
        name = type(rule).__name__
        if read := rule.reads - self.may_read:
            return f"{name} reads the clients' {', '.join(sorted(read))}, which have no noise", "leave it out"
        if isinstance(rule, Monitor):
            return None
        for hook in self.telling_hooks:
            holder = next(kind for kind in type(rule).__mro__ if hook in vars(kind))
            is_own = holder.__module__.partition(".")[0] == "fl_lightning"
            if not is_own and not stands(rule, "reads", [hook]):
                advice = f"set reads in {name}, to frozenset() if it reads nothing else"
                return f"{holder.__name__}.{hook} may read more than updates, which alone have noise", advice
        return None

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
