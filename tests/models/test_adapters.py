"""What of a network trains is told by what peft puts in, not by names."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fl_lightning import ConfigurationError
from fl_lightning.engine.hosting.adapted import adapted_layers
from fl_lightning.models.adapters import adapt_network, keep_frozen


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
    adapt_network(network, "head", adapt="head")
    assert network.trained() == HEAD
    network = Named()
    adapt_network(network, "head", adapt="lora", rank=2, targets=["plain"])
    assert network.trained() == HEAD | {f"body.plain.lora_{part}.default.weight" for part in "AB"}


def test_own_layers_with_names_of_peft_are_kept_in_bfloat16() -> None:
    """Frozen adapters stay in float32, as A of FFA-LoRA; biases do, too."""
    network = Named()
    adapt_network(network, "head", adapt="lora", rank=2, targets=["plain"], freeze=["*plain.lora_A*"])
    keep_frozen(network, "bfloat16")
    half = {name for name, own in network.named_parameters() if own.dtype == torch.bfloat16}
    assert half == {"body.lora_A.weight", "body.plain.base_layer.weight"}
    assert [name for name, _ in adapted_layers(network)] == ["body.plain"]


def test_a_layer_with_the_name_of_a_linear_one_is_none() -> None:
    with pytest.raises(ConfigurationError, match="targets: no linear layer has a name as 'mixed'"):
        adapt_network(Named(), "head", adapt="lora", targets=["mixed"])


def test_all_linear_layers_but_the_head() -> None:
    network = Named()
    adapt_network(network, "head", adapt="lora", rank=2, targets="all-linear")
    assert [name for name, _ in adapted_layers(network)] == ["body.lora_A", "body.plain"]


@pytest.mark.parametrize(
    ("settings", "scaling"), [({}, 2.0), ({"alpha": 3}, 0.75), ({"alpha": 3, "rslora": True}, 1.5)]
)
def test_the_factor_of_the_matrices(settings: dict[str, Any], scaling: float) -> None:
    network = Named()
    adapt_network(network, "head", adapt="lora", rank=4, targets=["plain"], **settings)
    (layer,) = (layer for _, layer in adapted_layers(network))
    assert layer.scaling == {"default": scaling}


def test_inputs_of_the_matrices_are_dropped_in_training_alone() -> None:
    network = Named()
    adapt_network(network, "head", adapt="lora", rank=4, targets=["plain"], dropout=0.5)
    layer = network.body["plain"]
    torch.nn.init.ones_(layer.lora_B["default"].weight)
    inputs = torch.ones(64, 4)
    assert (layer(inputs) == layer(inputs[:1])).logical_not().any()
    layer.eval()
    torch.testing.assert_close(layer(inputs), layer(inputs[:1]).expand(64, 4))


def test_the_norms_of_columns_train_apart() -> None:
    network = Named()
    adapt_network(network, "head", adapt="lora", rank=4, targets=["plain"], dora=True)
    names = {f"body.plain.lora_{part}.default.weight" for part in ("A", "B", "magnitude_vector")}
    assert network.trained() == HEAD | names


def test_further_modules_train_whole() -> None:
    plain = {"body.plain.weight", "body.plain.bias"}
    network = Named()
    adapt_network(network, "head", adapt="head", modules_to_save=["plain"])
    assert network.trained() == HEAD | plain
    network = Named()
    adapt_network(
        network, "head", lora_trains_head=False, adapt="lora", rank=2, targets=["lora_A"], modules_to_save=["body.pl*"]
    )
    assert network.trained() == plain | {f"body.lora_A.lora_{part}.default.weight" for part in "AB"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adapt": "lora", "targets": "plain"}, r"targets must be a list, as in \[plain\], or all-linear, got 'plain'"),
        ({"adapt": "lora"}, "targets must name linear layers for adapt: lora, such as lora_A, plain, head"),
        ({"adapt": "lora", "targets": "all-linear", "dropout": 1}, r"dropout must be in \[0, 1\)"),
        ({"adapt": "lora", "targets": "all-linear", "rank": 0}, "rank must be at least 1"),
        ({"adapt": "head", "alpha": 3}, "alpha, dropout, rslora and dora are of LoRA's matrices, but adapt is head"),
        ({"dora": True}, "adapt is full: set adapt to lora"),
        ({"modules_to_save": ["plain"]}, "modules_to_save: all parameters train already"),
        ({"adapt": "head", "modules_to_save": ["plian"]}, "no module has a name as 'plian': did you mean plain"),
    ],
)
def test_what_does_not_fit_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        adapt_network(Named(), "head", **settings)
