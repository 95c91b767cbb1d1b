"""Availability: which clients can be selected in a round, and which selected clients drop out or are late."""

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.engine.federation.cohorts import Turnout
from fl_lightning.errors import ConfigurationError, check_not_negative, check_positive
from fl_lightning.seeding import generator


class Availability:
    """Simulates clients that drop out and clients that are late; every client can be selected in every round.

    Clients whose updates do not arrive are not trained, since nothing of their training would reach the server; the
    tensors that rules keep for them do not change. Whether a client arrives depends only on the seed, the round, the
    selected clients and their numbers of steps: every method has the same cohorts, on any number of devices, and after
    a stop and resume.

    A subclass may define :meth:`present` (who can be selected in a round) and :meth:`duration` (how long a client
    takes). It keeps no state, since rounds may be drawn in any order.

    Args:
        dropout_before: probability that a selected client drops out before it receives the model.
        dropout_after: probability that a client that has received the model never sends its update.
        speed_spread: spread σ of the clients' speeds: client k needs exp(σ z_k) units of time per local step (batch),
            where z_k is standard normal and drawn once, so that a client of median speed needs 1.
        deadline: time after which updates are late, in steps of a client of median speed; None for no deadline.
        over_selection: ratio >= 1 of the clients selected to the clients that ``participation`` asks for. The updates
            that arrive first count; those after them are late (Bonawitz et al., 2019, "Towards Federated Learning at
            Scale": 1.3).

    Raises:
        ConfigurationError: an argument is out of range.
    """

    def __init__(
        self,
        dropout_before: float = 0.0,
        dropout_after: float = 0.0,
        speed_spread: float = 0.0,
        deadline: float | None = None,
        over_selection: float = 1.0,
    ) -> None:
        for name, probability in (("dropout_before", dropout_before), ("dropout_after", dropout_after)):
            if not 0 <= probability <= 1:
                raise ConfigurationError(f"{name} must be a probability in [0, 1], got {probability}")
        check_not_negative(speed_spread=speed_spread)
        if deadline is not None:
            check_positive(deadline=deadline)
        if not 1 <= over_selection < math.inf:
            raise ConfigurationError(
                f"over_selection must be at least 1, got {over_selection}: 1.3 selects 30 % more clients than needed"
            )
        self.dropout_before, self.dropout_after = dropout_before, dropout_after
        self.speed_spread, self.deadline, self.over_selection = speed_spread, deadline, over_selection

    def present(self, num_clients: int, round: int, seed: int) -> Tensor:
        """Return a bool tensor (N,), True for the clients that can be selected in a round.

        Args:
            num_clients: N, the number of clients.
            round: the round's number, 1, 2, …
            seed: the seed of the data module.
        """
        return torch.ones(num_clients, dtype=torch.bool)

    def duration(self, client: int, num_steps: int, seed: int) -> float:
        """Return the time that a client takes for its local steps, in steps of a client of median speed.

        Args:
            client: the client's id.
            num_steps: number of batches that the client trains on in the round.
            seed: the seed of the data module.
        """
        drawn = float(torch.randn((), generator=generator(seed, "speed", client)))
        return num_steps * math.exp(self.speed_spread * drawn)

    def turnout(
        self, selected: Sequence[int], needed: int, num_steps: Callable[[int], int], round: int, seed: int
    ) -> Turnout:
        """Draw what becomes of the clients that are selected for a round.

        Args:
            selected: ids of the selected clients.
            needed: number of updates that the round needs; clients whose updates arrive after these are late.
            num_steps: number of batches that a client, given its id, trains on in the round.
            round: the round's number, 1, 2, …
            seed: the seed of the data module.
        """
        absent: list[int] = []
        lost: list[int] = []
        sent: list[tuple[float, float, int]] = []  # time, a random number for clients of equal time, client
        for client in selected:
            before, after, tie = torch.rand(3, generator=generator(seed, "turnout", round, client)).tolist()
            if before < self.dropout_before:
                absent.append(client)
            elif after < self.dropout_after:
                lost.append(client)
            else:
                sent.append((self.duration(client, num_steps(client), seed), tie, client))
        limit = math.inf if self.deadline is None else self.deadline
        arrived = [client for time, _, client in sorted(sent)[:needed] if time <= limit]
        late = {client for *_, client in sent}.difference(arrived)
        return Turnout(*[tuple(sorted(clients)) for clients in (arrived, absent, lost, late)])


