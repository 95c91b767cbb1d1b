"""Side channels: whatever a module, an optimizer or the data do beside the plain step changes no result in silence.

Every row is a module with one side channel. One client after another, it ends where a plain PyTorch loop does (here
:func:`plain`). Four clients at once end where one after another do, or a line says why they train one after another. A
stopped run ends in the bits of the whole run, two devices in those of one; the order of clients changes nothing.
"""

import logging
import os
import random
import re
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lib.covering import covering, every
from lib.toy import SEEN, trainer
from lib.two_devices import asked_of, on_two_devices
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.seeding import derive, generator, seed_globals

ROUNDS, SIZES, BATCH = 3, (12, 8, 8, 6), 4
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
        return [batch for batch in super().client_batches(client, order) for _ in range(2)]


class AtMostOne(Data):
    def client_batches(self, client: int, order: torch.Generator) -> Any:
        return super().client_batches(client, order)[:1]


class Generates(Data):
    def client_batches(self, client: int, order: torch.Generator) -> Iterator[Any]:
        yield from super().client_batches(client, order)


class Base(LightningModule):
    """A small network under SGD with momentum. A row overrides one of the three methods without a docstring."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.held = self.hold()

    def hold(self) -> Any:
        return None

    def factor(self, batch: Any) -> Any:
        return 1.0

    def changed(self, optimizer: Any) -> Any:
        return optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1]) * self.factor(batch)

    def configure_optimizers(self) -> Any:
        return self.changed(torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9))


@dataclass(frozen=True)
class Row:
    """A module with a side channel.

    Attributes:
        module: its class.
        apart: pattern of the line that says why its clients train one after another; None if they train at once.
        refused: pattern of the error that refuses the module.
        draws: whether clients at once draw other random numbers than one after another.
        data: the class of the data.
        callbacks: classes of the Trainer's callbacks.
    """

    module: type[Base]
    apart: str | None = None
    refused: str | None = None
    draws: bool = False
    data: type[Data] = Data
    callbacks: tuple[type[Callback], ...] = ()

    def __str__(self) -> str:
        return self.module.__name__ if self.data is Data else self.data.__name__


def row(name: str, apart: str | None = None, **facts: Any) -> Row:
    """A row whose module overrides what is given of ``hold``, ``factor`` and ``changed``."""
    own = {method: facts.pop(method) for method in ("hold", "factor", "changed") if method in facts}
    return Row(type(name, (Base,), own), apart, **facts)


def anneal(module: Any, round: int) -> None:
    """Change a weight of the loss, at four places."""
    value = 1 / (1 + round)
    module.beta = module.held[0]["beta"] = module.held[1].beta = module.hparams["beta"] = value


class Anneals(Callback):
    def on_train_epoch_start(self, run: Any, pl_module: Any) -> None:
        anneal(pl_module.client, pl_module.round)


def annealed_at_four_places(self: Any) -> Any:
    self.save_hyperparameters({"beta": 1.0})
    self.beta = 1.0
    return [{"beta": 1.0}, SimpleNamespace(beta=1.0)]


def clips(optimizer: Any, *_: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.data.clamp_(-0.3, 0.3)


def clips_after_step(self: Base, optimizer: Any) -> Any:
    optimizer.register_step_post_hook(clips)
    return optimizer


def clips_before_step(self: Base, optimizer: Any) -> Any:
    optimizer.register_step_pre_hook(clips)
    return optimizer


def steps_in_its_own_way(self: Base, optimizer: Any) -> Any:
    step = optimizer.step

    def clipped(_: Any, closure: Any = None) -> Any:
        loss = step(closure)
        clips(optimizer)
        return loss

    optimizer.step = MethodType(clipped, optimizer)
    return optimizer


def has_momentum_at_the_start(self: Base, optimizer: Any) -> Any:
    for parameter in self.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, 0.5)
    return optimizer


def the_first_that_was_made(self: Base, optimizer: Any) -> Any:
    self.held = self.held or optimizer
    return self.held


def hooks_on_layers(self: Base) -> None:
    self.net[0].register_forward_hook(lambda layer, inputs, output: 2 * output)
    self.net[2].register_forward_pre_hook(lambda layer, inputs: (inputs[0] + 1,))


def hooks_after_accumulation(self: Base) -> None:
    for parameter in self.parameters():
        parameter.register_post_accumulate_grad_hook(clips_gradient)


def clips_gradient(parameter: Any) -> None:
    parameter.grad.clamp_(-0.01, 0.01)


def hooks_on_gradients(self: Base) -> None:
    for parameter in self.parameters():
        parameter.register_hook(torch.sign)


def hook_on_backward(self: Base) -> None:
    self.net[2].register_full_backward_hook(lambda layer, inputs, outputs: (inputs[0] * 0.1,))


def counts_in_dict(self: Any, batch: Any) -> int:
    self.held["steps"] += 1
    return self.held["steps"]


def counts_in_attribute(self: Any, batch: Any) -> int:
    self.held += 1
    return self.held


class Counter:
    """An object with a state, in an attribute and in an array."""

    def __init__(self) -> None:
        self.steps, self.array = 0, np.zeros(1)

    def count(self, batch: Any) -> float:
        self.steps += 1
        self.array += 0.5
        return self.steps + float(self.array[0])


def mean_in_hidden_layer(self: Any, batch: Any) -> Tensor:
    self.held[0](batch[0])
    return self.held[0].running_mean.square().sum()


def sum_of_squares(self: Any, batch: Any) -> Any:
    return 1 + sum(each.square().sum() for each in self.held)


def sum_and_draw(self: Any, batch: Any) -> Any:
    return sum_of_squares(self, batch) * drops(self, batch)


def sum_of_values(self: Any, batch: Any) -> Any:
    return sum_of_squares(self, batch).detach()


def drops(self: Any, batch: Any) -> Tensor:
    return nn.functional.dropout(batch[0], 0.2).square().mean()


def parameters(self: Base) -> Any:
    return list(self.net.parameters())


def drawn(self: Any, batch: Any) -> float:
    return self.held.random()


GRADIENTS = "has hooks on gradients"
BESIDE = "uses parameters from beside its layers"
CHANGES = "training_step sets attributes of the module, or changes what they hold"
OTHERS = "draws random numbers of NumPy or Python"
HOOKS = "returns an optimizer with hooks"
ROWS = [
    Row(Base),
    # Numbers that come from elsewhere
    row("ReadsRound", factor=lambda self, batch: 1 / self.trainer.lightning_module.round),
    row(
        "Annealed",
        hold=annealed_at_four_places,
        factor=lambda self, batch: self.beta + self.held[0]["beta"] + self.held[1].beta + self.hparams["beta"],
        callbacks=(Anneals,),
    ),
    # Hooks
    row("ClipsWeights", HOOKS, changed=clips_after_step),
    row("BeforeStep", HOOKS, changed=clips_before_step),
    row("StepOfItsOwn", "differs by", changed=steps_in_its_own_way),
    row("AfterAccumulation", GRADIENTS, hold=hooks_after_accumulation),
    row("OnGradient", GRADIENTS, hold=hooks_on_gradients),
    row("OnOutput", hold=hooks_on_layers),
    row("OnBackward", GRADIENTS, hold=hook_on_backward),
    # Optimizers
    row("Warmed", "returns an optimizer with a state", changed=has_momentum_at_the_start),
    row(
        "MadeEarly",
        hold=lambda self: torch.optim.SGD(self.parameters(), lr=0.1),
        changed=the_first_that_was_made,
        refused="MadeEarly.configure_optimizers returns an optimizer that it has returned before",
    ),
    row("MadeOnce", changed=the_first_that_was_made),
    # Parameters from beside the layers
    row("Listed", BESIDE, hold=parameters, factor=sum_of_squares),
    row("ListedAndDraws", BESIDE, hold=parameters, factor=sum_and_draw),
    row("ListedValues", "differs by", hold=parameters, factor=sum_of_values),
    # Records that a step reads
    row("InDict", CHANGES, hold=lambda self: {"steps": 0}, factor=counts_in_dict),
    row(
        "InList",
        "in-place operation",
        hold=lambda self: [torch.ones((), dtype=torch.float64)],
        factor=lambda self, batch: self.held[0].mul_(0.9).add_(batch[0].mean().detach(), alpha=0.1),
    ),
    row(
        "InDeque",
        CHANGES,
        hold=lambda self: deque([1.0], maxlen=3),
        factor=lambda self, batch: self.held.append(1 + len(self.held) / 2) or sum(self.held),
    ),
    row(
        "InSet",
        CHANGES,
        hold=lambda self: set(),
        factor=lambda self, b: self.held.add(len(self.held)) or len(self.held),
    ),
    row("InObject", CHANGES, hold=lambda self: Counter(), factor=lambda self, batch: self.held.count(batch)),
    row(
        "InHiddenLayer",
        ".",  # the layer is in a list, which ``parameters()`` does not know
        hold=lambda self: [nn.BatchNorm1d(4, affine=False).double()],
        factor=mean_in_hidden_layer,
    ),
    row("InAttribute", CHANGES, hold=lambda self: 0, factor=counts_in_attribute),
    # Draws
    row("Drops", factor=drops, draws=True),
    row("DrawsInNumPy", OTHERS, factor=lambda self, batch: np.random.beta(2.0, 2.0)),
    row("DrawsInPython", OTHERS, factor=lambda self, batch: random.random()),
    row(
        "OwnTorch",
        CHANGES,
        hold=lambda self: torch.Generator().manual_seed(3),
        factor=lambda self, batch: 1 + torch.rand((), generator=self.held, dtype=torch.float64),
    ),
    row("OwnNumPy", CHANGES, hold=lambda self: np.random.default_rng(3), factor=drawn),
    row("OwnOldNumPy", CHANGES, hold=lambda self: np.random.RandomState(3), factor=drawn),
    row("OwnPython", CHANGES, hold=lambda self: random.Random(3), factor=drawn),
    row(
        "Streams",  # from an iterator that nobody can wind back
        hold=lambda self: iter([1.0] * 10_000),
        factor=lambda self, batch: next(self.held),
    ),
    *(Row(Base, f"{data.__name__} defines client_batches", data=data) for data in (Oversamples, AtMostOne, Generates)),
]
TRAINED = [row for row in ROWS if not row.refused]
COVER = covering(TRAINED, lambda row: map(str, (row.apart, row.draws, row.callbacks)), together=1)
EVERY_ROW = pytest.mark.parametrize("row", TRAINED, ids=str)
COVERED_ROW = every(TRAINED, COVER)


def evaluate(module: Base, optimizer: Any, batch: Any, index: int) -> Tensor:
    """Compute the loss of a batch and its gradient."""
    optimizer.zero_grad()
    loss: Tensor = module.training_step(batch, index)
    loss.backward()
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
            module._trainer = seen  # all that a row asks of a Trainer
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
    compiled: bool = False,
    **flags: Any,
) -> Run:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    settings = {"clients_at_once": at_once, "compile_clients": compiled}
    orchestrator = FederatedOrchestrator(row.module(), on_bad_update="raise", **settings)
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


@EVERY_ROW
def test_at_once_is_one_by_one_or_is_refused_with_a_line(row: Row) -> None:
    run, alone = whole(row, 4), whole(row, 1)
    lines = [line for line in run.said if line.startswith("clients_at_once: clients train one after another")]
    assert run.at_once == (row.apart is None)
    if row.apart:
        assert len(lines) == 1
        assert re.search(row.apart, lines[0]), lines[0]
        assert torch.equal(run.params, alone.params)
    else:
        assert not lines
        assert row.draws or float((run.params - alone.params).abs().max()) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in TRAINED if row.apart is None], ids=str)
def test_compiled_clients_end_where_one_by_one_end(row: Row) -> None:
    run = federated(row, 4, compiled=True)
    assert run.at_once
    assert row.draws or float((run.params - whole(row, 1).params).abs().max()) < 1e-9


@pytest.mark.parametrize("at_once", [1, 4])
@COVERED_ROW
def test_neither_the_order_of_clients_nor_a_stop_changes_anything(row: Row, at_once: int, tmp_path: Path) -> None:
    """But for draws at once, which are the clients' in order."""
    order = (0, 1, 2, 3) if row.draws else (2, 0, 3, 1)
    federated(row, at_once, rounds=ROUNDS - 1, end=tmp_path / "last.ckpt", order=order)
    run = federated(row, at_once, start=tmp_path / "last.ckpt")
    assert torch.equal(run.params, whole(row, at_once).params)
    assert run.at_once == whole(row, at_once).at_once


