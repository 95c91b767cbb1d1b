"""The case that every framework trains: logistic regression, 10 clients × 6 batches of 10, plain SGD, FedAvg.

A script beside this file trains the case in one framework: ``python benchmarks/peers/with_NAME.py ROUNDS``, in an
environment that has the framework. The last line that the script prints is JSON: the seconds of each round after the
warm-up, and the loss of the trained model, by which the frameworks are known to train the same.
"""

import json
import sys
import time
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

CLIENTS, SAMPLES, INPUTS, CLASSES, BATCH, RATE = 10, 60, 784, 10, 10, 0.01
WARM_UP = 10


def rounds() -> int:
    """Return the number of rounds, warm-up included; the command line gives those that count."""
    return WARM_UP + int(sys.argv[1] if len(sys.argv) > 1 else 10)


@cache
def clients() -> tuple[Any, Any]:
    """Make the clients' inputs (10, 60, 784) and classes (10, 60), which a linear model has drawn."""
    draw = np.random.default_rng(0)
    inputs = draw.standard_normal((CLIENTS, SAMPLES, INPUTS), dtype=np.float32)
    return inputs, (inputs @ draw.standard_normal((INPUTS, CLASSES), dtype=np.float32)).argmax(-1)


class Stopwatch:
    """Notes the time at the start of the first round and at the end of every round."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def stamp(self) -> None:
        self.stamps.append(time.perf_counter())

    def report(self, weight: Any, bias: Any) -> None:
        """Print the seconds of the rounds and the loss of the model with ``weight`` (10, 784) and ``bias`` (10,)."""
        inputs, classes = clients()
        logits = inputs @ np.asarray(weight).T + np.asarray(bias)
        right = np.take_along_axis(logits, classes[..., None], -1)[..., 0]
        loss = float((np.log(np.exp(logits).sum(-1)) - right).mean())
        print(json.dumps({"seconds": [b - a for a, b in pairwise(self.stamps)][WARM_UP:], "loss": loss}))
