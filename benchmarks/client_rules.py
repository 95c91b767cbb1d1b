"""Compare the rounds of the client rules with FedAvg's.

The 2NN trains on 10 clients of 512 random images, batch 64, one local epoch, six rounds per run, one thread, freed
memory kept as by the command line. The runs of all rules are interleaved.
"""

from collections.abc import Callable, Iterator
from statistics import median

from lightning.pytorch import Callback
from torch import Tensor

from benchmarks.common import Clock, RandomClients, bare_trainer, quiet
from benchmarks.rows import Row, duration
from fl_lightning import FederatedCallback, FederatedOrchestrator, LocalRun, Server
from fl_lightning import callbacks as rules
from fl_lightning.models import ImageClassifier, TwoNN


class EmptyUpload(FederatedCallback):
    """Sends what the client has learned, by the hook that may change it."""

    def upload(self, orchestrator: Server, run: LocalRun, update: Tensor) -> Tensor:
        """Return the update."""
        return update


RULES: dict[str, Callable[[], Callback]] = {
    "FedAvg": rules.FedAvg,
    "an upload hook": EmptyUpload,
    "LocalPart": lambda: rules.LocalPart(["network.5"]),
    "TopK": rules.TopK,
    "Ditto": rules.Ditto,
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

AIMS = {"FedGAM, released": "≤ 4.3"}


def seconds(rule: Callback) -> float:
    """Median seconds of the third to sixth round; every client has taken part before."""
    clock, data = Clock(), RandomClients(10, 512, (1, 28, 28), batch_size=64, clients_per_batch=10)
    bare_trainer(6, rule, clock).fit(FederatedOrchestrator(ImageClassifier(TwoNN())), datamodule=data)
    return median(clock.seconds[2:])


def rows(quick: bool, install: bool) -> Iterator[Row]:
    quiet()
    turns = [{name: seconds(make()) for name, make in RULES.items()} for _ in range(2 if quick else 3)]
    for name in list(RULES)[1:]:
        ratios = [turn[name] / turn["FedAvg"] for turn in turns]
        taken = duration(median(turn[name] for turn in turns))
        usual = duration(median(turn["FedAvg"] for turn in turns))
        yield Row.over(ratios, "rules", name, "rule ÷ FedAvg", AIMS.get(name), f"{taken} ÷ {usual}")
