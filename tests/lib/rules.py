"""Every server rule and every client rule that ships, for the tests that go through all of them.

A tiny classifier with batch normalisation and its data, on which any of them runs two rounds in some 50 ms.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import lists
import torch
import yaml
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import FederatedCallback, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import (
    APFL,
    MOON,
    Bucketing,
    Bulyan,
    CAGrad,
    CentredClipping,
    CoordinateMedian,
    Ditto,
    DnC,
    DominantGradientCorrection,
    FedAdagrad,
    FedAdam,
    FedALA,
    FedAMP,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBABU,
    FedBE,
    FedBN,
    FedBuff,
    FedDecorr,
    FedDF,
    FedDyn,
    FedFV,
    FedGAM,
    FedGAMCV,
    FedLAG,
    FedLAW,
    FedMGDAPlus,
    FedNova,
    FedProx,
    FedROD,
    FedSAM,
    FedSMOO,
    FedYogi,
    FineTuning,
    FocalLoss,
    GeometricMedian,
    GlobalWeightShrinking,
    GradientHarmonization,
    Krum,
    LastLosses,
    LocalPart,
    NearestNeighbourMixing,
    NormClipping,
    PCGrad,
    PerFedAvg,
    PFedMe,
    Scaffold,
    ServerFT,
    TrimmedMean,
)
from lib.toy import trainer

Make = Callable[[], FederatedCallback]

# By what they do to a round, in words of their own: test_chains derives from it which pairs make sense.
WEIGHTINGS: dict[str, Make] = {"FedAvg": FedAvg, "FedAvg, uniform": lambda: FedAvg("uniform")}
CORRECTIONS: dict[str, Make] = {
    "FedNova": FedNova,
    "GradientHarmonization": GradientHarmonization,
    "GradientHarmonization, slides": lambda: GradientHarmonization("slides"),
    "DominantGradientCorrection": lambda: DominantGradientCorrection(0.5),
    "PCGrad": PCGrad,
    "PCGrad, sum": lambda: PCGrad("sum"),
    "FedFV": FedFV,
    "NormClipping": NormClipping,
    "NormClipping, fixed": lambda: NormClipping(0.5),
    "NearestNeighbourMixing": lambda: NearestNeighbourMixing(2),
}
GROUPERS: dict[str, Make] = {"Bucketing": Bucketing}
WEIGHERS: dict[str, Make] = {
    "FedMGDAPlus": FedMGDAPlus,
    "CAGrad": CAGrad,
    "Krum": lambda: Krum(1),
    "Multi-Krum": lambda: Krum(1, num_selected=3),
    "GeometricMedian": GeometricMedian,
    "DnC": lambda: DnC(1),
}
FITTED: dict[str, Make] = {  # both the weights and the shrinking factor
    "FedLAW": lambda: FedLAW(epochs=4),
    "FedLAW, shrinking": lambda: FedLAW("shrinking", epochs=4),
    "FedLAW, attentive": lambda: FedLAW("attentive", epochs=4),
    "FedLAW, swa": lambda: FedLAW("swa", epochs=14),
}
SHRINKERS: dict[str, Make] = {"GlobalWeightShrinking": lambda: GlobalWeightShrinking(0.95)}
REDUCERS: dict[str, Make] = {
    "CoordinateMedian": CoordinateMedian,
    "TrimmedMean": lambda: TrimmedMean(0.2),
    "CentredClipping": lambda: CentredClipping(1.0),
    "Bulyan": lambda: Bulyan(0),
}
STEPPERS: dict[str, Make] = {
    "FedAvgM": FedAvgM,
    "FedAdagrad": FedAdagrad,
    "FedYogi": FedYogi,
    "FedAdam": FedAdam,
}
REFINERS: dict[str, Make] = {
    "ServerFT": ServerFT,
    "FedDF": lambda: FedDF(epochs=2),
    "FedBE": lambda: FedBE(epochs=2),
}
CLIENT_RULES: dict[str, Make] = {
    "FedProx": lambda: FedProx(0.1),
    "FocalLoss": FocalLoss,
    "MOON": MOON,
    "FedDecorr": FedDecorr,
    "FedSAM": FedSAM,
    "ASAM": lambda: FedSAM(0.5, adaptive=True),
    "Scaffold": Scaffold,
    "FedDyn": FedDyn,
    "FedDyn, by size": lambda: FedDyn(alpha_by_size=True),
    "FedSMOO": FedSMOO,
    "FedGAM": FedGAM,
    "FedGAM, paper": lambda: FedGAM("paper"),
    "FedGAMCV": FedGAMCV,
}


def personal_rules(head: str) -> dict[str, Make]:
    """The rules that give clients models of their own, given the name of the module's last layer."""
    return {
        "LocalPart": lambda: LocalPart([head]),
        "FedBN": FedBN,
        "FedBABU": lambda: FedBABU([head]),
        "Ditto": lambda: Ditto(0.5),
        "APFL": APFL,
        "PFedMe": lambda: PFedMe(5.0, 0.05, 2),
        "PerFedAvg": lambda: PerFedAvg(0.1),
        "FedROD": lambda: FedROD([head]),
        "FineTuning": FineTuning,
        "FedALA": lambda: FedALA([head]),
        "FedAMP": lambda: FedAMP(0.1, 5.0),
        "FedLAG": lambda: FedLAG(2, 1),
    }


