"""Samplers, which draw the clients of a round."""

from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.engine.federation.cohorts import ClientSampler
from fl_lightning.errors import ConfigurationError, check_at_least


class UniformSampler(ClientSampler):
    """Draws uniformly without replacement from the clients that have data (McMahan et al., 2017, Algorithm 1)."""

    sampling = "uniform"

    @override
    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        with_data = sizes.nonzero().flatten()
        return with_data[torch.randperm(len(with_data), generator=generator)[:num_clients]]


class PoissonSampler(ClientSampler):
    """Draws each client that has data with the probability K / N, whatever becomes of the others.

    N is the number of clients that have data. A round has K clients on average; it may have none, or all. This is the
    draw for which the bounds of differential privacy are the smallest (McMahan et al., 2018, Algorithm 1). The Trainer
    makes room for N clients in each round, which costs it some 0.6 ms for each: with many clients, set
    ``clients_per_batch``.
    """

    sampling = "poisson"

    @override
    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(len(sizes), generator=generator, dtype=torch.float64) * (sizes > 0).sum() < num_clients
        return (drawn & (sizes > 0)).nonzero().flatten()


class SizeSampler(ClientSampler):
    """Draws clients one by one without replacement: client k with probability n_k / Σn over those not drawn yet.

    Large clients take part more often, so they must not also count more: average the updates uniformly, with
    ``FedAvg(weighting: uniform)``. This is the second sampling scheme of Li et al., 2020, "Federated Optimization in
    Heterogeneous Networks", which FedProx uses.
    """

    @override
    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        return torch.multinomial(sizes.double(), num_clients, generator=generator)


class PowerOfChoice(ClientSampler):
    """Draws candidates by size, and of these takes the K whose last training loss is largest (Cho et al., 2022).

    Power-of-choice in its form without further messages: a candidate is drawn with probability n_k / Σn over those not
    drawn yet, and its loss is the mean over its local steps when it last took part. Clients that have never taken part
    come first, in the order of the draw. The rule ``LastLosses`` keeps the losses, and must be listed. A cohort is
    known when its round begins, not before.

    Args:
        candidates: d, number of candidates, at least ``participation``; with as many as that, the draw is by size
            alone. At most all clients that have data are candidates.

    Attributes:
        losses: by round, the clients' last losses (N,) before that round, infinite for those that have none.

    Raises:
        ConfigurationError: ``candidates`` is less than 1; in a fit, less than K; the losses before a round are not
            known.
    """

    def __init__(self, candidates: int) -> None:
        check_at_least(1, candidates=candidates)
        self.candidates = candidates
        self.losses: dict[int, Tensor] = {}

    @override
    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        if self.candidates < num_clients:
            raise ConfigurationError(
                f"PowerOfChoice needs candidates of at least the clients per round, got {self.candidates} for "
                f"{num_clients}: raise candidates, or lower participation"
            )
        if round not in self.losses:
            raise ConfigurationError(
                f"PowerOfChoice draws by the losses before a round, which are not known for round {round}: list the "
                "rule LastLosses, and nothing that asks for the cohorts of later rounds, such as SaveCohorts"
            )
        count = min(self.candidates, int((sizes > 0).sum()))
        drawn = torch.multinomial(sizes.double(), count, generator=generator)
        order = self.losses[round][drawn].argsort(descending=True, stable=True)
        return drawn[order[:num_clients]]


class RoundRobinSampler(ClientSampler):
    """Draws the clients that have data in order of id, K per round; each round continues where the last one ended."""

    sampling = "fixed"

    @override
    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        with_data = sizes.nonzero().flatten()
        return with_data[((round - 1) * num_clients + torch.arange(num_clients)) % len(with_data)]


class FixedSchedule(ClientSampler):
    """Reads the cohorts from a text file: line r holds the client ids of round r, separated by blanks.

    Experiments that compare methods on saved cohorts need fixed cohorts (FedLAW: Li et al., 2023, Appendix D.4). Lines
    may differ in length; no line may have more ids than ``participation`` allows. ``SaveCohorts`` writes such a file.

    Args:
        path: path of the file, relative to the working directory; the file is read when the sampler is made.

    Raises:
        ConfigurationError: the file cannot be read, or a line holds anything but client ids; when a fit begins, a round
            has no line, or its line names clients that cannot be drawn.
    """

    sampling = "fixed"
    places = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            lines = Path(path).read_text().rstrip().splitlines() or [""]
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "the file is not text"
            raise ConfigurationError(
                f"FixedSchedule cannot read {path}: {reason}; give a text file whose line r holds the client ids of "
                "round r, as SaveCohorts writes it"
            ) from None
        self.cohorts = [self._ids(line, number) for number, line in enumerate(lines, start=1)]
        self.num_rounds = len(self.cohorts)

    def _ids(self, line: str, number: int) -> list[int]:
        words = line.split()
        if not words or not all(word.isascii() and word.isdigit() for word in words):
            raise ConfigurationError(
                f"{self.path}, line {number}: expected the client ids of round {number}, whole numbers separated by "
                f"blanks, got {line[:40]!r}: correct it"
            )
        return [int(word) for word in words]

    @override
    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        if round > len(self.cohorts):
            raise ConfigurationError(
                f"{self.path} ends at line {len(self.cohorts)}, there is none for round {round}: add lines, or lower "
                f"trainer.max_epochs to {len(self.cohorts)}"
            )
        return torch.tensor(self.cohorts[round - 1])
