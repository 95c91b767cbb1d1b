"""The rule of the questions and answers does what the page says."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import Normalized, NormalizedData, trainer

from fl_lightning import FederatedOrchestrator

PAGE = Path(__file__).parents[1] / "docs" / "faq.md"


def test_clients_keep_layers_of_their_own() -> None:
    """Running means go from 0 to 0.1 m and 0.19 m, each client's by its own m: 2 and 3; averaged they would mix.

    The head learns for all; the global model's own BatchNorm keeps its first weights.
    """
    rule: dict[str, Any] = {}
    (block,) = re.findall(r"```python\n# own_layers.py\n(.*?)```", PAGE.read_text(), re.S)
    exec(block, rule)
    own = rule["OwnLayers"](["norm"])
    orchestrator = FederatedOrchestrator(module := Normalized())
    trainer(own, rounds=2).fit(orchestrator, datamodule=NormalizedData(batch_size=4))
    means = [float(own.state[f"norm.running_mean/{client}"]) for client in (0, 1)]
    assert means == pytest.approx([0.38, 0.57])
    assert module.norm.weight.tolist() == [1]
    assert module.head.bias.abs().sum() > 0
    weights = [own.state[f"norm.weight/{client}"] for client in (0, 1)]
    assert not torch.equal(*weights)
