"""client_parallel, and when it is chosen. What it computes: test_resume.py."""

import torch
from lightning import Trainer
from lightning.pytorch.strategies import StrategyRegistry

from fl_lightning.engine.cohort import ClientResult
from fl_lightning.engine.devices import ClientParallelStrategy, gather_clients


def result(client: int) -> ClientResult:
    return ClientResult(client, 1, 1, 0.0, 1.0, [], {})


def test_it_is_known_by_name() -> None:
    assert "client_parallel" in StrategyRegistry.available_strategies()
    trainer = Trainer(strategy="client_parallel", devices=2, accelerator="cpu", logger=False)
    assert isinstance(trainer.strategy, ClientParallelStrategy)


def test_rows_come_back_in_client_order() -> None:
    """Three rows, one unused (its client failed); clients 7 and 4 trained in that order: rows 1, 0."""
    rows = torch.tensor([[7.0], [4.0], [-1.0]])
    trainer = Trainer(accelerator="cpu", logger=False)
    gathered, results = gather_clients(trainer, rows, [result(7), result(4)], [])
    assert gathered.tolist() == [[4.0], [7.0]]
    assert [r.client for r in results] == [4, 7]
