"""Side channels: whatever a module, an optimizer or the data do beside the plain step changes no result in silence.

Every row is a module with one side channel. One client after another, it ends where a plain PyTorch loop does (here
:func:`plain`). Four clients at once end where one after another do, or a line says why they train one after another. A
stopped run ends in the bits of the whole run, two devices in those of one; the order of clients changes nothing.
"""

import logging
import random
import re
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from toy import SEEN, trainer

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.engine.devices.strategy import ClientParallelStrategy
from fl_lightning.seeding import derive, generator, seed_globals

ROUNDS, SIZES, BATCH = 4, (12, 8, 8, 6), 4
HANG = 600  # seconds that only processes that hang take
CPU = torch.device("cpu")


class Data(FederatedDataModule):
    """Four clients with examples of their own, in float64; ``order`` is the order in which one device trains them."""

    num_clients = len(SIZES)

    def __init__(self, order: tuple[int, ...] = (0, 1, 2, 3), **settings: Any) -> None:
        super().__init__(batch_size=BATCH, **settings)
        self.order = order

    def cohort(self, round: int) -> list[int]:
        return list(self.order)

    def client_dataset(self, client: int) -> TensorDataset:
        draw, size = torch.Generator().manual_seed(client), SIZES[client]
        inputs = torch.randn(size, 4, generator=draw, dtype=torch.float64)
        return TensorDataset(inputs, torch.randint(3, (size,), generator=draw))


class Oversamples(Data):
    """Each batch twice."""

    def client_batches(self, client: int, order: torch.Generator) -> Any:
        batches: Any = super().client_batches(client, order)
        return [batch for batch in batches for _ in range(2)]


class AtMostOne(Data):
    def client_batches(self, client: int, order: torch.Generator) -> Any:
        batches: Any = super().client_batches(client, order)
        return batches[:1]


class Generates(Data):
    def client_batches(self, client: int, order: torch.Generator) -> Iterator[Any]:
        yield from super().client_batches(client, order)


class Base(LightningModule):
    """A small network under SGD with momentum."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)


# Numbers that come from elsewhere


class ReadsRound(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) / self.trainer.lightning_module.round  # type: ignore[operator]


class Annealed(Base):
    """A weight that a callback changes before each round, at four places."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"beta": 1.0})
        self.beta, self.settings, self.holder = 1.0, {"beta": 1.0}, SimpleNamespace(beta=1.0)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        weights = self.beta + self.settings["beta"] + self.holder.beta + self.hparams["beta"]
        return self.loss(batch) * weights


def anneal(module: Any, round: int) -> None:
    value = 1 / (1 + round)
    module.beta = module.settings["beta"] = module.holder.beta = module.hparams["beta"] = value


class Anneals(Callback):
    def on_train_epoch_start(self, run: Any, pl_module: Any) -> None:
        anneal(pl_module.client, pl_module.round)


# Hooks


