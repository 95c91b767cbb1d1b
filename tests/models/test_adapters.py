"""What of a network trains is told by what peft puts in, not by names."""

import pytest
import torch
from torch import Tensor, nn

from fl_lightning import ConfigurationError
from fl_lightning.engine.hosting.adapted import adapted_layers
from fl_lightning.models.adapters import adapt, keep_frozen


class Conv1D(nn.Module):
    """Has the name of GPT-2's linear layer, and is none."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


class Named(nn.Module):
    """Has parameters of its own with peft's names."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"lora_A": nn.Linear(4, 4), "mixed": Conv1D(), "plain": nn.Linear(4, 4)})
        self.head = nn.Linear(4, 2)

    def trained(self) -> set[str]:
        return {name for name, own in self.named_parameters() if own.requires_grad}


HEAD = {"head.weight", "head.bias"}


def test_own_parameters_with_names_of_peft_are_frozen() -> None:
    network = Named()
    adapt(network, "head", "head")
    assert network.trained() == HEAD
    network = Named()
    adapt(network, "lora", "head", rank=2, targets=["plain"])
    assert network.trained() == HEAD | {f"body.plain.lora_{part}.default.weight" for part in "AB"}


def test_own_layers_with_names_of_peft_are_kept_in_bfloat16() -> None:
    """Frozen adapters stay in float32, as A of FFA-LoRA; biases do, too."""
    network = Named()
    adapt(network, "lora", "head", rank=2, targets=["plain"], freeze=["*plain.lora_A*"])
    keep_frozen(network, "bfloat16")
    half = {name for name, own in network.named_parameters() if own.dtype == torch.bfloat16}
    assert half == {"body.lora_A.weight", "body.plain.base_layer.weight"}
    assert [name for name, _ in adapted_layers(network)] == ["body.plain"]


def test_a_layer_with_the_name_of_a_linear_one_is_none() -> None:
    with pytest.raises(ConfigurationError, match="targets: no linear layer has a name as 'mixed'"):
        adapt(Named(), "lora", "head", targets=["mixed"])
