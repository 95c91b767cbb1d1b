"""Toy problems in float64, small enough to follow by hand.

T (``train``): w ∈ R², w⁰ = 0, η = 0.1, ∇f_i(w) = A_i ∘ (w - B_i), full participation. Client 0: A = (1, 2),
B = (1, -1), n = 1, τ = 2 steps. Client 1: A = (3, 0.5), B = (-2, 2), n = 3, τ = 3 steps. Plain SGD takes them to
(0.19, -0.36) and (-1.314, 0.28525).

Given updates (``send``): client k's loss is w·c_k + l_k, so that one step of SGD(η) from w = 0 ends in the update
-η c_k with the mean loss l_k. c_k is chosen to make the update what the test asks for.

Batch normalisation (Normalized, NormalizedData): buffers that can be followed by hand. A plain network and its batches
(Net, Same) for what no hand can follow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import lightning
import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import ClientSampler, Cohort, FederatedCallback, FederatedDataModule, FederatedOrchestrator, LocalRun

ETA = 0.1
A = torch.tensor([[1.0, 2.0], [3.0, 0.5]], dtype=torch.float64)
B = torch.tensor([[1.0, -1.0], [-2.0, 2.0]], dtype=torch.float64)
SAMPLES, STEPS = [1, 3], [2, 3]
DRAW = torch.Generator().manual_seed(0)
BATCHES = [[torch.randn(6, 4, generator=DRAW), torch.randint(3, (6,), generator=DRAW)] for _ in range(5)]
UPDATES = [[2.0, 0.0], [-1.0, 1.0], [-1.0, -2.0]]  # g₁·g₂ = -2, g₁·g₃ = -2, g₂·g₃ = -1: all in conflict


class Notes(list[Any], Callback):
    """What a module writes down for a test: a list that is not put back after a client, as no callback is."""


class Quadratic(LightningModule):
    """f_i(w) = Σ A_i (w - B_i)² / 2; a batch is one row (A_i, B_i)."""

    def __init__(self, momentum: float = 0.0, size: int = 2) -> None:
        super().__init__()
        self.momentum = momentum
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        a, b = batch
        return (a * (self.w - b) ** 2 / 2).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=ETA, momentum=self.momentum)


class Manual(Quadratic):
    """T's module, which steps its optimizer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        optimizer.step()
        return loss.detach()


class ToyData(FederatedDataModule):
    """Each step sees the client's whole objective: τ copies of its row, one a batch."""

    num_clients = 2

    def __init__(self, **settings: Any) -> None:
        super().__init__(batch_size=1, **settings)

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(A[client].expand(STEPS[client], 2), B[client].expand(STEPS[client], 2))

    def client_num_samples(self, client: int) -> int:
        return SAMPLES[client]


def uniform_update(w: Tensor) -> Tensor:
    """T's mean update from w, (2,): each local step takes client i from w - B_i to (1 - η A_i) ∘ (w - B_i)."""
    moves = [((1 - ETA * A[k]) ** STEPS[k] - 1) * (w - B[k]) for k in (0, 1)]
    return (moves[0] + moves[1]) / 2


class Linear(LightningModule):
    """f_k(w) = w·c_k + l_k; a batch is one row (c_k, l_k)."""

    def __init__(self, size: int, lr: float = 1.0, **sgd: Any) -> None:
        super().__init__()
        self.lr, self.sgd = lr, sgd
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        c, loss = batch
        return (self.w * c).sum() + loss.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, **self.sgd)


