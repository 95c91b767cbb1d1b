"""FedRS by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import FedRS


@pytest.mark.parametrize(("alpha", "expected"), [(0.5, math.log(2)), (1.0, math.log(1 + math.e))])
def test_the_logit_of_a_missing_class(alpha: float, expected: float) -> None:
    """Class 0 is missing: the logits (2, 1) become (2 α, 1)."""
    rule: Any = FedRS(alpha)
    data = SimpleNamespace(class_counts=lambda: torch.tensor([[0, 3]]), num_new=0)
    module = SimpleNamespace(device="cpu")
    rule.on_train_start(SimpleNamespace(datamodule=data), module)
    run: Any = SimpleNamespace(client=0, kept={}, anchor=torch.zeros(1))
    rule.on_client_start(None, run)
    outputs = {"logits": torch.tensor([[2.0, 1.0]]), "targets": torch.tensor([1])}
    found = rule.loss(run, None, outputs, torch.zeros(()))
    assert float(found) == pytest.approx(expected)


def test_alpha() -> None:
    with pytest.raises(ConfigurationError, match=r"alpha must be in \[0, 1\], got 2"):
        FedRS(2.0)
