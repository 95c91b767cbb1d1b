"""Print val/top1 of robust server rules under attacks, as the Markdown table of docs/reference/attacks.md.

    python -m benchmarks.byzantine [SEEDS]

Digits, 20 clients of which 4 attack, all in every round, Dirichlet(0.5), 10 rounds of 2 local epochs. In percent, the
mean over the seeds 1 to SEEDS (1 by default); nan where the model is not finite. A backdoor has a second row: how many
stamped test images the model takes for the attackers' class. A seed takes some four minutes of one core.
"""

import logging
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning
import torch
from lightning.pytorch import Callback

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import (
    ALIE,
    IPM,
    BackdoorEvaluation,
    CentredClipping,
    CoordinateMedian,
    FedAvg,
    GaussianAttack,
    GeometricMedian,
    Krum,
    Mimic,
    MinMax,
    NormClipping,
    ScalingAttack,
    SignFlip,
    TrimmedMean,
)
from fl_lightning.datamodules import Backdoor, Digits, Dirichlet, LabelSwap
from fl_lightning.models import ImageClassifier, TwoNN

SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 1
ROUNDS, CLIENTS, ATTACKERS = 10, 20, 4
ATTACKS: dict[str, list[Callable[[], Callback]]] = {
    "none": [],
    "SignFlip, 10": [partial(SignFlip, ATTACKERS)],
    "ScalingAttack, 10": [partial(ScalingAttack, ATTACKERS)],
    "GaussianAttack, 1": [partial(GaussianAttack, ATTACKERS)],
    "ALIE": [partial(ALIE, ATTACKERS)],
    "ALIE, z = 1.5": [partial(ALIE, ATTACKERS, z=1.5)],
    "IPM, 0.5": [partial(IPM, ATTACKERS)],
    "Mimic": [partial(Mimic, ATTACKERS)],
    "MinMax": [partial(MinMax, ATTACKERS)],
    "LabelSwap": [],
    "Backdoor": [],
    "Backdoor, images taken for the class": [partial(BackdoorEvaluation, target=0, size=2)],
}
SHARE = ATTACKERS / CLIENTS
RULES: dict[str, Callable[[], Callback]] = {
    "FedAvg": FedAvg,
    "Krum": partial(Krum, ATTACKERS),
    "Multi-Krum, 12": partial(Krum, ATTACKERS, num_selected=12),
    "CoordinateMedian": CoordinateMedian,
    "TrimmedMean, 0.2": partial(TrimmedMean, 0.2),
    "GeometricMedian": GeometricMedian,
    "NormClipping": NormClipping,
    "CentredClipping, 0.2": partial(CentredClipping, 0.2),
}


def corruption_of(attack: str) -> LabelSwap | Backdoor | None:
    if attack == "LabelSwap":
        return LabelSwap(SHARE)
    return Backdoor(SHARE, target=0, size=2) if attack.startswith("Backdoor") else None


def measured(attack: str, rule: str, seed: int) -> float:
    """Train one run and measure its last model, in percent; nan if no client's update is finite."""
    corruption = corruption_of(attack)
    world: dict[str, Any] = {"num_clients": CLIENTS, "partition": Dirichlet(0.5), "corruption": corruption}
    data = Digits(**world, proxy_per_class=10, batch_size=32, clients_per_batch=CLIENTS, seed=seed)
    torch.manual_seed(seed)
    client = ImageClassifier(TwoNN(in_features=64), optimizer=partial(torch.optim.SGD, lr=0.05))
    callbacks = [make() for make in [*ATTACKS[attack], RULES[rule]]]
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    flags: dict[str, Any] = {**quiet, "logger": False, "accelerator": "cpu", "num_sanity_val_steps": 0}
    trainer = lightning.Trainer(max_epochs=ROUNDS, check_val_every_n_epoch=ROUNDS, callbacks=callbacks, **flags)
    try:
        trainer.fit(FederatedOrchestrator(client, local_epochs=2, seed=seed), datamodule=data)
    except RuntimeError as error:
        if "finite" not in str(error):
            raise
        return float("nan")
    measure = "backdoor/top1" if "backdoor/top1" in trainer.callback_metrics else "val/top1"
    return 100 * float(trainer.callback_metrics[measure])


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"| attack | {' | '.join(RULES)} |\n|---{'|---' * len(RULES)}|")
    for attack in ATTACKS:
        cells = []
        for rule in RULES:
            values = [measured(attack, rule, seed) for seed in range(1, SEEDS + 1)]
            cells.append(f"{sum(values) / SEEDS:.1f}")
        print(f"| {attack} | {' | '.join(cells)} |", flush=True)
