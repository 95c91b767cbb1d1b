"""Frozen weights of 4 and 8 bits by bitsandbytes, beside which matrices train (QLoRA, Dettmers et al., 2023)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning.engine.hosting.adapted import is_of, quantized_layers
from fl_lightning.errors import ConfigurationError, check_choice

FrozenWeights = Literal["float32", "bfloat16", "nf4", "int8"]
QUANTIZED = ("nf4", "int8")
LAYERS_OWN = ("weight", "bias")  # a linear layer's entries of a state_dict; others belong to a quantised weight


def check_frozen(frozen_dtype: FrozenWeights, weights: bool, adapting: Mapping[str, Any]) -> None:
    """Refuse what quantised weights cannot do, before anything is read.

    Args:
        frozen_dtype: dtype of the frozen weights.
        weights: whether the weights are pretrained.
        adapting: arguments of :func:`~fl_lightning.models.adapters.adapt_network`.

    Raises:
        ConfigurationError: there is no such dtype, or weights are to be quantised that are not pretrained or not beside
            matrices, or beside those of DoRA, or bitsandbytes is not installed.
    """
    check_choice("frozen_dtype", frozen_dtype, "float32", "bfloat16", *QUANTIZED)
    if frozen_dtype not in QUANTIZED:
        return
    if not weights:
        raise ConfigurationError(
            f"frozen_dtype: {frozen_dtype} quantises pretrained weights, got weights: false: set weights to true, or "
            "frozen_dtype to bfloat16"
        )
    if adapting.get("dora"):
        raise ConfigurationError(
            f"frozen_dtype: {frozen_dtype} does not go with dora: set dora to false, or frozen_dtype to bfloat16"
        )
    adapt = adapting.get("adapt", "full")
    if adapt != "lora":
        raise ConfigurationError(
            f"frozen_dtype: {frozen_dtype} needs matrices that train beside the quantised weights, got adapt: {adapt}: "
            "set adapt to lora, or frozen_dtype to bfloat16"
        )
    _import_bitsandbytes(frozen_dtype)


def _import_bitsandbytes(frozen_dtype: FrozenWeights) -> None:
    """Import bitsandbytes, which would warn that it rounds inputs in each pass of each layer, and lacks a kernel."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import_module("bitsandbytes")
    except ImportError:
        raise ConfigurationError(
            f"frozen_dtype: {frozen_dtype} needs bitsandbytes: pip install 'fl-lightning[quantized]'"
        ) from None


def reading(transformers: Any, frozen_dtype: FrozenWeights, kept: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` by which transformers quantises weights as it reads them.

    The weights are quantised on the CPU, so that they have the same bits whatever the device that trains.

    Args:
        transformers: the library.
        frozen_dtype: "nf4" or "int8".
        kept: names of the parts whose layers are not quantised, such as a head.
    """
    settings: dict[str, Any] = {"llm_int8_skip_modules": [*kept]}
    if frozen_dtype == "nf4":
        settings |= {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    else:
        settings |= {"load_in_8bit": True}
    return {"quantization_config": transformers.BitsAndBytesConfig(**settings), "device_map": {"": "cpu"}}


def settle(network: nn.Module, frozen_dtype: FrozenWeights) -> None:
    """Make the quantised layers of a network compute without changing themselves, in place.

    On its own, bitsandbytes moves the weights of 8 bits into another attribute at the first forward pass, packs those
    of 4 bits anew when some processors evaluate, and rounds biases for good. Clients would then depend on who trained
    or evaluated before, and what is put back after a client would not fit.

    Raises:
        ConfigurationError: the pretrained model lacks weights of a layer, which were drawn at random.
    """
    for name, layer in quantized_layers(network):
        if layer.weight.is_floating_point():
            raise ConfigurationError(
                f"frozen_dtype: {frozen_dtype} quantises pretrained weights, and the model has none for {name}: set "
                "frozen_dtype to bfloat16"
            )
        if is_of(layer, "bitsandbytes.nn", "Linear4bit"):
            layer.support_avx512bf16_for_cpu = False  # packed anew, the scales would be rounded to bfloat16
        else:
            layer.init_8bit_state()
            layer.state = _state_of(layer)
        layer.register_forward_pre_hook(_before)
        layer.register_forward_hook(_after, always_call=True)
        layer.register_load_state_dict_pre_hook(_load)


@cache
def _state_class() -> Any:
    """Make the class of the states of layers of 8 bits, whose base class is imported with bitsandbytes alone."""
    base: Any = import_module("bitsandbytes").MatmulLtState

    class WeightState(base):  # type: ignore[misc]  # of any base
        """Reads the weight from the layer's parameter, and lets the scales follow it to other devices."""

        weight: Any = None
        scales: Any = None

        @property
        def CB(self) -> Any:  # noqa: N802  # bitsandbytes' name of the weight
            return None if self.weight is None else self.weight.data

        @CB.setter
        def CB(self, _: Any) -> None:  # noqa: N802  # it is the parameter
            pass

        @property
        def SCB(self) -> Any:  # noqa: N802  # bitsandbytes' name of the scales
            if self.weight is not None and self.scales.device != self.weight.device:
                self.scales = self.scales.to(self.weight.device)
            return self.scales

        @SCB.setter
        def SCB(self, scales: Any) -> None:  # noqa: N802  # as above
            self.scales = scales

    return WeightState


def _state_of(layer: Any) -> Any:
    """Return a state of a layer of 8 bits that holds no second copy of the weight."""
    state = _state_class()()
    for name, value in vars(layer.state).items():
        setattr(state, name, value)
    state.weight = layer.weight
    return state


def _before(layer: Any, inputs: Any) -> None:
    """Remember the bias, which the layer rounds in place."""
    if layer.bias is not None:
        layer.bias_before = layer.bias.data


def _after(layer: Any, inputs: Any, outputs: Any) -> None:
    """Give the layer the bias that it had before."""
    if layer.bias is not None:
        layer.bias.data = layer.bias_before
        del layer.bias_before


def _load(layer: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Take what belongs to a quantised weight out of a state_dict, which bitsandbytes alone does not load.

    Raises:
        ConfigurationError: the state's weight is not quantised, or in another way.
    """
    weight = state.get(f"{prefix}weight")
    if weight is None:
        return
    own = _beside_weight(layer)
    own.pop("weight_format", None)  # bitsandbytes knows one alone, and refuses others itself
    saved = {name: state.pop(prefix + name, None) for name in own}
    is_same_form = weight.dtype == layer.weight.dtype and weight.shape == layer.weight.shape
    for name, value in own.items():
        other = saved[name]
        is_same_form = is_same_form and other is not None and other.shape == value.shape
        if is_same_form and value.dtype == torch.uint8:  # the form of the weight: its shape, the size of blocks
            is_same_form = torch.equal(other.to(value.device), value)
    if not is_same_form:
        raise ConfigurationError(
            f"{prefix}weight is quantised here, and not in the same way there: take weights of a run with the same "
            "model and frozen_dtype"
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(saved[name])


def _beside_weight(layer: Any) -> dict[str, Tensor]:
    """Return what a quantised layer adds to its weight and bias in a state_dict: live scales, and its form."""
    entries = layer.state_dict(keep_vars=True)
    return {name: value for name, value in entries.items() if name not in LAYERS_OWN}


def names_of(module: nn.Module, given: Collection[nn.Parameter]) -> list[str]:
    """Name some parameters of a module, and what else stands in its state_dict of those that are quantised."""
    names = [name for name, own in module.named_parameters() if own in given]
    for path, layer in quantized_layers(module):
        names += [f"{path}.{name}" for name in _beside_weight(layer)]
    return names
