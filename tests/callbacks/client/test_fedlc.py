"""FedLC by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import FedLC


def loss(rule: Any, counts: Any, logits: Any, label: int) -> float:
    data = SimpleNamespace(class_counts=lambda: torch.tensor([counts]), num_new=0)
    module = SimpleNamespace(device="cpu")
    rule.on_train_start(SimpleNamespace(datamodule=data), module)
    run = SimpleNamespace(client=0, kept={}, anchor=torch.zeros(1))
    rule.on_client_start(None, run)
    outputs = {"logits": torch.tensor([logits]), "targets": torch.tensor([label])}
    return float(rule.loss(run, None, outputs, torch.zeros(())))


def test_a_margin_for_the_rare_class() -> None:
    """Of 16 and 1 examples the margins are ½ and 1: ln (1 + e^½) for the rare class, at equal logits."""
    assert loss(FedLC(1.0), [16, 1], [0.0, 0.0], 1) == pytest.approx(math.log(1 + math.exp(0.5)))


def test_a_class_that_is_not_there_does_not_count() -> None:
    assert loss(FedLC(1.0), [0, 16, 16], [9.0, 0.0, 0.0], 1) == pytest.approx(math.log(2))


def test_tau() -> None:
    with pytest.raises(ConfigurationError, match="tau must be"):
        FedLC(-1.0)