class Replay(Dataset[Any]):
    """A buffer that replays what was stored, as a Dataset."""

    def __init__(self) -> None:
        self.stored = list[Tensor]()

    def __getitem__(self, index: int) -> Tensor:
        return self.stored[index]

    def replayed(self, batch: Any) -> Any:
        self.stored.append(batch[0].detach())
        return 1 + sum(each.square().mean() for each in self.stored)


def cell() -> Any:
    count = 0

    def counts() -> int:
        nonlocal count
        count += 1
        return count

    return counts


CALLS = 0


def counts_in_global(self: Any, batch: Any) -> float:
    global CALLS
    CALLS += 1
    return 1 + 1 / CALLS


def counts_in_default(self: Any, batch: Any, calls: list[int] = [0]) -> float:  # noqa: B006  # the channel
    calls[0] += 1
    return 1 + 1 / calls[0]


def counts_in_function(self: Any, batch: Any) -> float:
    calls = vars(counts_in_function).get("calls", 0)
    counts_in_function.calls = calls + 1  # type: ignore[attr-defined]
    return 1 / (1 + calls)


def counts_in_class(self: Any, batch: Any) -> float:
    type(self).calls = getattr(type(self), "calls", 0) + 1
    return 1 + 1 / float(type(self).calls)


def counts_in_parameter(self: Any, batch: Any) -> float:
    weight = self.net[0].weight
    weight.calls = getattr(weight, "calls", 0) + 1
    return 1 + 1 / float(weight.calls)


