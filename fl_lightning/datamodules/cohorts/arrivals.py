"""ArrivalSampler: clients that train on their own time, and the server that steps when enough have arrived."""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.cohorts.availability import Availability
from fl_lightning.engine.federation.cohorts import ClientSampler
from fl_lightning.errors import ConfigurationError, check_at_least
from fl_lightning.seeding import generator


@dataclass(frozen=True)
class Arrivals:
    """Holds what has arrived when the server steps.

    Attributes:
        versions: by client that has arrived, the round whose model it started from.
        busy: by client that still trains, the round whose model it started from.
        time: the time of the step, in the time that a client of median speed takes for an example.
    """

    versions: dict[int, int]
    busy: dict[int, int]
    time: float


class ArrivalSampler(ClientSampler):
    """Simulates clients that train at once, each at its own speed; a round's clients are the next K that arrive.

    Some clients are busy. When one is done, another one begins, drawn uniformly from those that are idle, with the
    newest global model. A client arrives once in a round at most. Client k needs n_k exp(σ z_k) units of time, the
    clock of :class:`Availability`. With the rule FedBuff, a client trains from the model that it began with; with other
    rules, from the newest.

    Args:
        busy: number of clients that train at once, at least ``participation``.
        speed_spread: σ >= 0, spread of the clients' speeds.
        seed: the seed of the speeds and of who begins.

    Raises:
        ConfigurationError: an argument is out of range; when a fit begins, fewer clients are busy than a round needs,
            or more than have data.
    """

    def __init__(self, busy: int, speed_spread: float = 1.0, seed: int = 0) -> None:
        check_at_least(1, busy=busy)
        self.busy, self.seed, self._clock = busy, seed, Availability(speed_spread=speed_spread)
        self._key: tuple[object, ...] = ()

    @override
    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        return torch.tensor([*self.arrivals(sizes, num_clients, round).versions])

    def arrivals(self, sizes: Tensor, num_clients: int, round: int) -> Arrivals:
        """Return what has arrived in a round, given the numbers of examples (N,) and K."""
        if self._key != (key := (*sizes.tolist(), num_clients)):
            self._key, self._known, self._next = key, list[Arrivals](), self._simulate(sizes, num_clients)
        while len(self._known) < round:
            self._known.append(next(self._next))
        return self._known[round - 1]

    def _simulate(self, sizes: Tensor, num_clients: int) -> Iterator[Arrivals]:
        idle = sizes.nonzero().flatten().tolist()
        training: list[tuple[float, int, int]] = []  # time of the arrival, client, and round that it began in
        draw = generator(self.seed, "arrivals")
        if not num_clients <= self.busy <= len(idle):
            raise ConfigurationError(
                f"ArrivalSampler: expected from {num_clients} clients, as participation says, to {len(idle)} that have "
                f"data to be busy, got busy {self.busy}: correct it"
            )

        def begin(now: float, version: int) -> None:
            client = idle.pop(int(torch.randint(len(idle), (), generator=draw)))
            heappush(training, (now + self._clock.duration(client, int(sizes[client]), self.seed), client, version))

        time = 0.0
        version = 0  # the round, whose global model the clients that begin get
        while True:
            version += 1
            while idle and len(training) < self.busy:
                begin(time, version)
            versions: dict[int, int] = {}
            while len(versions) < num_clients:
                time, client, began = heappop(training)
                versions[client] = began
                if idle and len(versions) < num_clients:  # after the last one, the server steps first
                    begin(time, version)
            yield Arrivals(versions, {client: began for _, client, began in training}, time)
            idle += sorted(versions)
