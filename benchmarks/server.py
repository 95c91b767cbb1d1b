"""Measure the cost of each server rule relative to FedAvg's weighted sum.

Every rule in turn aggregates the same round's updates of K clients with P parameters, on one thread. The table shows
medians of the ratios to FedAvg, which reads the updates once; repetitions are interleaved. Rules that learn on a proxy
set are left out: they cost as much as their passes over the proxy set.

    python benchmarks/server.py [K] [P] [repetitions]
"""

import logging
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import Cohort, FederatedCallback, FederatedDataModule, FederatedOrchestrator
from fl_lightning import callbacks as rules

CLIENTS, PARAMETERS, REPETITIONS = (int(a) for a in (*sys.argv[1:], *("20", "1200000", "9")[len(sys.argv) - 1 :]))
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

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(PARAMETERS))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return (self.w * torch.randn(PARAMETERS)).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Clients(FederatedDataModule):
    """K clients with one example each."""

    num_clients = CLIENTS

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.zeros(1))


class Compare(FederatedCallback):
    """Times every rule on the cohort of the round, with uncorrected updates."""

    def on_round_end(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> None:
        times: dict[str, list[float]] = {name: [] for name in RULES}
        made = {name: make() for name, make in RULES.items()}
        for rule in made.values():
            rule.setup(orchestrator.trainer, orchestrator, "fit")
        for _ in range(REPETITIONS):
            for name, rule in made.items():
                fresh = cohort.replace(deltas=cohort.deltas)  # without the Gram matrix of the rule before
                start = time.perf_counter()
                aggregated = rule.aggregate(orchestrator, fresh)
                update = aggregated.update if rule.reduce is None else rule.reduce(orchestrator, aggregated)
                rule.update(orchestrator, aggregated, update)
                times[name].append(time.perf_counter() - start)
        print(f"K = {CLIENTS}, P = {PARAMETERS:,}: FedAvg takes {1000 * median(times['FedAvg']):.0f} ms")
        print("| rule | ÷ FedAvg |\n|---|---|")
        for name, taken in times.items():
            ratios = [one / other for one, other in zip(taken, times["FedAvg"], strict=True)]
            print(f"| {name} | {median(ratios):.1f} |")


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Compare()],
    )
    trainer.fit(FederatedOrchestrator(Module()), datamodule=Clients(batch_size=1))
