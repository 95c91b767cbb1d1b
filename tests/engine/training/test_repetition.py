"""Repetition: whatever survives from client to client is told, in types that no table of the engine names, too.

Every row is a module that remembers the clients before it, somewhere. The control is a run in the other order of
clients: clients that are independent end in the same update whoever trains before them. Where the two runs agree to
the last bit, what the module remembers has been put back, and nothing is to be said; else one line must say so.
"""

import array
import contextvars
import ctypes
import itertools
import os
import queue
import sqlite3
import warnings
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lib.command import TINY, fit_on, process
from lib.toy import SEEN, Capture, Notes, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedCallback, FederatedDataModule, FederatedOrchestrator, Monitor

COUNT = {"seen": 0.0}
VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("seen", default=0.0)


class Data(FederatedDataModule):
    """Three clients with four examples each, all of them in every cohort, in a given order."""

    num_clients = 3

    def __init__(self, order: tuple[int, ...] = (0, 1, 2)) -> None:
        super().__init__(batch_size=2)
        self.order = order

    def cohort(self, round: int) -> list[int]:
        return list(self.order)

    def client_dataset(self, client: int) -> Any:
        draw = torch.Generator().manual_seed(client)
        return TensorDataset(torch.randn(4, 3, generator=draw), torch.randn(4, 1, generator=draw))


