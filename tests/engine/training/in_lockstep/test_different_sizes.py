"""Clients of different sizes at once end where the same clients one after another end, whatever their loss is.

The control of every test is the run with ``clients_at_once=1``, in float64. Batches of different sizes may be filled up
and evaluated example by example only where that gives what the module computes, on every client.
"""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.toy import SEEN, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FedDecorr, FedSAM

SIZES = (12, 9, 8, 6)
CLASSES = torch.tensor([0, 0, 0, 1, 2, 0, 0, 2, 1, 0, 2, 0])  # of a client that has several


class Data(FederatedDataModule):
    """Clients in batches of 4; those in ``pure`` have examples of class 0 alone."""

    def __init__(self, pure: tuple[int, ...] = (), sizes: tuple[int, ...] = SIZES) -> None:
        super().__init__(batch_size=4)
        self.pure, self.of_client, self.num_clients = pure, sizes, len(sizes)

    def client_dataset(self, client: int) -> TensorDataset:
        draw, size = torch.Generator().manual_seed(client), self.of_client[client]
        inputs = torch.randn(size, 4, generator=draw, dtype=torch.float64)
        return TensorDataset(inputs, CLASSES[:size] * (client not in self.pure))


class Means(LightningModule):
    """The mean of cross-entropy over a batch."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.net = self.make().double()
        self.register_buffer("weights", torch.tensor([1.0, 5.0, 25.0]).double())
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self.net(batch[0]), batch[1])

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)


class Weighted(Means):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, weight=self.weights)  # type: ignore[arg-type]  # a buffer


class Ignores(Means):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, ignore_index=2)


class Masked(Means):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        kept = (labels != 2).double()
        return (F.cross_entropy(logits, labels, reduction="none") * kept).sum() / kept.sum().clamp(min=1)


class OfFull(Means):
    """A sum, divided by the size of a full batch: a mean on clients whose batches are full."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="sum") / 4


class LogsOfClass(Means):
    """Logs the share of right answers in class 2, which is a mean over the examples where there is no such class."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        chosen = (labels != 2).double()
        self.log("train/right", ((logits.argmax(1) == labels) * chosen).sum() / chosen.sum().clamp(min=1))
        return super().loss(logits, labels)


class Counts(Means):
    """Counts its examples, in a buffer, and learns more slowly from the 21st on."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.seen += len(labels)
        return super().loss(logits, labels) * torch.where(self.seen > 20, 0.1, 1.0)  # type: ignore[operator]


class Normalized(Means):
    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def fit(make: Any, at_once: int, data: Data, *rules: Any, **settings: Any) -> FederatedOrchestrator:
    """Train; ``start`` and ``end`` are checkpoints."""
    rounds, start, end = settings.pop("rounds", 5), settings.pop("start", None), settings.pop("end", None)
    orchestrator = FederatedOrchestrator(make(), clients_at_once=at_once, on_bad_update="raise", **settings)
    run = trainer(*(rule() for rule in rules), rounds=rounds)
    run.fit(orchestrator, datamodule=data, ckpt_path=start)
    if end:
        run.save_checkpoint(end)
    return orchestrator


def apart(one: FederatedOrchestrator, other: FederatedOrchestrator) -> float:
    """The largest difference of the global models and their buffers."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


NOT_ALWAYS_MEANS = [Weighted, Ignores, Masked, OfFull]


@pytest.mark.filterwarnings("error:clients_at_once")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [*NOT_ALWAYS_MEANS, Counts, LogsOfClass, Means])
def test_what_is_a_mean_on_some_clients_only(make: Any, seed: int) -> None:
    """Which client tries out whether batches may be filled up depends on the seed; three of four have one class."""
    pure = (0, 1, 2) if seed % 2 else (1, 2, 3)
    alone, at_once = (fit(make, size, Data(pure), seed=seed) for size in (1, 4))
    assert SEEN[at_once].at_once
    assert apart(alone, at_once) < 1e-9
    assert make is not Means or SEEN[at_once].padded


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", [Weighted, Ignores, Masked])
def test_a_group_is_not_filled_up_though_others_are(make: Any, seed: int) -> None:
    """Groups of two: client 0 has several classes; those that try out whether batches may be filled up have one."""
    pure, sizes = (1, 2, 3, 4, 5), (11, 12, 8, 8, 8, 6)
    alone, at_once = (fit(make, size, Data(pure, sizes), seed=seed) for size in (1, 2))
    assert SEEN[at_once].padded
    assert apart(alone, at_once) < 1e-9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("others", [(), (FedSAM,)])
def test_a_rule_that_sees_nothing_on_a_client_of_one_example(others: tuple[Any, ...], seed: int) -> None:
    """FedDecorr's penalty is 0 there; it is not for the others, and so it changes what they learn."""
    sizes, rules = (12, 1, 1, 1, 6, 9, 1, 5), (lambda: FedDecorr(1.0), *others)
    alone, at_once = (fit(Means, size, Data((), sizes), *rules, seed=seed) for size in (1, 4))
    assert apart(alone, fit(Means, 1, Data((), sizes), *others, seed=seed)) > 1e-3
    assert SEEN[at_once].at_once
    assert apart(alone, at_once) < 1e-9


@pytest.mark.filterwarnings("error:.*one after another")
@pytest.mark.parametrize(("make", "sizes"), [(Weighted, SIZES), (Normalized, (12, 10, 8, 6)), (Means, SIZES)])
@pytest.mark.parametrize("seed", range(3))
def test_a_resumed_run_fills_up_batches_as_before(make: Any, sizes: Any, seed: int, tmp_path: Path) -> None:
    """Round 6 is a round with a comparison only because the run was stopped."""
    pure = (0, 1)
    whole = fit(make, 4, Data(pure, sizes), rounds=6, seed=seed)
    first = fit(make, 4, Data(pure, sizes), rounds=5, seed=seed, end=tmp_path / "last.ckpt")
    resumed = fit(make, 4, Data(pure, sizes), rounds=6, seed=seed, start=tmp_path / "last.ckpt")
    assert SEEN[resumed].padded == SEEN[whole].padded == SEEN[first].padded
    assert SEEN[resumed].at_once
    assert apart(whole, resumed) == 0.0


class Decides(Means):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().loss(logits, labels) * (1 + float(logits.detach().sum().item() > 0))


def test_a_run_that_goes_on_at_once_and_cannot_says_so_once(tmp_path: Path) -> None:
    """Its rounds so far trained one client after another, so that all rounds can."""
    fit(Decides, 1, Data(), rounds=1, end=tmp_path / "last.ckpt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed = fit(Decides, 4, Data(), rounds=4, start=tmp_path / "last.ckpt")
    lines = [str(each.message) for each in caught if "one after another" in str(each.message)]
    assert len(lines) == 1
    assert lines[0].startswith("clients_at_once: clients train one after another, since Decides.training_step fails")
    assert apart(resumed, fit(Decides, 1, Data(), rounds=4)) == 0.0


class Doubles(Means):
    """From round 4 on, a batch of several examples gives another gradient and the same loss."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        loss = super().loss(logits, labels)
        late = self.trainer.lightning_module.round >= 4  # type: ignore[operator]  # the orchestrator's
        return 2 * loss - loss.detach() if late and len(labels) > 1 else loss


def test_filled_up_batches_that_later_prove_wrong_stop_the_run() -> None:
    with pytest.raises(ConfigurationError, match=r"^round 4: clients can no longer train at once, since what a client"):
        fit(Doubles, 4, Data(), rounds=5)