class GivenData(FederatedDataModule):
    """Client k's row (c_k, l_k), τ_k times, one a batch.

    Args:
        rows: (N, P) the c_k.
        samples: n_k; 1 each by default. A client with 0 has no data.
        losses: l_k; 0 each by default.
        steps: τ_k; 1 each by default.
        settings: of FederatedDataModule.
    """

    def __init__(
        self,
        rows: Tensor,
        samples: Sequence[int] | None = None,
        losses: Sequence[float] | None = None,
        steps: Sequence[int] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(batch_size=1, **settings)
        self.num_clients, self.rows = len(rows), rows
        self.samples, self.steps = samples or [1] * len(rows), steps or [1] * len(rows)
        self.losses = torch.tensor(losses or [0.0] * len(rows), dtype=torch.float64)

    def client_dataset(self, client: int) -> Dataset[Any]:
        count = self.steps[client] if self.samples[client] else 0
        return TensorDataset(self.rows[client].expand(count, -1), self.losses[client].expand(count))

    def client_num_samples(self, client: int) -> int:
        return self.samples[client]


class InTurn(ClientSampler):
    """Given cohorts, round by round; the last one again and again."""

    def __init__(self, *cohorts: Sequence[int]) -> None:
        self.cohorts = cohorts

    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        return torch.tensor(self.cohorts[min(round, len(self.cohorts)) - 1])


class Head(Linear):
    """The clients' updates are given; on inputs (B, 2) and labels it is a linear classifier, logits X Wᵀ.

    Args:
        start: (4,) the weights W, row by row, from which the clients start.
    """

    def __init__(self, start: Sequence[float] = (0.0, 0.0, 0.0, 0.0), lr: float = 1.0) -> None:
        super().__init__(size=4, lr=lr)
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.reshape(2, 2).T

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch[1].is_floating_point():
            return super().training_step(batch, batch_idx)
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


class ProxyData(GivenData):
    """Clients with given updates of four parameters, and a proxy set of four points in one batch."""

    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0])

    def class_counts(self) -> Tensor:
        return torch.tensor([[client + 1, 1] for client in range(self.num_clients)])

    def proxy_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.inputs, self.labels), batch_size=4)


class Normalized(LightningModule):
    """A batch normalisation under a linear map: its buffers are what the clients' inputs make of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(1).double(), nn.Linear(1, 2).double()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.head(self.norm(x)), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=ETA)


class NormalizedData(FederatedDataModule):
    """Inputs (1, 3) on client 0 and (0, 0, 3, 9) on client 1: means 2 and 3, unbiased variances 2 and 18.

    With the momentum 0.1, one batch of them all takes the running mean and variance from (0, 1) to (0.2, 1.1) on client
    0 and to (0.3, 2.7) on client 1. Averaged by n = (2, 4): (0.8/3, 6.5/3).
    """

    num_clients = 2

    def client_dataset(self, client: int) -> Dataset[Any]:
        x = torch.tensor([[1.0, 3.0], [0.0, 0.0, 3.0, 9.0]][client], dtype=torch.float64)[:, None]
        return TensorDataset(x, torch.arange(len(x)) % 2)

    def proxy_dataloader(self) -> DataLoader[Any]:
        x = torch.tensor([[50.0], [-50.0], [70.0], [0.0]], dtype=torch.float64)
        return DataLoader(TensorDataset(x, torch.tensor([0, 1, 1, 0])), batch_size=2)


class Same(FederatedDataModule):
    """One client, always the same batches in the same order."""

    num_clients = 1

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.cat([x for x, _ in BATCHES]))

    def client_batches(self, client: int, order: torch.Generator) -> Iterator[list[Tensor]]:
        return iter(BATCHES)


class Net(LightningModule):
    """The plain case: a two-layer network under SGD with momentum and weight decay."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net: Any = nn.Sequential(nn.Linear(4, 8), *self.between(), nn.Linear(8, 3))
        self.seen: list[Any] = Notes()
        self.build()

    def build(self) -> None:
        """Change or add what the next class has beside."""

    def between(self) -> list[nn.Module]:
        return [nn.Tanh()]

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


class DecaysEverySecondStep(LightningModule):
    """A tenth of the learning rate from the third step on, for the optimizer of the next class."""

    def configure_optimizers(self) -> Any:
        optimizer: Any = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Scheduled(DecaysEverySecondStep, Net):
    """Momentum, weight decay, batch normalisation, and a tenth of the learning rate from the third step on."""

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.Tanh()]


