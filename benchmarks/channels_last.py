"""Measure what ``model.channels_last`` saves.

Each network trains on 2 clients of 128 random images, batch 64, one local epoch, five rounds per run, one thread, with
the channels in their usual place and last. Runs are interleaved. The table shows the median round of each, and the
median ratio.

    python -m benchmarks.channels_last [repetitions]
"""

import sys
from statistics import median

from torch import nn

from benchmarks.common import Clock, RandomClients, bare_trainer, quiet
from fl_lightning import FederatedOrchestrator, models
from fl_lightning.models import ImageClassifier

COLOUR = (3, 32, 32)
NETWORKS = [
    "SimpleCNN()",
    "TimmNetwork('mobilenetv2_100')",
    "CifarResNet(8)",
    "CifarResNet(20)",
    "LeNet()",
    "TwoLayerCNN()",
    "CifarAlexNet()",
    "WithGroupNorm(CifarResNet(20))",
]


def seconds(network: nn.Module, last: bool) -> float:
    """Median seconds of the rounds after the first of a run."""
    clock, data = Clock(), RandomClients(2, 128, COLOUR, batch_size=64, clients_per_batch=2)
    orchestrator = FederatedOrchestrator(ImageClassifier(network), channels_last=last)
    bare_trainer(5, clock).fit(orchestrator, datamodule=data)
    return median(clock.seconds[1:])


if __name__ == "__main__":
    quiet()
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"{'network':<36}{'usual':>12}{'last':>12}{'ratio':>8}")
    for name in NETWORKS:
        pairs = [[seconds(eval(name, vars(models)), last) for last in (False, True)] for _ in range(repetitions)]
        usual, last = (median(column) for column in zip(*pairs, strict=True))
        ratio = median(second / first for first, second in pairs)
        print(f"{name:<36}{1e3 * usual:>9.1f} ms{1e3 * last:>9.1f} ms{ratio:>8.2f}", flush=True)
