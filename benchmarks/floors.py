"""Compare local training with loops written by hand: whole rounds, one thread, interleaved in one process.

JAX computes in a process of its own, which trains a round when asked to and says how long it took.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from benchmarks import environments
from benchmarks.common import RandomClients, quiet
from benchmarks.local import LEARNING_RATE, Module, by_hand, from_loader, gathered, interleaved, ratio
from benchmarks.rows import Row, duration
from fl_lightning import FederatedOrchestrator
from fl_lightning.models import SimpleCNN, TwoNN

LARGE: dict[str, tuple[Callable[[], nn.Module], int, int, tuple[int, ...], str]] = {  # …, clients, samples, shape, aim
    "2NN, 20 clients × 500 samples, batch 64": (TwoNN, 20, 500, (784,), "≤ 1.03"),
    "SimpleCNN, 4 clients × 256 images, batch 64": (SimpleCNN, 4, 256, (3, 32, 32), "≤ 1.02"),
}
SAMPLES, BATCH = 60, 10
ALONE, AT_ONCE, COMPILED = "ours", "ours at once", "ours compiled"


@dataclass(frozen=True)
class Small:
    """Clients of a small model, six batches of ten each; ``hidden`` is 0 for logistic regression."""

    name: str
    inputs: int
    hidden: int
    clients: int
    aims: dict[str, str] = field(default_factory=dict)  # one by one: ours ÷ tuned loop; compiled: ours ÷ JAX

    def network(self) -> nn.Module:
        if not self.hidden:
            return nn.Linear(self.inputs, 10)
        return nn.Sequential(nn.Linear(self.inputs, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 10))


SMALL = [
    Small("logistic regression, 10 clients × 6 steps of 10", 784, 0, 10, {ALONE: "≤ 1.4", COMPILED: "≤ 2"}),
    Small("logistic regression, 100 clients × 6 steps of 10", 784, 0, 100, {COMPILED: "≤ 1.2"}),
    Small("MLP 64-64-10, 20 clients × 6 steps of 10", 64, 64, 20, {ALONE: "≤ 1.25", COMPILED: "≤ 3"}),
    Small("MLP 64-64-10, 100 clients × 6 steps of 10", 64, 64, 100, {COMPILED: "≤ 2"}),
]


def rows(quick: bool, install: bool) -> Iterator[Row]:
    quiet()
    for name, (make, clients, samples, shape, aim) in LARGE.items():
        data = RandomClients(clients, samples, shape, batch_size=64, clients_per_batch=clients)
        yield from _one_by_one(name, make, data, quick, aim)
    for case in SMALL:
        if ALONE in case.aims:
            data = RandomClients(case.clients, SAMPLES, (case.inputs,), batch_size=BATCH)
            yield from _one_by_one(case.name, case.network, data, quick, case.aims[ALONE])
        yield from _at_once(case, quick, install)


def _one_by_one(name: str, make: Callable[[], nn.Module], data: RandomClients, quick: bool, aim: str) -> Iterator[Row]:
    others = {
        "tuned loop": by_hand(make(), data, gathered(data.batch_size)),
        "DataLoader loop": by_hand(make(), data, from_loader(data.batch_size)),
    }
    repeats, turns = (4, 2) if quick else (10, 3)
    taken = [interleaved(FederatedOrchestrator(Module(make())), data, others, repeats) for _ in range(turns)]
    yield _row(taken, name, ALONE, "tuned loop", aim)
    yield _row(taken, name, ALONE, "DataLoader loop", "≤ 1")


def _at_once(case: Small, quick: bool, install: bool) -> Iterator[Row]:
    """Compare clients at once with stacks made by hand, and with JAX; compiled, too, where that can be asked for."""
    data = RandomClients(case.clients, SAMPLES, (case.inputs,), batch_size=BATCH)
    ways: dict[str, dict[str, Any]] = {AT_ONCE: {"compile_clients": False}, COMPILED: {"compile_clients": True}}
    others: dict[str, Callable[[], float]] = {"stacked by hand": stacked(case.network(), data)}
    with ExitStack() as stack:
        try:
            others["JAX"] = jax_rounds(case, environments.python("jax", install), stack)
        except environments.UnavailableError as error:
            yield Row("floors", case.name, "ours at once ÷ JAX", note=str(error))
        for way, settings in ways.items():
            turns = []
            for _ in range(2 if quick else 3):
                ours = FederatedOrchestrator(Module(case.network()), clients_at_once=case.clients, **settings)
                turns.append(interleaved(ours, data, others, 20 if quick else 40, warm_up=20))
            for other in others:
                yield _row(turns, case.name, way, other, case.aims.get(way) if other == "JAX" else None)


def _row(turns: list[dict[str, list[float]]], case: str, way: str, other: str, aim: str | None = None) -> Row:
    ours, theirs = (duration(median(median(turn[key]) for turn in turns)) for key in ("ours", other))
    ratios = [ratio(turn, other) for turn in turns]
    return Row.over(ratios, "floors", case, f"{way} ÷ {other}", aim, f"{ours} ÷ {theirs}")


def stacked(network: nn.Module, data: RandomClients) -> Callable[[], float]:
    """Make a plain loop that trains a round's clients in lock-step, averages them and returns the seconds taken."""
    model = {name: parameter.detach() for name, parameter in network.named_parameters()}
    clients, samples = data.classes.shape
    offsets = samples * torch.arange(clients)[:, None]
    inputs, classes = data.inputs.flatten(0, 1), data.classes.flatten()

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(network, parameters, (x,)), y)

    gradients = vmap(grad_and_value(loss))

    def round() -> float:
        start = perf_counter()
        stacks = {name: value.expand(clients, *value.shape) for name, value in model.items()}
        order = torch.stack([torch.randperm(samples) for _ in range(clients)]) + offsets
        batches = zip(inputs[order].split(data.batch_size, 1), classes[order].split(data.batch_size, 1), strict=True)
        for x, y in batches:
            grads, _ = gradients(stacks, x, y)
            stacks = {name: stack - LEARNING_RATE * grads[name] for name, stack in stacks.items()}
        for name, stack in stacks.items():
            model[name].copy_(stack.mean(0))
        return perf_counter() - start

    return round


def jax_rounds(case: Small, interpreter: str, stack: ExitStack) -> Callable[[], float]:
    """Start JAX, and make a function that has it train a round and returns the seconds taken.

    Raises:
        UnavailableError: JAX does not train the first round.
    """
    sizes = [case.inputs, case.hidden, case.clients, SAMPLES, BATCH, LEARNING_RATE]
    command = [interpreter, str(environments.SCRIPTS / "with_jax.py"), *map(str, sizes)]
    process: Any = stack.enter_context(environments.started(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL))

    def round() -> float:
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    try:
        round()
    except (ValueError, OSError):
        raise environments.UnavailableError("does not run: benchmarks/peers/with_jax.py says why") from None
    return round
