"""Compare clients that train at once with clients that train one after another.

Whole rounds on scikit-learn's digits with one thread, clients whose sizes differ by one at most unless a partition is
named, in batches of 10, one local epoch; runs interleaved, rounds counted in the second half of a run, when steps have
been compiled.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from lightning.pytorch import Callback
from torch import nn

from benchmarks.common import Clock, bare_trainer, quiet
from benchmarks.rows import Row, duration
from fl_lightning import FederatedOrchestrator
from fl_lightning import callbacks as rules
from fl_lightning.datamodules import Digits, Dirichlet, Partition
from fl_lightning.models import ImageClassifier

ROUNDS = 80  # of which the last half counts


def logistic() -> nn.Module:
    """Logistic regression: 650 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def perceptron(width: int = 64) -> nn.Module:
    """One hidden layer; with 64 units 4,810 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def convolution() -> nn.Module:
    """One convolution of 8 filters and a linear layer: 2,970 parameters."""
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


@dataclass(frozen=True)
class Case:
    """A network on a number of clients, with some rules.

    Args:
        name: the case as the table names it.
        network: makes the network.
        clients: number of clients.
        aim: the aim for clients at once, compiled, ÷ one by one.
        partition: deals the examples to the clients.
        rules: makers of the client rules.
    """

    name: str
    network: Callable[[], nn.Module]
    clients: int
    aim: str | None = None
    partition: Partition | None = None
    rules: tuple[Callable[[], Callback], ...] = ()


CASES = [
    Case("logistic regression, 10 clients", logistic, 10),
    Case("logistic regression, 100 clients", logistic, 100),
    Case("MLP 64-64-10, 20 clients", perceptron, 20, "≤ 0.08"),
    Case("MLP 64-64-10, 100 clients", perceptron, 100, "≤ 0.05"),
    Case("MLP 64-64-10, 20 clients, Dirichlet(0.1)", perceptron, 20, "≤ 0.5", Dirichlet(0.1)),
    Case("MLP 64-64-10, 100 clients, Dirichlet(0.1)", perceptron, 100, "≤ 0.5", Dirichlet(0.1)),
    Case("MLP 64-256-10, 20 clients", lambda: perceptron(256), 20),
    Case("MLP 64-1024-10, 20 clients", lambda: perceptron(1024), 20),
    Case("CNN, 20 clients", convolution, 20),
    Case("MLP, 20 clients, FedProx", perceptron, 20, "≤ 0.1", rules=(lambda: rules.FedProx(0.1),)),
    Case("MLP, 20 clients, SCAFFOLD", perceptron, 20, "≤ 0.1", rules=(rules.Scaffold,)),
    Case("MLP, 20 clients, FedSAM", perceptron, 20, "≤ 0.1", rules=(rules.FedSAM,)),
    Case("MLP, 20 clients, FedDecorr", perceptron, 20, "≤ 0.1", rules=(rules.FedDecorr,)),
    Case("MLP, 20 clients, MOON", perceptron, 20, "≤ 0.1", rules=(rules.MOON,)),
]


def rows(quick: bool, install: bool) -> Iterator[Row]:
    quiet()
    for case in CASES:
        at_once = {"clients_at_once": case.clients}
        ways = {
            "one by one": {},
            "at once": {**at_once, "compile_clients": False},
            "compiled": {**at_once, "compile_clients": True},
        }
        turns = [[seconds(case, **settings) for settings in ways.values()] for _ in range(2 if quick else 3)]
        medians = [median(column) for column in zip(*turns, strict=True)]
        for place, aim in ((1, None), (2, case.aim)):
            ratios = [turn[place] / turn[0] for turn in turns]
            note = f"{duration(medians[place])} ÷ {duration(medians[0])}"
            yield Row.over(ratios, "clients", f"digits, {case.name}", f"{list(ways)[place]} ÷ one by one", aim, note)


def seconds(case: Case, **settings: Any) -> float:
    """Median seconds of the rounds in the second half of a run."""
    clock = Clock()
    trainer = bare_trainer(ROUNDS, *(rule() for rule in case.rules), clock, limit_val_batches=0)
    orchestrator = FederatedOrchestrator(ImageClassifier(case.network()), **settings)
    trainer.fit(orchestrator, datamodule=Digits(num_clients=case.clients, batch_size=10, partition=case.partition))
    assert clock.at_once == ("clients_at_once" in settings)
    return median(clock.seconds[ROUNDS // 2 :])
