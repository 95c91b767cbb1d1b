"""Measure what keeping freed memory saves.

Two CNNs and the 2NN train on 4 clients of 256 random images, batch 64, one local epoch, seven rounds per run, one
thread, each run in a process of its own: with glibc's usual allocator, and with ``keep_freed_memory``. Runs are
interleaved. The table shows the median round of each, and the median ratio.

    python -m benchmarks.allocator [repetitions]
"""

import multiprocessing
import sys
from statistics import median

from benchmarks.common import Clock, RandomClients, bare_trainer, quiet
from fl_lightning import FederatedOrchestrator, models

SHAPES = {"SimpleCNN": (3, 32, 32), "TwoLayerCNN": (3, 32, 32), "TwoNN": (1, 28, 28)}


def seconds(case: tuple[str, bool]) -> float:
    """Median seconds of the rounds after the first two of a run; ``case`` is a network and whether memory is kept."""
    name, kept = case
    quiet(kept)
    clock, data = Clock(), RandomClients(4, 256, SHAPES[name], batch_size=64, clients_per_batch=4)
    module = models.ImageClassifier(getattr(models, name)())
    bare_trainer(7, clock).fit(FederatedOrchestrator(module), datamodule=data)
    return median(clock.seconds[2:])


if __name__ == "__main__":
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'network':<14}{'usual':>12}{'kept':>12}{'ratio':>8}")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in SHAPES:
            pairs = [pool.map(seconds, [(name, False), (name, True)], chunksize=1) for _ in range(repetitions)]
            usual, kept = (median(column) for column in zip(*pairs, strict=True))
            ratio = median(second / first for first, second in pairs)
            print(f"{name:<14}{1e3 * usual:>9.1f} ms{1e3 * kept:>9.1f} ms{ratio:>8.2f}", flush=True)
