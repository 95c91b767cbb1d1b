"""Who draws a round's clients, who says which of them are there, and what becomes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError


class ClientSampler:
    """Draws cohorts. A subclass implements :meth:`draw` and keeps no state, since rounds may be drawn in any order.

    What a draw depends on beside its arguments is set by a rule before the round, by round: see ``LastLosses``.

    Attributes:
        num_rounds: number of rounds that the sampler can draw, each of which is drawn once as a check when a fit
            begins; None for any number.
    """

    num_rounds: int | None = None

    #: How chance decides who takes part, on which differential privacy depends: "poisson" for each client on its own,
    #: so that a round may have no client or all of them; "uniform" for all sets of K clients alike; "fixed" for a
    #: choice in which no data have a part; None for anything else.
    sampling: ClassVar[Literal["poisson", "uniform", "fixed"] | None] = None

    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        """Draw the clients of one round.

        Args:
            sizes: (N,) numbers of examples per client; a client without examples must not be drawn.
            num_clients: K, the number of clients to draw, at most the number of clients that have data.
            round: the round's number, 1, 2, …
            generator: random number generator, keyed by the seed and the round.

        Returns:
            At least one and at most K distinct client ids, in any order; any number with the sampling "poisson".
        """
        raise ConfigurationError(f"{type(self).__name__} must define draw(sizes, num_clients, round, generator)")


@dataclass(frozen=True)
class Turnout:
    """Holds what becomes of the clients selected for a round; each id is in one of the tuples, in ascending order.

    Attributes:
        arrived: clients whose updates arrive in time: the cohort.
        absent: clients that drop out before they receive the model.
        lost: clients that receive the model and drop out before they send an update.
        late: clients whose updates arrive after the deadline, or after the round has all updates that it needs.
    """

    arrived: tuple[int, ...]
    absent: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    late: tuple[int, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Number of clients by name: selected, arrived, dropped (absent or lost) and late."""
        arrived = len(self.arrived)
        dropped = len(self.absent) + len(self.lost)
        late = len(self.late)
        return {"selected": arrived + dropped + late, "arrived": arrived, "dropped": dropped, "late": late}


class ClientAvailability(Protocol):
    """Says which clients can be selected in a round, and what becomes of the selected ones.

    Attributes:
        over_selection: ratio >= 1 of the clients selected to the clients that ``participation`` asks for.
    """

    over_selection: float

    def present(self, num_clients: int, round: int, seed: int) -> Tensor:
        """Return a bool tensor (N,), True for the clients that can be selected in a round."""

    def turnout(
        self, selected: Sequence[int], needed: int, num_steps: Callable[[int], int], round: int, seed: int
    ) -> Turnout:
        """Draw what becomes of the clients that are selected for a round that needs ``needed`` updates.

        ``num_steps`` is the number of batches that a client, given its id, trains on in the round.
        """
