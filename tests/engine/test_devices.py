"""client_parallel, and when it is chosen. What it computes: test_resume.py."""

from lightning import Trainer
from lightning.pytorch.strategies import StrategyRegistry

from fl_lightning.engine.devices import ClientParallelStrategy


def test_it_is_known_by_name() -> None:
    assert "client_parallel" in StrategyRegistry.available_strategies()
    trainer = Trainer(strategy="client_parallel", devices=2, accelerator="cpu", logger=False)
    assert isinstance(trainer.strategy, ClientParallelStrategy)
