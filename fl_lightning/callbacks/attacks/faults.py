"""FaultInjection: clients that fail, for tests of how a rule copes."""

from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning import ClientFailure, FederatedCallback, LocalRun, Server, check_choice

VALUES = {"nan": float("nan"), "inf": float("inf"), "huge": 1e38}


class FaultInjection(FederatedCallback):
    """Makes given clients fail in given rounds, to test how a rule or a run copes.

    The client trains, and then raises an error or sends an update of which every coordinate is nan, inf or 1e38. List
    FaultInjection after the other client rules.

    Args:
        fault: "raise", "nan", "inf" or "huge" (1e38, which is finite, but its square in float32 is not).
        clients: ids of the clients that fail, whenever they take part; all clients by default.
        rounds: numbers of the rounds in which they fail, where 1 is the first round; all rounds by default.

    Raises:
        ConfigurationError: ``fault`` is none of these four.
    """

    post_processes = True

    def __init__(
        self,
        fault: Literal["raise", "nan", "inf", "huge"],
        clients: Collection[int] | None = None,
        rounds: Collection[int] | None = None,
    ) -> None:
        check_choice("fault", fault, "raise", *VALUES)
        self.fault, self.clients, self.rounds = fault, clients, rounds

    @override
    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        if self.clients is not None and run.client not in self.clients:
            return update
        if self.rounds is not None and run.round not in self.rounds:
            return update
        if self.fault == "raise":
            raise ClientFailure("injected fault")
        return torch.full_like(update, VALUES[self.fault])