class Capture(FederatedCallback):
    """Keeps what a run shows to its callbacks; last in the list, it sees each cohort as the rules left it."""

    stacks = True

    def __init__(self) -> None:
        self.cohorts: list[Cohort] = []
        self.clients: list[int] = []
        self.params: list[Tensor] = []
        self.buffers: list[dict[str, Tensor]] = []
        self.runs: list[LocalRun] = []

    def on_client_end(self, orchestrator: FederatedOrchestrator, run: LocalRun) -> None:
        self.clients.append(run.client)
        self.params.append(run.params.clone())
        self.buffers.append({name: buffer.clone() for name, buffer in run.module.named_buffers()})
        self.runs.append(run)

    def on_round_end(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
        self.cohorts.append(cohort.replace(deltas=cohort.deltas.clone()))  # the next round uses their memory

    @property
    def cohort(self) -> Cohort:
        """The last round's."""
        return self.cohorts[-1]

    @property
    def corrected(self) -> Tensor:
        """(K, P) the last round's updates as the rules left them."""
        return self.cohort.mixing @ self.cohort.deltas


@dataclass(frozen=True)
class Seen:
    """How clients trained in a fit, whose parts are gone when it has ended."""

    group_size: int
    at_once: bool
    tried: int  # the last round with a trial
    compiled: bool
    padded: bool  # whether batches of different sizes are evaluated together
    streams: bool


SEEN: "WeakKeyDictionary[Any, Seen]" = WeakKeyDictionary()  # by orchestrator, of its last fit


class Sees(Callback):
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if isinstance(pl_module, FederatedOrchestrator):
            assert pl_module._fit is not None
            training, sums_after = pl_module._fit.training, pl_module._fit.policy.sums_after
            tried, groups = getattr(training, "compared", 0), getattr(training, "groups", None)
            compiled = bool(groups and groups.steps.is_compiled)
            padded, streams = bool(groups and groups.padded), sums_after is not None
            SEEN[pl_module] = Seen(training.group_size, training.at_once, tried, compiled, padded, streams)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if getattr(pl_module, "_fit", None) is not None:
            self.on_fit_end(trainer, pl_module)


def trainer(*callbacks: Callback, rounds: int = 1, **settings: Any) -> lightning.Trainer:
    """A Trainer that leaves nothing behind, unless told otherwise."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    quiet |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "max_epochs": rounds}
    return lightning.Trainer(**{**quiet, **settings}, callbacks=[*callbacks, Sees()])


def train(*callbacks: Callback, rounds: int = 1, momentum: float = 0.0, **settings: Any) -> Tensor:
    """The global model after some rounds of T, (2,)."""
    orchestrator = FederatedOrchestrator(Quadratic(momentum), **settings)
    trainer(*callbacks, rounds=rounds).fit(orchestrator, datamodule=ToyData())
    return orchestrator.client.w.detach()  # type: ignore[union-attr, operator, return-value]


def send(
    updates: Any, *callbacks: Callback, lr: float = 1.0, steps: Sequence[int] | None = None, **data: Any
) -> tuple[Tensor, Capture]:
    """One round from w = 0 of clients whose updates are given.

    Args:
        updates: (N, P), client k takes ``steps[k]`` equal steps to its row.
        callbacks: the rules.
        lr: η of the clients.
        steps: τ_k; 1 each by default.
        data: of GivenData.

    Returns:
        The new global model (P,), and what a last callback saw.
    """
    rows = -torch.as_tensor(updates, dtype=torch.float64)
    rows = rows / lr / torch.tensor(steps or [1] * len(rows))[:, None]
    orchestrator, capture = FederatedOrchestrator(Linear(rows.shape[1], lr)), Capture()
    trainer(*callbacks, capture).fit(orchestrator, datamodule=GivenData(rows, steps=steps, **data))
    return orchestrator.params.clone(), capture


def close(actual: Tensor, expected: Any, tolerance: float = 1e-9) -> bool:
    """Whether all entries agree to an absolute tolerance; shapes must agree, too."""
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    return actual.shape == wanted.shape and bool((actual.double() - wanted).abs().max() <= tolerance)
