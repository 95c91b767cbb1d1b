"""Measure how much faster two processes train than one.

SimpleCNN trains on 20 clients of 128 random images, batch 64, in rounds of all clients. One and two processes, each
with one thread, take turns.

    python -m benchmarks.devices [turns]
"""

import json
import sys
from statistics import median

from lightning.pytorch.utilities import rank_zero_only

from benchmarks.common import Clock, RandomClients, bare_trainer, quiet
from benchmarks.environments import last_line
from benchmarks.local import Module
from benchmarks.rows import duration
from fl_lightning import FederatedOrchestrator
from fl_lightning.models import SimpleCNN

ROUNDS, LIMIT = 8, 300.0


def seconds(devices: int) -> float:
    """Median seconds of the rounds after the first two of a run on some devices."""
    quiet()
    clock, data = Clock(), RandomClients(20, 128, (3, 32, 32), batch_size=64, clients_per_batch=20)
    trainer = bare_trainer(ROUNDS, clock, devices=devices, strategy="client_parallel" if devices > 1 else "auto")
    trainer.fit(FederatedOrchestrator(Module(SimpleCNN())), datamodule=data)
    return median(clock.seconds[2:])


def main(turns: int) -> None:
    commands = [[sys.executable, "-m", "benchmarks.devices", "on", str(count)] for count in (1, 2)]
    one: list[float] = []
    two: list[float] = []
    for _ in range(turns):
        one.append(last_line(commands[0], LIMIT)["seconds"])
        two.append(last_line(commands[1], LIMIT)["seconds"])
    ratio = median(second / first for first, second in zip(one, two, strict=True))
    print(f"one process {duration(median(one))} a round, two {duration(median(two))}, ratio {ratio:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["on"]:
        taken = seconds(int(sys.argv[2]))
        rank_zero_only(print)(json.dumps({"seconds": taken}))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
