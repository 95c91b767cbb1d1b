"""Which layers of a module are exactly one product beside one linear layer, and why others are not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lib.adapted import put_in
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from fl_lightning.callbacks.adapters.low_rank import Adapters


def linears(**settings: Any) -> nn.Sequential:
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    put_in(network, ["0", "2"], **settings)
    return network


def test_linear_layers_with_one_adapter_each() -> None:
    """GPT-2's, too, whose weight lies transposed: peft's own product lies as the weight does."""
    network = nn.Sequential(nn.Linear(4, 5), Conv1D(3, 5))
    put_in(network, ["0", "1"])
    found = Adapters.of(network)
    assert [adapter.weight for adapter in found.exact] == ["0.base_layer.weight", "1.base_layer.weight"]
    assert not found.left_out
    for adapter, layer in zip(found.exact, network, strict=True):
        nn.init.normal_(layer.lora_B["default"].weight)
        first, second = adapter.factors
        product = adapter.as_weight(adapter.scaling * second @ first)
        torch.testing.assert_close(product.float(), layer.get_delta_weight("default").detach())  # type: ignore[operator]  # peft's


def second_adapter(network: nn.Sequential) -> None:
    put_in(network, ["0"], "second")
    network[2].set_adapter("default")


def tied(network: nn.Sequential) -> None:
    network.append(nn.Linear(4, 5))
    network[3].weight = network[0].base_layer.weight  # type: ignore[assignment]  # a parameter


def same_memory(network: nn.Sequential) -> None:
    network.append(nn.Linear(4, 5))
    network[3].weight.data = network[0].base_layer.weight.data


def used_twice(network: nn.Sequential) -> None:
    network.append(network[0].base_layer)


def computed(network: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(network[0].base_layer)


def hooked(network: nn.Sequential) -> None:
    network[0].base_layer.register_forward_hook(lambda layer, args, outputs: 2 * outputs)


def replaced(network: nn.Sequential) -> None:
    network[0].base_layer.forward = lambda inputs: inputs


def unfrozen(network: nn.Sequential) -> None:
    network[0].base_layer.weight.requires_grad_(True)


class Own(nn.Linear):
    """May compute anything."""


def of_another_class(network: nn.Sequential) -> None:
    network[0].base_layer.__class__ = Own


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "second": (second_adapter, "has 2 adapters"),
    "off": (lambda network: network[0].enable_adapters(False), "has its adapter switched off"),
    "inactive": (lambda network: network[0].set_adapter([]), "has its adapter switched off"),
    "merged": (lambda network: network[0].merge(), "has its adapter merged into its weight"),
    "tied": (tied, "shares its weight with another layer"),
    "same memory": (same_memory, "shares its weight with another layer"),
    "used twice": (used_twice, "shares its weight with another layer"),
    "computed": (computed, "has adapters around a ParametrizedLinear that does more than a linear layer"),
    "hook": (hooked, "has adapters around a Linear that does more than a linear layer"),
    "forward": (replaced, "has adapters around a Linear that does more than a linear layer"),
    "subclass": (of_another_class, "has adapters around a Own that does more than a linear layer"),
    "trains": (unfrozen, "has a weight that trains"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_layer_is_left_out(name: str) -> None:
    change, reason = CHANGES[name]
    network = linears()
    change(network)
    found = Adapters.of(network)
    assert found.left_out == {"0": reason}
    assert [adapter.name for adapter in found.exact] == ["2"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"use_dora": True}, "is a variant of LoRA, such as DoRA"),
        ({"lora_bias": True}, "has matrices that do more than multiply"),
    ],
)
def test_other_forms_of_adapters_are_left_out(settings: dict[str, Any], reason: str) -> None:
    found = Adapters.of(linears(**settings))
    assert found.left_out == {"0": reason, "2": reason}
    assert not found.exact


@pytest.mark.parametrize(
    ("layer", "reason", "counted"),
    [
        (nn.Conv2d(2, 4, 3), "is of type Conv2d", True),
        (nn.Conv2d(2, 4, 3, groups=2), "is a convolution in groups", False),
        (nn.Embedding(7, 4), "is of type Embedding", True),
        (nn.MultiheadAttention(4, 2), "is of type MultiheadAttention", True),
    ],
)
def test_other_layers_are_left_out_but_counted(layer: nn.Module, reason: str, counted: bool) -> None:
    network = nn.ModuleDict({"other": layer, "linear": nn.Linear(4, 5)})
    put_in(network, ["other", "linear"])
    found = Adapters.of(network)
    assert found.left_out["other"] == reason
    assert [adapter.name for adapter in found.exact] == ["linear"]
    assert ("other" in {adapters[0].name for adapters in found.products}) == counted
    assert ("other" in found.unknown) == (not counted)


def test_adapters_of_other_kinds_and_by_hand() -> None:
    """Of AdaLoRA the product is unknown; parameters with peft's names are no adapters of peft."""
    from peft import AdaLoraConfig

    network = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    inject_adapter_in_model(AdaLoraConfig(target_modules=["0"], total_step=9), network)
    found = Adapters.of(network)
    assert found.unknown == found.left_out == {"0": "is SVDLinear of peft.tuners.adalora.layer"}

    class ByHand(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 5)
            self.lora_A = nn.Parameter(torch.zeros(2, 4))
            self.lora_B = nn.Parameter(torch.zeros(5, 2))

        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) + inputs @ self.lora_A.T @ self.lora_B.T

    assert Adapters.of(nn.Sequential(ByHand())) == Adapters([], [], {}, {})


def test_layers_within_a_layer_with_adapters() -> None:
    """What peft makes of attention uses the inner layer's weight in a way of its own."""
    attention = nn.MultiheadAttention(4, 2)
    attention.out_proj = nn.Linear(4, 4)  # type: ignore[assignment]  # PyTorch's is a subclass
    network = nn.ModuleDict({"attention": attention})
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["attention"]), network)
    found = Adapters.of(network)
    assert found.left_out["attention.base_layer.out_proj"] == "lies within another layer with adapters"
    assert not found.exact
