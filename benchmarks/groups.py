"""Measure what training clients at once saves.

Whole rounds on scikit-learn's digits with one thread, clients of equal size in batches of 10, one local epoch: clients
one after another (``clients_at_once=1``) and all at once, runs interleaved. The table shows the median round of each,
after the steps have been traced, and the ratio.

    python -m benchmarks.groups [repetitions]
"""

import sys
from collections.abc import Callable
from statistics import median

from lightning.pytorch import Callback
from torch import nn

from benchmarks.common import Clock, bare_trainer, quiet
from fl_lightning import FederatedOrchestrator
from fl_lightning import callbacks as rules
from fl_lightning.datamodules import Digits
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


CASES: dict[str, tuple[Callable[[], nn.Module], int, list[Callable[[], Callback]]]] = {
    "logistic regression, 10 clients": (logistic, 10, []),
    "logistic regression, 100 clients": (logistic, 100, []),
    "MLP 64-64-10, 20 clients": (perceptron, 20, []),
    "MLP 64-64-10, 100 clients": (perceptron, 100, []),
    "MLP 64-256-10, 20 clients": (lambda: perceptron(256), 20, []),
    "MLP 64-1024-10, 20 clients": (lambda: perceptron(1024), 20, []),
    "CNN, 20 clients": (convolution, 20, []),
    "MLP, 20 clients, FedProx": (perceptron, 20, [lambda: rules.FedProx(0.1)]),
    "MLP, 20 clients, Scaffold": (perceptron, 20, [rules.Scaffold]),
    "MLP, 20 clients, FedSAM": (perceptron, 20, [rules.FedSAM]),
    "MLP, 20 clients, FedDecorr": (perceptron, 20, [rules.FedDecorr]),
    "MLP, 20 clients, MOON": (perceptron, 20, [rules.MOON]),
}


def seconds(network: nn.Module, clients: int, at_once: int, chosen: list[Callable[[], Callback]]) -> float:
    """Median seconds of the rounds in the second half of a run."""
    clock = Clock()
    trainer = bare_trainer(ROUNDS, *(rule() for rule in chosen), clock, limit_val_batches=0)
    orchestrator = FederatedOrchestrator(ImageClassifier(network), clients_at_once=at_once)
    trainer.fit(orchestrator, datamodule=Digits(num_clients=clients, batch_size=10))
    assert orchestrator.group_size == at_once
    return median(clock.seconds[ROUNDS // 2 :])


if __name__ == "__main__":
    quiet()
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"{'case':<36}{'one by one':>12}{'at once':>10}{'ratio':>8}")
    for name, (make, clients, chosen) in CASES.items():
        pairs = [[seconds(make(), clients, at_once, chosen) for at_once in (1, clients)] for _ in range(repetitions)]
        alone, together = (median(each) for each in zip(*pairs, strict=True))
        ratio = median(second / first for first, second in pairs)
        print(f"{name:<36}{1e3 * alone:>9.1f} ms{1e3 * together:>7.1f} ms{ratio:>8.2f}", flush=True)