class Diurnal(Availability):
    """Simulates clients that can be selected periodically, such as devices that charge at night.

    Client k can be selected in round r if (r / period + φ_k) mod 1 < share. The phase φ_k is drawn once, uniformly from
    [0, 1), so that about ``share`` of the clients can be selected in each round, different ones over the period.

    Args:
        period: number of rounds after which each client's availability repeats, such as the rounds of one day.
        share: share of the period in which a client can be selected, in (0, 1].
        settings: the arguments of :class:`Availability`.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    def __init__(self, period: float, share: float = 0.5, **settings: Any) -> None:
        super().__init__(**settings)
        check_positive(period=period)
        if not 0 < share <= 1:
            raise ConfigurationError(f"share must be in (0, 1], the part of the period, got {share}")
        self.period, self.share = period, share

    @override
    def present(self, num_clients: int, round: int, seed: int) -> Tensor:
        phases = torch.rand(num_clients, generator=generator(seed, "phase"), dtype=torch.float64)
        return (round / self.period + phases) % 1 < self.share


class AvailabilityTrace(Availability):
    """Reads from a CSV file which clients can be selected in each round.

    The file has the columns ``round`` (1, 2, …) and ``client`` (0, 1, …), and a row for each client that can be
    selected in a round; in a round without rows, no client can. After its last round R, the trace begins again: round
    R + 1 has the clients of round 1.

    Args:
        path: path of the file, relative to the working directory; the file is read when the object is made.
        settings: the arguments of :class:`Availability`.

    Raises:
        ConfigurationError: the file cannot be read, or a row is not a round and a client; when a fit begins, the file
            names a client that does not exist.
    """

    places = ("path",)

    def __init__(self, path: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.path = path
        try:
            with Path(path).open(newline="") as file:
                rows = csv.DictReader(file)
                if not {"round", "client"} <= {*(rows.fieldnames or ())}:
                    raise ConfigurationError(
                        f"{path}: expected the columns round and client, got {','.join(rows.fieldnames or ())[:60]!r}: "
                        "write a row for each client that can be selected in a round"
                    )
                self.clients = self._read(rows)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            reason = getattr(error, "strerror", None) or "the file is not text"
            raise ConfigurationError(
                f"AvailabilityTrace cannot read {path}: {reason}; give a CSV file with the columns round,client"
            ) from None

    def _read(self, rows: "csv.DictReader[str]") -> dict[int, list[int]]:
        present: dict[int, list[int]] = {}
        for row in rows:
            words = [row["round"] or "", row["client"] or ""]
            if not all(word.isascii() and word.isdigit() for word in words) or int(words[0]) < 1:
                raise ConfigurationError(
                    f"{self.path}, line {rows.line_num}: expected a round from 1 and a client from 0, whole numbers, "
                    f"got {','.join(words)[:40]!r}: correct it"
                )
            present.setdefault(int(words[0]), []).append(int(words[1]))
        if not present:
            raise ConfigurationError(
                f"{self.path} has no row: write a row for each client that can be selected in a round"
            )
        return present

    @override
    def present(self, num_clients: int, round: int, seed: int) -> Tensor:
        largest = max(map(max, self.clients.values()))
        if largest >= num_clients:
            raise ConfigurationError(
                f"{self.path} names client {largest}, but there are only the clients 0 to {num_clients - 1}: correct it"
            )
        present = torch.zeros(num_clients, dtype=torch.bool)
        present[self.clients.get((round - 1) % max(self.clients) + 1, [])] = True
        return present
