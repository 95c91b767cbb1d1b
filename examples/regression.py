"""Regression on a table: 12 hospitals predict how long a patient stays, and keep their patients to themselves.

    python examples/regression.py
    python examples/regression.py --rounds 40

Shows `Table` (one client for each value of a column), a module without classes, and `PersonalEvaluation`, which tells
how the model serves the single hospitals. The frame is generated: hospitals differ in size, in the age of their
patients, and in how soon they send patients home.
"""

import argparse

import lightning
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import GradientHarmonization, PersonalEvaluation
from fl_lightning.datamodules import Table

QUIET = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False}


def patients(seed: int = 0) -> pd.DataFrame:
    """Draw the patients of 12 hospitals, 40 to 260 each: five features and the days of stay."""
    draw = np.random.default_rng(seed)
    frames = []
    for number in range(12):
        size, habit = 40 + 20 * number, draw.normal(0, 0.5)
        age = draw.normal(45 + 3 * number, 12, size)
        frame = pd.DataFrame(
            {
                "hospital": f"hospital {number:02}",
                "decades": age / 10,
                "emergency": draw.random(size) < 0.4,
                "pressure": draw.normal(0, 1, size) + 0.02 * (age - 50),
                "infection": draw.random(size) < 0.1,
                "smokes": draw.random(size) < 0.3,
            }
        )
        worse_with_age = np.maximum(frame["decades"] - 5, 0) * (1 + frame["smokes"])
        days = 2 + worse_with_age + 3 * frame["emergency"] + 5 * frame["infection"] + frame["pressure"].abs() + habit
        frames.append(frame.assign(days=days + draw.normal(0, 0.5, size)))
    return pd.concat(frames, ignore_index=True)


class LengthOfStay(lightning.LightningModule):
    """A small network that predicts days from five features; it is judged by the mean absolute error, in days."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        self.error = MeanAbsoluteError()

    def forward(self, features: Tensor) -> Tensor:
        return self.network(features).squeeze(1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.smooth_l1_loss(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.error(self(batch[0]), batch[1])
        self.log("val/mae", self.error)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main(rounds: int) -> None:
    """Train, and print the mean absolute error before and after."""
    lightning.seed_everything(1, verbose=False)
    data = Table(patients(), target="days", client="hospital", test_share=0.25, batch_size=16)
    orchestrator = FederatedOrchestrator(LengthOfStay(), local_epochs=2)
    trainer = lightning.Trainer(
        max_epochs=rounds,
        accelerator="cpu",
        callbacks=[GradientHarmonization(), PersonalEvaluation(every=rounds)],
        **QUIET,
    )
    before = trainer.validate(orchestrator, datamodule=data, verbose=False)[0]["val/mae"]
    trainer.fit(orchestrator, datamodule=data)
    after, worst = (float(trainer.callback_metrics[name]) for name in ("val/mae", "held_out/mae_worst"))
    print(f"mean absolute error: {before:.2f} days before training, {after:.2f} after {rounds} rounds")
    print(f"in the hospitals that the model serves worst: {worst:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    torch.set_num_threads(1)
    main(parser.parse_args().rounds)