def counts_in_environment(self: Any, batch: Any) -> float:
    os.environ["SIDE_CHANNEL"] = str(int(os.environ.get("SIDE_CHANNEL", "0")) + 1)
    return 1 + 1 / int(os.environ["SIDE_CHANNEL"])


def remembers_draws() -> Any:
    return lru_cache(lambda size: torch.rand((), dtype=torch.float64))


class Grows(Data):
    """Examples that grow each time they are asked for."""

    factor = 1.0

    def client_dataset(self, client: int) -> TensorDataset:
        type(self).factor += 0.1
        inputs, labels = super().client_dataset(client).tensors
        return TensorDataset(inputs * type(self).factor, labels)


HIDDEN = [  # what survives a client and cannot be put back
    row("Replays", hold=lambda self: Replay(), factor=lambda self, batch: self.held.replayed(batch)),
    row("BoundBuiltin", hold=lambda self: np.random.default_rng(3).random, factor=lambda self, batch: 1 + self.held()),
    row("InCell", hold=lambda self: cell(), factor=lambda self, batch: 1 + 1 / self.held()),
    row("InGlobal", factor=counts_in_global),
    row("InDefault", factor=counts_in_default),
    row("InFunction", factor=counts_in_function),
    row("InClass", factor=counts_in_class),
    row("InParameter", factor=counts_in_parameter),
    row("InEnvironment", factor=counts_in_environment),
    row("Cached", hold=lambda self: remembers_draws(), factor=lambda self, batch: 1 + self.held(len(batch[0]))),
    row(
        "Generator",
        hold=lambda self: (1 + 1 / count for count in range(1, 1000)),
        factor=lambda self, batch: next(self.held),
    ),
    row("RunsOut", hold=lambda self: iter([1.0] * 3), factor=lambda self, batch: next(self.held, 2.0)),
    Row(type("OfData", (Base,), {}), data=Grows),
]