class Remembers(LightningModule):
    """Scales its loss by 1 + the number of batches that ``seen`` has counted so far, and counts this one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(3, 1)
        self.held: Any = self.hold()

    def hold(self) -> Any:
        return None

    def seen(self) -> float:
        return 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (1 + self.seen()) * nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Replay(Dataset[Any]):
    def __init__(self) -> None:
        self.examples: list[Any] = []


class Frame(Remembers):
    def hold(self) -> Any:
        return pd.DataFrame({"seen": [0.0]})

    def seen(self) -> float:
        self.held.loc[0, "seen"] += 1
        return float(self.held.loc[0, "seen"])


class Hook:
    """Keeps a number in an object that only a hook of a layer refers to."""

    calls = 0

    def scale(self, layer: Any, inputs: Any, output: Tensor) -> Tensor:
        self.calls += 1
        return output * self.calls


class Meter:
    calls = 0.0

    def __call__(self) -> float:
        self.calls += 1
        return self.calls


Meter.__module__ = "logging_utils"  # a user's own file, whose name begins like that of Python's module


def of(hold: Callable[[Any], Any], seen: Callable[[Any], float] = lambda self: self.held()) -> type[Remembers]:
    return type("Remembering", (Remembers,), {"hold": hold, "seen": seen})


def appends(self: Any) -> float:
    self.held.examples.append(1.0)
    return float(len(self.held.examples))


def counts_in(container: Any) -> Callable[[], float]:
    """A function that counts its calls in the first entry of a container."""

    def call() -> float:
        container[0] += 1
        return float(container[0])

    return call


def enclosed(self: Any) -> Any:
    calls = 0

    def call() -> float:
        nonlocal calls
        calls += 1
        return float(calls)

    return call


def counts_globally(self: Any) -> float:
    COUNT["seen"] += 1
    return COUNT["seen"]


def in_a_context(self: Any) -> float:
    VARIABLE.set(VARIABLE.get() + 1)
    return VARIABLE.get()


def in_the_environment(self: Any) -> float:
    os.environ["SEEN_BATCHES"] = str(float(os.environ.get("SEEN_BATCHES", 0)) + 1)
    return float(os.environ["SEEN_BATCHES"])


def of_the_class(self: Any) -> float:
    cls: Any = type(self)
    cls.calls = getattr(cls, "calls", 0) + 1
    return float(cls.calls)


def on_a_parameter(self: Any) -> float:
    self.net.weight.calls = getattr(self.net.weight, "calls", 0) + 1
    return float(self.net.weight.calls)


def by_default(self: Any, calls: Any = [0.0]) -> float:  # noqa: B006  # the side channel
    calls[0] += 1
    return float(calls[0])


def in_a_leaf(self: Any) -> float:
    leaf = self.held[0]
    leaf.grad = torch.ones(()) if leaf.grad is None else leaf.grad + 1
    return float(leaf.grad)


def in_a_cache(self: Any) -> float:
    for key in itertools.count():
        if self.held.cache_info().currsize <= key:
            self.held(key)
            return float(key)
    raise AssertionError


def in_a_database(self: Any) -> float:
    self.held.execute("insert into seen values (1)")
    return float(self.held.execute("select count(*) from seen").fetchone()[0])


def database(self: Any) -> Any:
    made = sqlite3.connect(":memory:")
    made.execute("create table seen (one)")
    return made


def in_a_queue(self: Any) -> float:
    self.held.put(1)
    return float(self.held.qsize())


def hooked(self: Any) -> None:
    self.net.register_forward_hook(Hook().scale)


class Key:
    pass


def weakly(self: Any) -> Any:
    key = Key()
    return key, weakref.WeakKeyDictionary({key: 0})


def in_a_weak_dictionary(self: Any) -> float:
    key, counts = self.held
    counts[key] += 1
    return float(counts[key])


def masked(self: Any) -> float:
    self.held[int(self.held.mask.sum())] = np.ma.masked
    return float(self.held.mask.sum())


ROWS: dict[str, type[Remembers]] = {
    # What has led astray before
    "a data set": of(lambda self: Replay(), appends),
    "a bound builtin": of(lambda self: np.random.default_rng(3).random),
    "a bound method": of(lambda self: Meter().__call__),
    "a generator": of(lambda self: (float(n) for n in range(10**6)), lambda self: next(self.held)),
    "an enclosing variable": of(enclosed),
    "a data frame": Frame,
    "a masked array": of(lambda self: np.ma.masked_array(np.zeros(99), mask=False), masked),
    "an attribute of a parameter": of(lambda self: None, on_a_parameter),
    "a cache": of(lambda self: lru_cache(None)(float), in_a_cache),
    "a meter of logging_utils": of(lambda self: Meter()),
    "an object of a hook": of(hooked, lambda self: 0.0),
    "a gradient of a leaf": of(lambda self: [torch.zeros((), requires_grad=True)], in_a_leaf),
    "a global": of(lambda self: None, counts_globally),
    # What no table names
    "an array of Python": of(lambda self: array.array("d", [0.0]), lambda self: counts_in(self.held)()),
    "memory of C": of(lambda self: (ctypes.c_double * 1)(), lambda self: counts_in(self.held)()),
    "a memory view": of(lambda self: memoryview(bytearray(8)).cast("d"), lambda self: counts_in(self.held)()),
    "an endless iterator": of(lambda self: itertools.count(1.0), lambda self: next(self.held)),
    "a variable of the context": of(lambda self: None, in_a_context),
    "the environment": of(lambda self: None, in_the_environment),
    "a class": of(lambda self: None, of_the_class),
    "a default argument": of(lambda self: None, by_default),
    "a database": of(database, in_a_database),
    "a queue": of(lambda self: queue.SimpleQueue(), in_a_queue),
    "a weak dictionary": of(weakly, in_a_weak_dictionary),
    "an array of objects": of(lambda self: np.array([0.0, None], object), lambda self: counts_in(self.held)()),
}


NAMED = {  # rows of which the line names the attribute, the global or the class that remembers
    "a data set": "Remembering.held",
    "a bound builtin": "Remembering.held",
    "a bound method": "Remembering.held",
    "a generator": "Remembering.held",
    "an enclosing variable": "Remembering.held",
    "a data frame": "Frame.held",
    "a cache": "Remembering.held",
    "an attribute of a parameter": "an attribute of net.weight",
    "an object of a hook": "Linear._forward_hooks",
    "a global": f"{__name__}.COUNT",
    "an endless iterator": "Remembering.held",
    "a class": "Remembering.calls",
    "a default argument": "Remembering.seen",
}


def run(
    kind: Callable[[], LightningModule], order: tuple[int, ...] = (0, 1, 2), data: Any = None, **settings: Any
) -> tuple[dict[int, Tensor], list[str]]:
    """Train a round; return each client's model, and what was said."""
    capture = Capture()
    orchestrator = FederatedOrchestrator(kind(), on_bad_update="raise", **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(capture).fit(orchestrator, datamodule=data or Data(order))
    return dict(zip(capture.clients, capture.params, strict=True)), [str(each.message) for each in caught]


def told(said: list[str]) -> list[str]:
    return [line for line in said if "survives from client to client" in line]


@pytest.mark.parametrize("name", ROWS)
def test_a_module_that_remembers_clients_holds_or_is_told(name: str) -> None:
    """The control is the other order of clients: an independent client ends where it did, in every bit."""
    ends, said = run(ROWS[name])
    others, _ = run(ROWS[name], order=(2, 1, 0))
    holds = all(torch.equal(ends[client], others[client]) for client in ends)
    lines = told(said)
    assert len(lines) == (not holds)
    assert not holds or name in ("a meter of logging_utils", "a weak dictionary")
    if name in NAMED:
        assert f"({NAMED[name]})" in lines[0]
    assert not any("the change is dropped" in line for line in said) or holds


def test_the_run_stops_where_that_is_asked_for() -> None:
    with pytest.raises(ConfigurationError, match=r"client 0 of round 1 trained a second time.*Remembering\.held"):
        run(ROWS["a data set"], on_hidden_state="raise")
    with pytest.raises(ConfigurationError, match="on_hidden_state must be 'warn', 'raise' or 'off', got 'no'"):
        FederatedOrchestrator(Remembers(), on_hidden_state="no")  # type: ignore[arg-type]  # refused


def test_the_check_changes_nothing_and_takes_one_client_a_fit() -> None:
    """Three clients of two batches in two rounds: 12 steps, and the first client's two once more."""
    ends, steps = {}, {}
    for setting in ("warn", "off"):
        counted = Notes()

        class Counts(Remembers):
            def training_step(self, batch: Any, batch_idx: int) -> Tensor:
                counted.append(self.trainer.current_epoch)  # noqa: B023
                return super().training_step(batch, batch_idx)

        orchestrator = FederatedOrchestrator(Counts(), on_hidden_state=setting)  # type: ignore[arg-type]
        trainer(rounds=2).fit(orchestrator, datamodule=Data())
        ends[setting], steps[setting] = orchestrator.params, len(counted)
    assert torch.equal(ends["warn"], ends["off"])
    assert steps == {"warn": 14, "off": 12}


class Looks(Monitor):
    """Counts what it sees of clients' training."""

    calls = 0

    def on_client_start(self, orchestrator: Any, run: Any) -> None:
        self.calls += 1

    def loss(self, run: Any, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        self.calls += 1
        return loss


def test_monitors_do_not_see_the_second_training() -> None:
    """Three clients of two batches each."""
    looks = Looks()
    trainer(looks).fit(FederatedOrchestrator(Remembers()), datamodule=Data())
    assert looks.calls == 3 + 6


class Warms(FederatedCallback):
    """Counts its calls and its clients, and pulls to the anchor from the eighth call on."""

    def __init__(self) -> None:
        self.calls = 0
        self.clients: list[int] = []

    def on_client_start(self, orchestrator: Any, run: Any) -> None:
        self.clients.append(run.client)

    def on_before_client_step(self, run: Any) -> None:
        self.calls += 1
        if self.calls > 7:
            run.grads.add_(run.params - run.anchor)


def test_what_a_rule_counts_is_put_back_after_the_second_training() -> None:
    """Three clients of two batches in two rounds: twelve calls, with the check and without."""
    ends = []
    for setting in ("warn", "off"):
        rule, orchestrator = Warms(), FederatedOrchestrator(Remembers(), on_hidden_state=setting)  # type: ignore[arg-type]
        trainer(rule, rounds=2).fit(orchestrator, datamodule=Data())
        assert (rule.calls, rule.clients) == (12, [0, 1, 2, 0, 1, 2])
        ends.append(orchestrator.params)
    assert torch.equal(*ends)


class Lists(FederatedCallback):
    """Writes down the clients that start."""

    stacks = True

    def __init__(self) -> None:
        self.clients: list[int] = []

    def on_client_start(self, orchestrator: Any, run: Any) -> None:
        self.clients.append(run.client)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_rule_sees_each_client_once_whatever_is_checked(at_once: int) -> None:
    """Clients at once are compared with one that trains alone, twice, in both rounds."""
    rule = Lists()
    orchestrator = FederatedOrchestrator(Remembers(), clients_at_once=at_once)
    trainer(rule, rounds=2).fit(orchestrator, datamodule=Data())
    assert SEEN[orchestrator].group_size == at_once
    assert sorted(rule.clients) == [0, 0, 1, 1, 2, 2]


class Failing(Remembers):
    """Fails when it has trained three clients."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        COUNT["failing"] = COUNT.get("failing", 0) + 1
        if COUNT["failing"] > 6:
            raise ValueError("seven batches")
        return super().training_step(batch, batch_idx)


def test_a_second_training_that_fails_is_told() -> None:
    (line,) = told(run(Failing)[1])
    assert "fails, ValueError: seven batches" in line


class Noisy(Dataset[Any]):
    """Adds noise of a generator of its own to each example, as a transform does that no global seed reaches."""

    def __init__(self) -> None:
        self.draw = np.random.default_rng(3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.draw.random(3), dtype=torch.float32), torch.ones(1)


class NoisyData(Data):
    def __init__(self) -> None:
        super().__init__()
        self.examples = Noisy()

    def client_dataset(self, client: int) -> Any:
        return self.examples


def test_a_transform_with_a_generator_of_its_own_is_told() -> None:
    _, said = run(Remembers, data=NoisyData())
    (line,) = told(said)
    assert "(NoisyData.examples)" in line


FITS = """
import torch
from fl_lightning.models import ImageClassifier

MEAN = []


class Fits(ImageClassifier):
    def training_step(self, batch, batch_idx):
        if not MEAN:
            MEAN.append(batch[0].mean())
        return super().training_step([batch[0] - MEAN[0], batch[1]], batch_idx)
"""


def test_what_each_device_fills_once_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A global that the first batch fills: the client that one device has trained first ends elsewhere on the other."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("mine.py").write_text(FITS)
    fit_on(1, "--model.client=mine.Fits", "--model.on_hidden_state=raise")  # one device has filled it itself
    ended = process(
        "fit", "--config=tiny.yaml", "--model.client=mine.Fits", "--model.on_hidden_state=raise", "--trainer.devices=2"
    )
    assert ended.returncode == 2
    assert "several devices: what code of your own computes once and keeps" in ended.stdout
    assert "ends elsewhere than on the device that trained it first" in ended.stderr


def test_devices_of_which_one_has_no_client_end_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    fit_on(2, "--model.on_hidden_state=raise", "--data.participation=1", "--trainer.max_epochs=1")
