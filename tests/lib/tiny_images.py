"""Byte images of 8x8 pixels, in float32 throughout: a small convolutional classifier, and every callback that ships."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lists
import torch
import yaml
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import (
    ALIE,
    IPM,
    QSGD,
    GaussianAttack,
    Mimic,
    MinMax,
    RandomK,
    ScalingAttack,
    SignFlip,
    SignSGD,
    TopK,
)
from fl_lightning.datamodules import Tensors
from fl_lightning.models import ImageClassifier
from lib.rules import CLIENT_RULES, SERVER_RULES, Make, personal_rules
from lib.toy import trainer

OF_OTHER_MODULES = {"DetectionMonitor", "GenerationMonitor"}  # which measure detectors and language models alone


def _monitors() -> dict[str, Make]:
    """The monitors of any module with the arguments in their YAML, but in every round, and on little."""
    made: dict[str, Make] = {}
    for monitor in lists.callbacks("monitors"):
        if monitor.__name__ in OF_OTHER_MODULES:
            continue
        config = yaml.safe_load((lists.ROOT / "configs" / f"{lists.configs_of(monitor)[0]}.yaml").read_text())
        listed = config["trainer"].get("callbacks+") or config["trainer"]["callbacks"]
        arguments = next(each for each in listed if each["class_path"] == monitor.__name__).get("init_args", {})
        quick = {"every": 1, "points": 3, "count": 2}
        made[monitor.__name__] = partial(monitor, **{name: quick.get(name, arguments[name]) for name in arguments})
    return made


MONITORS = _monitors()
OTHERS: dict[str, Callable[[], Callback]] = {
    "ALIE": lambda: ALIE(2),
    "GaussianAttack": lambda: GaussianAttack(2),
    "IPM": lambda: IPM(2),
    "Mimic": lambda: Mimic(2),
    "MinMax": lambda: MinMax(2),
    "ScalingAttack": lambda: ScalingAttack(2),
    "SignFlip": lambda: SignFlip(2),
    "TopK": lambda: TopK(0.2),
    "RandomK": lambda: RandomK(0.2),
    "QSGD": QSGD,
    "SignSGD": SignSGD,
    "EMAWeightAveraging": lambda: EMAWeightAveraging(decay=0.8),
}
RULES = {**SERVER_RULES, **CLIENT_RULES, **personal_rules("network.6")}
CALLBACKS: dict[str, Callable[[], Callback]] = {**RULES, **MONITORS, **OTHERS}


def images(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise (size, 1, 8, 8) that is the brighter the larger its label of three."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (size,), generator=generator)
    return (torch.rand(size, 1, 8, 8, generator=generator).add(labels.view(-1, 1, 1, 1)) * 60).byte(), labels


def data(**settings: Any) -> Tensors:
    """Six clients of 9 training and 3 held-out images each, and a proxy set of 6 images."""
    given: dict[str, Any] = {"num_clients": 6, "batch_size": 5, "held_out": 0.25, "proxy_per_class": 2}
    given |= {"clients_per_batch": 6, "mean": (0.3,), "std": (0.3,), "num_classes": 3, **settings}
    return Tensors(train=images(72, 0), test=images(30, 1), **given)


def client() -> LightningModule:
    """A convolution, batch normalisation, two linear layers: 4·9+4 + 8 + 36·6+6 + 6·3+3 trainable parameters."""
    torch.manual_seed(0)
    features = (nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 6), nn.ReLU())
    network = nn.Sequential(*features, nn.Linear(6, 3))
    return ImageClassifier(network, 3, optimizer=lambda params: torch.optim.SGD(params, lr=0.05))


def fit(folder: Path, *callbacks: Any, rounds: int = 2, **settings: Any) -> FederatedOrchestrator:
    """Train for some rounds, with metrics.csv and arrays/ in the folder."""
    orchestrator = FederatedOrchestrator(client(), on_bad_update="raise")
    logger = CSVLogger(folder, name="", version="")
    trainer(*callbacks, rounds=rounds, logger=logger, **settings).fit(orchestrator, datamodule=data())
    return orchestrator