@pytest.mark.parametrize("row", HIDDEN, ids=lambda row: row.module.__name__)
def test_a_client_that_does_not_repeat_itself_is_never_grouped(row: Row) -> None:
    """One after another, each of these ends elsewhere after the same fit, or with another order of clients."""
    one = federated(row, 1, rounds=1)
    other = federated(row, 1, rounds=1, order=(3, 1, 2, 0))
    assert not torch.equal(one.params, other.params)
    at_once = federated(row, 4)
    assert not at_once.at_once
    lines = [line for line in at_once.said if line.startswith("clients_at_once: clients train one after another")]
    assert len(lines) == 1
    assert re.search(r"sends differs by .* when it trains alone a second time", lines[0]), lines[0]


@pytest.mark.parametrize("row", [row for row in ROWS if row.refused], ids=str)
def test_refused_by_name(row: Row) -> None:
    with pytest.raises(ConfigurationError, match=row.refused):
        federated(row, 1)


@pytest.fixture(scope="module")
def on_two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What the rows that are asked for end with on two devices."""
    asked = asked_of(request)
    jobs = {f"{each['row']}.{each['at_once']}": partial(federated, each["row"], each["at_once"]) for each in asked}
    return on_two_devices(tmp_path_factory.mktemp("two"), jobs)


@pytest.mark.parametrize("at_once", [pytest.param(1, marks=pytest.mark.slow), 2])
@COVERED_ROW
def test_two_devices_give_the_bits_of_one(row: Row, at_once: int, on_two: dict[str, list[Any]]) -> None:
    for result in on_two[f"{row}.{at_once}"]:
        assert isinstance(result, Run), result
        assert torch.equal(result.params, whole(row, at_once).params)