PERSONAL = personal_rules("net.1")
# They average uniformly by definition, or settle where gradients are taken.
UNIFORM = {"Scaffold", "FedDyn", "FedDyn, by size", "FedSMOO", "FedGAM", "FedGAM, paper", "FedGAMCV"}
ELSEWHERE = {"FedSAM", "ASAM", "FedSMOO", "FedGAM", "FedGAM, paper", "FedGAMCV"}
KINDS: dict[str, dict[str, Make]] = {
    "updates": CORRECTIONS,
    "weights": WEIGHERS,
    "shrinking": SHRINKERS,
    "reduction": REDUCERS,
    "step": STEPPERS,
    "base weights": WEIGHTINGS,
}


def _add_the_rest() -> None:
    """Add the rules that nothing above names, with the arguments in their YAML, under the kind that they settle."""
    for folder in ("server", "client"):
        for rule in lists.callbacks(folder):
            if rule in NAMED:
                continue
            if not (configs := lists.configs_of(rule)):
                raise FileNotFoundError(f"no config in configs/rules/ names {rule.__name__}: write one")
            config = yaml.safe_load((lists.ROOT / "configs" / f"{configs[0]}.yaml").read_text())
            listed = next(each for each in config["trainer"]["callbacks+"] if each["class_path"] == rule.__name__)
            make = partial(rule, **listed.get("init_args", {}))
            settled = lists.settled(rule)
            if folder == "client":
                CLIENT_RULES[rule.__name__] = make
                UNIFORM.update([rule.__name__] if "base weights" in settled else [])
                ELSEWHERE.update([rule.__name__] if "local gradient" in settled else [])
            else:
                kind = next((KINDS[part] for part in settled if part in KINDS), REFINERS)
                kind[rule.__name__] = make


BY_KIND = (WEIGHTINGS, CORRECTIONS, GROUPERS, WEIGHERS, FITTED, SHRINKERS, REDUCERS, STEPPERS, REFINERS)
NAMED = {type(make()) for rules in (*BY_KIND, CLIENT_RULES) for make in rules.values()}
NAMED |= {FedAsync, FedBuff, LastLosses}  # run with an ArrivalSampler alone, or with PowerOfChoice
_add_the_rest()
SERVER_RULES = {name: make for rules in BY_KIND for name, make in rules.items()}


class TinyClassifier(LightningModule):
    """Four inputs, batch normalisation, three classes: 8 + 15 trainable parameters, three buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        logits = self(batch[0])
        return {"loss": nn.functional.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TinyData(FederatedDataModule):
    """Six clients of 4, 6, … 14 examples, each with a label of its own that it has more of, and six proxy examples."""

    num_clients = 6

    def client_dataset(self, client: int) -> Dataset[Any]:
        return _draw(4 + 2 * client, client)

    def class_counts(self) -> Tensor:
        labels = [_draw(4 + 2 * client, client).tensors[1] for client in range(self.num_clients)]
        return torch.stack([each.bincount(minlength=3) for each in labels])

    def proxy_dataloader(self) -> DataLoader[Any]:
        return DataLoader(_draw(6, 100), batch_size=3)


def _draw(size: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 4, generator=generator, dtype=torch.float64) + seed % 3
    labels = torch.where(
        torch.rand(size, generator=generator) < 0.5, seed % 3, torch.randint(3, (size,), generator=generator)
    )
    return TensorDataset(inputs, labels)


def run(*callbacks: Any, rounds: int = 2) -> FederatedOrchestrator:
    """Two rounds of the tiny classifier under some rules."""
    orchestrator = FederatedOrchestrator(TinyClassifier(), on_bad_update="raise")
    data = TinyData(batch_size=4, clients_per_batch=6)
    trainer(*callbacks, rounds=rounds).fit(orchestrator, datamodule=data)
    return orchestrator
