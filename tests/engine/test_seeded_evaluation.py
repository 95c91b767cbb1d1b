"""What a module draws in an evaluation depends on the seed and the round alone."""

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from toy import Quadratic, ToyData, trainer

from fl_lightning import FederatedOrchestrator


class Samples(Quadratic):
    """Draws a number in every evaluation, as a variational autoencoder does, and notes all that it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.drawn.append(float(torch.rand(())))

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)


class Evaluated(ToyData):
    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.zeros(2)), generator=torch.Generator())

    test_dataloader = predict_dataloader = val_dataloader


def drawn(rounds: int, seed: int = 0, start: Path | None = None, end: Path | None = None) -> list[float]:
    module, run = Samples(), trainer(rounds=rounds)
    run.fit(FederatedOrchestrator(module, seed=seed), datamodule=Evaluated(), ckpt_path=start)
    if end:
        run.save_checkpoint(end)
    return module.drawn


def test_a_stop_changes_no_draw(tmp_path: Path) -> None:
    """Two numbers a round, others in each round, whatever the global generator did before."""
    whole = drawn(2)
    assert len(set(whole)) == 4
    torch.rand(())
    assert drawn(1, end=tmp_path / "round_1.ckpt") + drawn(2, start=tmp_path / "round_1.ckpt") == whole
    assert set(drawn(2, seed=1)).isdisjoint(whole)


def test_the_global_generator_goes_on_as_if_nothing_was_drawn() -> None:
    module = Samples()
    orchestrator = FederatedOrchestrator(module)
    trainer().fit(orchestrator, datamodule=Evaluated())
    expected = torch.get_rng_state()
    for evaluate in ("validate", "test", "predict"):
        getattr(trainer(), evaluate)(orchestrator, datamodule=Evaluated())
    assert torch.equal(torch.get_rng_state(), expected)
    assert len(set(module.drawn)) == 6  # the validation after the fit draws the same two as the round's own
