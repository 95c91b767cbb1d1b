"""Measure the cost of each client rule relative to FedAvg.

The 2NN trains on 10 clients of 512 random images, batch 64, one local epoch, six rounds per run, one thread, freed
memory kept as by the command line. The runs of all rules are interleaved. The table shows, for each rule, the median
ratio of its round to FedAvg's.

    python -m benchmarks.client_rules [repetitions]
"""

import sys
from collections.abc import Callable
from statistics import median

from lightning.pytorch import Callback

from benchmarks.common import Clock, RandomClients, bare_trainer, quiet
from fl_lightning import FederatedOrchestrator
from fl_lightning import callbacks as rules
from fl_lightning.models import ImageClassifier, TwoNN

RULES: dict[str, Callable[[], Callback]] = {
    "FedAvg": rules.FedAvg,
    "FedProx": lambda: rules.FedProx(0.1),
    "Scaffold": rules.Scaffold,
    "Scaffold, option I": lambda: rules.Scaffold("I"),
    "FedDyn": rules.FedDyn,
    "FedDecorr": rules.FedDecorr,
    "MOON": rules.MOON,
    "FedSAM": rules.FedSAM,
    "FedSMOO": rules.FedSMOO,
    "FedGAM, paper": lambda: rules.FedGAM("paper"),
    "FedGAM, released": rules.FedGAM,
    "FedGAMCV, released": rules.FedGAMCV,
}


def seconds(rule: Callback) -> float:
    """Median seconds of the third to sixth round; every client has taken part before."""
    clock, data = Clock(), RandomClients(10, 512, (1, 28, 28), batch_size=64, clients_per_batch=10)
    bare_trainer(6, rule, clock).fit(FederatedOrchestrator(ImageClassifier(TwoNN())), datamodule=data)
    return median(clock.seconds[2:])


if __name__ == "__main__":
    quiet()
    times: dict[str, list[float]] = {name: [] for name in RULES}
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 7):
        for name, make in RULES.items():
            times[name].append(seconds(make()))
    print(f"FedAvg takes {1000 * median(times['FedAvg']):.0f} ms a round\n| rule | ÷ FedAvg |\n|---|---|")
    for name, taken in times.items():
        ratios = [one / other for one, other in zip(taken, times["FedAvg"], strict=True)]
        print(f"| {name} | {median(ratios):.2f} |")
