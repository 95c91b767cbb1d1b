"""What averaging adapters loses, by hand; and nothing, with A frozen."""

from typing import Any

import pytest
import torch
from lib.adapted import LAYERS, Adapted, average, by_hand, fitted
from torch import Tensor

from fl_lightning.callbacks import AggregationError


def test_averages_lose_something() -> None:
    """As much as the loop by hand finds in its last round."""
    made = fitted(AggregationError())
    lost = list[tuple[Tensor, Tensor]]()

    def server(network: Any, clients: list[Any], shares: Tensor) -> None:
        average(network, clients, shares)
        lost.clear()
        for name in LAYERS:
            deltas = [own.get_submodule(name).get_delta_weight("default") for own in clients]
            mean = sum(share * delta for share, delta in zip(shares, deltas, strict=True))
            lost.append((mean - network.get_submodule(name).get_delta_weight("default"), mean))

    by_hand(server)
    error, whole = (torch.cat([pair[at].flatten() for pair in lost]).norm() for at in (0, 1))
    found = float(made.fitted_by.callback_metrics["adapter/aggregation_error"])
    assert found == pytest.approx(float(error / whole), rel=1e-6)
    assert found > 0.01


def test_with_a_frozen_nothing_is_lost() -> None:
    """FFA-LoRA: the mean of B A is the mean of B, times A."""
    made = fitted(AggregationError(), module=Adapted(freeze=("*.lora_A.*",)))
    assert float(made.fitted_by.callback_metrics["adapter/aggregation_error"]) < 1e-15
    assert {name.split(".")[2] for name in made.flat.names} == {"lora_B"}
