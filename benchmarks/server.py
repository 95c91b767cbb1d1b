"""Measure the cost of each server rule relative to FedAvg's weighted sum.

Every rule in turn aggregates the same round's updates of K clients with P parameters, on one thread. The table shows
medians of the ratios to FedAvg, which reads the updates once; repetitions are interleaved. Rules that learn on a proxy
set are left out: they cost as much as their passes over the proxy set.

    python -m benchmarks.server [K] [P] [repetitions]
"""

import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from benchmarks.common import RandomClients, bare_trainer, quiet
from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator, Server
from fl_lightning import callbacks as rules

Others = Mapping[str, Callable[[Cohort], Tensor]]  # functions by the names of their rows
RULES: dict[str, Callable[[], FederatedCallback]] = {
    "FedAvg": rules.FedAvg,
    "FedNova": rules.FedNova,
    "GradientHarmonization": rules.GradientHarmonization,
    "DominantGradientCorrection": rules.DominantGradientCorrection,
    "PCGrad": rules.PCGrad,
    "FedFV": rules.FedFV,
    "FedMGDAPlus": rules.FedMGDAPlus,
    "CAGrad": rules.CAGrad,
    "Krum": lambda: rules.Krum(4),
    "GeometricMedian": rules.GeometricMedian,
    "NormClipping": rules.NormClipping,
    "CentredClipping": lambda: rules.CentredClipping(1.0),
    "CoordinateMedian": rules.CoordinateMedian,
    "TrimmedMean": lambda: rules.TrimmedMean(0.2),
    "FedAvgM": rules.FedAvgM,
    "FedAdam": rules.FedAdam,
}


class Module(LightningModule):
    """A module of P parameters whose gradient is random noise, so that every client's update is noise."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(parameters))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return (self.w * torch.randn_like(self.w)).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Compare(FederatedCallback):
    """Times rules, and other functions of the cohort, on the cohort of the round, with uncorrected updates."""

    def __init__(self, made: dict[str, FederatedCallback], others: Others, repetitions: int) -> None:
        self.made, self.others, self.repetitions = made, others, repetitions
        self.seconds: dict[str, list[float]] = {name: [] for name in (*made, *others)}
        self.results: dict[str, Any] = {}

    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        for rule in self.made.values():
            rule.setup(orchestrator.trainer, orchestrator, "fit")
        ways = {name: _run(rule, orchestrator) for name, rule in self.made.items()}
        ways.update(self.others)
        for _ in range(self.repetitions):
            for name, way in ways.items():
                fresh = cohort.replace(deltas=cohort.deltas)  # without the Gram matrix of the rule before
                start = time.perf_counter()
                self.results[name] = way(fresh)
                self.seconds[name].append(time.perf_counter() - start)


def _run(rule: FederatedCallback, orchestrator: Server) -> Callable[[Cohort], Tensor]:
    def run(cohort: Cohort) -> Tensor:
        aggregated = rule.aggregate(orchestrator, cohort)
        update = aggregated.update if rule.reduce is None else rule.reduce(orchestrator, aggregated)
        return rule.update(orchestrator, aggregated, update)

    return run


def measure(
    clients: int,
    parameters: int,
    repetitions: int,
    made: dict[str, FederatedCallback],
    others: Others | None = None,
) -> Compare:
    """Time rules, and other functions of the same cohort of K ``clients`` with P ``parameters``, interleaved."""
    compare = Compare(made, others or {}, repetitions)
    data = RandomClients(clients, 1, (1,), batch_size=1)
    bare_trainer(1, compare).fit(FederatedOrchestrator(Module(parameters)), datamodule=data)
    return compare


if __name__ == "__main__":
    quiet()
    clients, parameters, repetitions = (int(a) for a in (*sys.argv[1:], *("20", "1200000", "9")[len(sys.argv) - 1 :]))
    times = measure(clients, parameters, repetitions, {name: make() for name, make in RULES.items()}).seconds
    print(f"K = {clients}, P = {parameters:,}: FedAvg takes {1000 * median(times['FedAvg']):.0f} ms")
    print("| rule | ÷ FedAvg |\n|---|---|")
    for name, taken in times.items():
        ratios = [one / other for one, other in zip(taken, times["FedAvg"], strict=True)]
        print(f"| {name} | {median(ratios):.1f} |")
