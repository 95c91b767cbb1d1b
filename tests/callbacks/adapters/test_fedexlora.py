"""Exact averages of adapters against a loop in plain PyTorch."""

from typing import Any

import pytest
import torch
from lib.adapted import Adapted, by_hand, exact, fitted, weights
from lightning.pytorch import LightningModule

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import (
    AggregationError,
    ClientDP,
    FedAvgM,
    FedExLoRA,
    FLoRA,
    GradientHarmonization,
    HetLoRA,
    LocalPart,
)


def test_fedexlora_is_the_mean_of_products() -> None:
    made = fitted(FedExLoRA(), AggregationError())
    expected = by_hand(exact)
    for own, other in zip(weights(made.client.network), weights(expected), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12)
    assert float(made.fitted_by.callback_metrics["adapter/aggregation_error"]) < 1e-12


def test_flora_puts_the_products_into_the_frozen_weights_and_begins_anew() -> None:
    """After one round, the weights are those of FedExLoRA; then A is drawn again, and B is zero."""
    made, other = fitted(FLoRA(), AggregationError(), rounds=1), fitted(FedExLoRA(), rounds=1)
    for own, expected in zip(weights(made.client.network), weights(other.client.network), strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-12)
    layer = made.client.network.get_submodule("0")
    assert not layer.lora_B["default"].weight.any()
    drawn = layer.lora_A["default"].weight
    assert not torch.equal(drawn, Adapted().network.get_submodule("0").lora_A["default"].weight)
    assert 0.2 < float(drawn.abs().max()) <= 0.5  # 1 / √4
    assert float(made.fitted_by.callback_metrics["adapter/aggregation_error"]) < 1e-12
    again = fitted(FLoRA(), rounds=1)
    assert torch.equal(again.params, made.params)


def test_other_rules_change_the_adapters_and_the_products_stay() -> None:
    """Harmonized adapters with momentum are other ones, but the weights are those of the mean of the products."""
    made = fitted(FedExLoRA(), GradientHarmonization(), FedAvgM(), rounds=1)
    plain = fitted(FedExLoRA(), rounds=1)
    for own, expected in zip(weights(made.client.network), weights(plain.client.network), strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("rules", "module", "line"),
    [
        (
            [FedExLoRA()],
            Adapted(adapted=False),
            "FedExLoRA needs adapters of peft on linear layers, but Adapted has none",
        ),
        ([FLoRA(), LocalPart(["*.lora_B.*"])], Adapted(), "a part of network.0 stays with them: leave out FLoRA"),
        ([HetLoRA([1, 3])], Adapted(), "ranks must be at most the adapters' rank 2, got 3"),
        ([FLoRA(), GradientHarmonization()], Adapted(), "would undo what GradientHarmonization does"),
        ([FedExLoRA(), ClientDP(1.0, noise_multiplier=1.0)], Adapted(), "FedExLoRA"),
        ([ClientDP(1.0, noise_multiplier=1.0), FLoRA()], Adapted(), "FLoRA"),
        ([ClientDP(1.0, noise_multiplier=1.0), HetLoRA([1])], Adapted(), "HetLoRA"),
    ],
)
def test_refused(rules: list[Any], module: LightningModule, line: str) -> None:
    with pytest.raises(ConfigurationError, match=line):
        fitted(*rules, module=module)


def test_ranks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"ranks must be a list of whole numbers of at least 1, got \[\]"):
        HetLoRA([])