def clips(optimizer: Any, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data.clamp_(-0.3, 0.3)


class ClipsWeights(Base):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.register_step_post_hook(clips)
        return optimizer


class BeforeStep(Base):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.register_step_pre_hook(clips)
        return optimizer


def clip_gradient(parameter: Any) -> None:
    parameter.grad.clamp_(-0.01, 0.01)


class AfterAccumulation(Base):
    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(clip_gradient)


class OnGradient(Base):
    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            parameter.register_hook(lambda grad: grad.sign())


class OnOutput(Base):
    def __init__(self) -> None:
        super().__init__()
        self.net[0].register_forward_hook(lambda layer, inputs, output: 2 * output)
        self.net[2].register_forward_pre_hook(lambda layer, inputs: (inputs[0] + 1,))


class OnBackward(Base):
    def __init__(self) -> None:
        super().__init__()
        self.net[2].register_full_backward_hook(lambda layer, inputs, outputs: (inputs[0] * 0.1,))


class StepOfItsOwn(Base):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        step = optimizer.step

        def clipped(_: Any, closure: Any = None) -> Any:
            loss = step(closure)
            clips(optimizer)
            return loss

        optimizer.step = MethodType(clipped, optimizer)
        return optimizer


# Optimizers


class Warmed(Base):
    """Momentum buffers at the start."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        for parameter in self.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, 0.5)
        return optimizer


class MadeEarly(Base):
    def __init__(self) -> None:
        super().__init__()
        self.made = super().configure_optimizers()

    def configure_optimizers(self) -> Any:
        return self.made


class MadeOnce(Base):
    made: Any = None

    def configure_optimizers(self) -> Any:
        self.made = self.made or super().configure_optimizers()
        return self.made


# Parameters from beside the layers


class Listed(Base):
    def __init__(self) -> None:
        super().__init__()
        self.plist = list(self.net.parameters())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) + 0.1 * sum(each.square().sum() for each in self.plist)


class ListedAndDraws(Listed):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        dropped = [nn.functional.dropout(batch[0], 0.2), batch[1]]
        return super().training_step(dropped, batch_idx)


class ListedValues(Listed):
    """The values of the parameters alone."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * (1 + sum(each.detach().square().sum() for each in self.plist))


# Records that a step reads


class InDict(Base):
    def __init__(self) -> None:
        super().__init__()
        self.counts = {"steps": 0}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.counts["steps"] += 1
        return self.loss(batch) * self.counts["steps"]


class InList(Base):
    def __init__(self) -> None:
        super().__init__()
        self.means = [torch.ones((), dtype=torch.float64)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.means[0].mul_(0.9).add_(batch[0].mean().detach(), alpha=0.1)
        return self.loss(batch) * self.means[0]


class InDeque(Base):
    def __init__(self) -> None:
        super().__init__()
        self.last: deque[float] = deque([1.0], maxlen=3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.last.append(1 + len(self.last) / 2)
        return self.loss(batch) * sum(self.last)


class InSet(Base):
    def __init__(self) -> None:
        super().__init__()
        self.known: set[int] = set()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.known.add(len(self.known))
        return self.loss(batch) * len(self.known)


class Counter:
    """An object with a state, in an attribute and in an array."""

    def __init__(self) -> None:
        self.steps, self.array = 0, np.zeros(1)

    def __call__(self) -> float:
        self.steps += 1
        self.array += 0.5
        return self.steps + float(self.array[0])


class InObject(Base):
    def __init__(self) -> None:
        super().__init__()
        self.counter = Counter()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * self.counter()


class InHiddenLayer(Base):
    """A layer in a list, which ``parameters()`` does not know, with a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.BatchNorm1d(4, affine=False).double()]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.hidden[0](batch[0])
        return self.loss([batch[0] - self.hidden[0].running_mean, batch[1]])


class InAttribute(Base):
    steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        return self.loss(batch) * self.steps


# Draws


class Drops(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss([nn.functional.dropout(batch[0], 0.2), batch[1]])


class MixesUp(Base):
    """With NumPy's global generator."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * np.random.beta(2.0, 2.0)


class DrawsInPython(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * random.random()


class OwnTorch(Base):
    def __init__(self) -> None:
        super().__init__()
        self.draws = torch.Generator().manual_seed(3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * (1 + torch.rand((), generator=self.draws, dtype=torch.float64))


class OwnNumPy(Base):
    def __init__(self) -> None:
        super().__init__()
        self.draws = np.random.default_rng(3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * self.draws.random()


class OwnOldNumPy(OwnNumPy):
    def __init__(self) -> None:
        super().__init__()
        self.draws = np.random.RandomState(3)  # type: ignore[assignment]


class OwnPython(OwnNumPy):
    def __init__(self) -> None:
        super().__init__()
        self.draws = random.Random(3)  # type: ignore[assignment]


class Streams(Base):
    """Reads from an iterator that nobody can wind back."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = iter([1.0] * 10_000)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * next(self.stream)


@dataclass(frozen=True)
class Row:
    """A module with a side channel.

    Attributes:
        module: its class.
        apart: pattern of the line that says why its clients train one after another; None if they train at once.
        refused: pattern of the error that refuses the module.
        said: pattern of a line about what cannot be put back.
        draws: whether clients at once draw other random numbers than one after another.
        data: the class of the data.
        callbacks: classes of the Trainer's callbacks.
    """

    module: type[Base]
    apart: str | None = None
    refused: str | None = None
    said: str | None = None
    draws: bool = False
    data: type[Data] = Data
    callbacks: tuple[type[Callback], ...] = field(default=())

    def __str__(self) -> str:
        return self.module.__name__ if self.data is Data else self.data.__name__


GRADIENTS = "has hooks on gradients"
CHANGES = "training_step sets attributes of the module, or changes what they hold"
OTHERS = "draws random numbers of NumPy or Python"
ROWS = [
    Row(Base),
    Row(ReadsRound),
    Row(Annealed, callbacks=(Anneals,)),
    Row(ClipsWeights, apart="returns an optimizer with hooks"),
    Row(BeforeStep, apart="returns an optimizer with hooks"),
    Row(StepOfItsOwn, apart="differs by"),
    Row(AfterAccumulation, apart=GRADIENTS),
    Row(OnGradient, apart=GRADIENTS),
    Row(OnOutput),
    Row(OnBackward, apart=GRADIENTS),
    Row(Warmed, apart="returns an optimizer with a state"),
    Row(MadeEarly, refused="MadeEarly.configure_optimizers returns an optimizer that it has returned before"),
    Row(MadeOnce),
    Row(Listed, apart="uses parameters from beside its layers"),
    Row(ListedAndDraws, apart="uses parameters from beside its layers"),
    Row(ListedValues, apart="differs by"),
    Row(InDict, apart=CHANGES),
    Row(InList, apart="in-place operation"),
    Row(InDeque, apart=CHANGES),
    Row(InSet, apart=CHANGES),
    Row(InObject, apart=CHANGES),
    Row(InHiddenLayer, apart="."),
    Row(InAttribute, apart=CHANGES),
    Row(Drops, draws=True),
    Row(MixesUp, apart=OTHERS),
    Row(DrawsInPython, apart=OTHERS),
    Row(OwnTorch, apart=CHANGES),
    Row(OwnNumPy, apart=CHANGES),
    Row(OwnOldNumPy, apart=CHANGES),
    Row(OwnPython, apart=CHANGES),
    Row(Streams, said=r"Streams.stream \(list_iterator\)"),
    Row(Base, data=Oversamples, apart="Oversamples defines client_batches"),
    Row(Base, data=AtMostOne, apart="AtMostOne defines client_batches"),
    Row(Base, data=Generates, apart="Generates defines client_batches"),
]
TRAINED = [row for row in ROWS if not row.refused]
EVERY_ROW = pytest.mark.parametrize("row", TRAINED, ids=str)


def evaluate(module: Base, optimizer: Any, batch: Any, index: int) -> Tensor:
    """Compute the loss of a batch and its gradient."""
    optimizer.zero_grad()
    loss: Tensor = module.training_step(batch, index)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def plain(row: Row) -> Tensor:
    """The global parameters after federated averaging, written by hand; each client starts from a new module."""
    data, start = row.data(), row.module()
    model = torch.cat([each.detach().flatten() for each in start.parameters()])
    for round in range(1, ROUNDS + 1):
        total = torch.zeros_like(model)
        for client, size in enumerate(SIZES):
            module = row.module()
            torch.nn.utils.vector_to_parameters(model.clone(), module.parameters())
            seen = SimpleNamespace(lightning_module=SimpleNamespace(round=round))
            module._trainer = seen  # type: ignore[assignment]  # all that a row asks of a Trainer
            if row.callbacks:
                anneal(module, round)
            seed_globals(derive(0, "client", round, client), CPU)
            optimizer = module.configure_optimizers()
            for index, batch in enumerate(data.client_batches(client, generator(0, "batches", round, client, 0))):
                optimizer.step(partial(evaluate, module, optimizer, batch, index))  # as the Trainer steps
            end = torch.cat([each.detach().flatten() for each in module.parameters()])
            total += size / sum(SIZES) * (end - model)
        model = model + total
    return model


@dataclass(frozen=True)
class Run:
    """The end of a run: the global parameters, whether clients trained at once, and what was said."""

    params: Tensor
    at_once: bool
    said: tuple[str, ...]


def federated(
    row: Row,
    at_once: Any,
    rounds: int = ROUNDS,
    start: Path | None = None,
    end: Path | None = None,
    order: tuple[int, ...] = (0, 1, 2, 3),
    **flags: Any,
) -> Run:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    orchestrator = FederatedOrchestrator(row.module(), clients_at_once=at_once, on_bad_update="raise")
    run = trainer(*(make() for make in row.callbacks), rounds=rounds, **flags)
    logging.getLogger("lightning.pytorch").addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.fit(orchestrator, datamodule=row.data(order), ckpt_path=start)
    finally:
        logging.getLogger("lightning.pytorch").removeHandler(handler)
    if end:
        run.save_checkpoint(end)
    said = (*lines, *(str(each.message) for each in caught))
    return Run(orchestrator.params.clone(), SEEN[orchestrator].at_once, said)


@cache
def whole(row: Row, at_once: int) -> Run:
    return federated(row, at_once)


@EVERY_ROW
def test_one_by_one_is_a_plain_loop(row: Row) -> None:
    run = whole(row, 1)
    assert float((run.params - plain(row)).abs().max()) < 1e-12
    if row.said:
        assert sum(bool(re.search(row.said, line)) for line in run.said) == 1


@EVERY_ROW
def test_at_once_is_one_by_one_or_is_refused_with_a_line(row: Row) -> None:
    run, alone = whole(row, 4), whole(row, 1)
    lines = [line for line in run.said if line.startswith("clients_at_once: clients train one after another")]
    if row.apart:
        assert not run.at_once
        assert len(lines) == 1
        assert re.search(row.apart, lines[0]), lines[0]
        assert torch.equal(run.params, alone.params)
    else:
        assert run.at_once
        assert not lines
        if not row.draws:
            assert float((run.params - alone.params).abs().max()) < 1e-9


@pytest.mark.parametrize("at_once", [1, 4])
@EVERY_ROW
def test_a_stop_changes_nothing(row: Row, at_once: int, tmp_path: Path) -> None:
    federated(row, at_once, rounds=ROUNDS - 1, end=tmp_path / "last.ckpt")
    run = federated(row, at_once, start=tmp_path / "last.ckpt")
    assert torch.equal(run.params, whole(row, at_once).params)
    assert run.at_once == whole(row, at_once).at_once


@pytest.mark.parametrize("at_once", [1, 4])
@EVERY_ROW
def test_the_order_of_clients_changes_nothing(row: Row, at_once: int) -> None:
    run = federated(row, at_once, order=(2, 0, 3, 1))
    assert torch.equal(run.params, whole(row, at_once).params) or row.draws


@pytest.mark.parametrize("row", [row for row in ROWS if row.refused], ids=str)
def test_refused_by_name(row: Row) -> None:
    with pytest.raises(ConfigurationError, match=row.refused):
        federated(row, 1)


# Two devices


def _train_all(rank: int, folder: Path) -> None:
    """Train every row both ways in one of two processes; an error is written down in place of the result."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", str(rank))
        for row in TRAINED:
            for at_once in (1, 2):
                meeting = f"file://{folder / f'{row}.{at_once}.meeting'}"
                try:
                    torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=2)
                    result: Any = federated(row, at_once, strategy=ClientParallelStrategy(), devices=2).params
                except BaseException as error:
                    result = f"{type(error).__name__}: {error}"
                finally:
                    torch.distributed.destroy_process_group()
                torch.save(result, folder / f"{row}.{at_once}.{rank}")


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the results on two devices, forked from this process to save imports."""
    folder = tmp_path_factory.mktemp("two")
    started = torch.multiprocessing.start_processes(_train_all, (folder,), nprocs=2, join=False, start_method="fork")
    assert started is not None
    assert started.join(HANG) or started.join(HANG)
    return folder


@pytest.mark.parametrize("at_once", [1, 2])
@EVERY_ROW
def test_two_devices_give_the_bits_of_one(row: Row, at_once: int, on_two: Path) -> None:
    for rank in range(2):
        result = torch.load(on_two / f"{row}.{at_once}.{rank}")
        assert isinstance(result, Tensor), result
        assert torch.equal(result, whole(row, at_once).params)
