"""What of a large network trains: all of it, its head, or thin matrices beside its frozen weights (LoRA)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning.engine.hosting.adapted import adapted_layers, known_class
from fl_lightning.errors import ConfigurationError, check_at_least, check_choice, nearest

Adapt = Literal["full", "head", "lora"]
FrozenDtype = Literal["float32", "bfloat16"]
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def transposed_linear() -> type | None:
    """Return GPT-2's linear layer, transformers' Conv1D, whose weight lies transposed; see :func:`known_class`."""
    return known_class("transformers.pytorch_utils", "Conv1D")


def adapt(
    network: nn.Module,
    how: Adapt,
    head: str | Sequence[str],
    rank: int = 8,
    targets: Sequence[str] = (),
    freeze: Sequence[str] = (),
    alpha: float | None = None,
) -> None:
    """Choose what of a network trains, in place; the rest is frozen: it is no part of the federation's vectors.

    LoRA adds to the frozen weight W of a layer ``alpha / rank`` times the product B A of two thin matrices (Hu et al.,
    2022); B is zero at first. peft puts them in.

    Args:
        network: the network.
        how: "full" trains all parameters, "head" the head alone, "lora" the head and the matrices.
        head: name of the head, the last layer, or a list of the names of its parts; "" if there is none to train.
        rank: number of rows of A and of columns of B.
        targets: names or patterns of the linear layers that get matrices, such as ``qkv`` or ``blocks.1.*``.
        freeze: patterns of parameters that stay as they are, such as ``*.lora_A.*`` (FFA-LoRA, Sun et al., 2024).
        alpha: numerator of the matrices' factor; None means twice the rank.

    Raises:
        ConfigurationError: ``how`` is none of the three, ``rank`` is below 1, a target is no linear layer, a pattern
            has no parameter, or peft is not installed.
    """
    check_choice("adapt", how, "full", "head", "lora")
    parts = [head] if isinstance(head, str) else head
    before = set(network.parameters())
    in_head: set[nn.Parameter] = set()  # not by name: a head may share its weight with the first layer
    for part in filter(None, parts):
        in_head.update(network.get_submodule(part).parameters())
    if how == "lora":
        check_at_least(1, rank=rank)
        _put_in(network, rank, targets, 2.0 * rank if alpha is None else alpha)
    if how != "full":
        for parameter in network.parameters():
            parameter.requires_grad_(parameter not in before or parameter in in_head)
    names = [name for name, _ in network.named_parameters()]
    for pattern in freeze:
        frozen = [name for name in names if fnmatchcase(name, pattern)]
        if not frozen:
            raise ConfigurationError(f"freeze: no parameter has a name as {pattern!r}: {_near_pattern(pattern, names)}")
        for name in frozen:
            network.get_parameter(name).requires_grad_(False)


def keep_frozen(network: nn.Module, dtype: FrozenDtype) -> None:
    """Keep the frozen weights of a network's layers in float32 or in bfloat16, in place.

    The layers are the linear ones and the convolutions, which then compute in bfloat16. All else stays in float32: what
    trains, adapters, biases, norms, and embeddings, with which the sum of what the layers add stays in float32, too.

    Raises:
        ConfigurationError: ``dtype`` is neither, or "bfloat16" where no such weight is frozen.
    """
    check_choice("frozen_dtype", dtype, "float32", "bfloat16")
    if dtype == "float32":
        return
    frozen = set[nn.Parameter]()
    others = set[nn.Parameter]()
    for layer in network.modules():
        if isinstance(layer, nn.Embedding):
            embedding: Any = layer.weight
            others.add(embedding)  # the last layer of a language model may share the weight of an embedding
        elif _is_linear(layer) or isinstance(layer, CONVOLUTIONS):
            weight: Any = layer.weight
            if not weight.requires_grad:
                frozen.add(weight)
    for _, layer in adapted_layers(network):
        others |= set(layer.parameters()) - set(layer.get_base_layer().parameters())  # frozen adapters
    frozen -= others
    if not frozen:
        raise ConfigurationError("frozen_dtype: bfloat16 needs frozen weights: set adapt to lora or head")
    for parameter in network.parameters():
        parameter.data = parameter.data.to(torch.bfloat16 if parameter in frozen else torch.float32)


def computing(dtype: FrozenDtype, inputs: Tensor) -> AbstractContextManager[Any]:
    """Return the context in which a network computes whose frozen weights have a dtype, on the device of its inputs."""
    if dtype == "float32":
        return nullcontext()
    # A cache would outlive an optimizer step inside of another autocast.
    return torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False)


def _put_in(network: nn.Module, rank: int, targets: Sequence[str], alpha: float) -> None:
    """Put the matrices beside the layers that some names or patterns mean."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ConfigurationError("adapt: lora needs peft: pip install 'fl-lightning[lora]'") from None
    layers = [name for name, part in network.named_modules() if _is_linear(part)]
    chosen = list[str]()
    for target in targets:
        found = [name for name in layers if fnmatchcase(name, target) or f".{name}".endswith(f".{target}")]
        if not found:
            raise ConfigurationError(f"targets: no linear layer has a name as {target!r}: {_near(target, layers)}")
        chosen += found
    if not chosen:
        last = dict.fromkeys(name.rpartition(".")[2] for name in layers)
        raise ConfigurationError(f"targets must name linear layers for adapt: lora, such as {', '.join([*last][:6])}")
    kind = transposed_linear()
    transposed = kind is not None and all(isinstance(network.get_submodule(name), kind) for name in chosen)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=chosen, fan_in_fan_out=transposed)  # type: ignore[arg-type]  # a factor need not be whole
    inject_adapter_in_model(config, network)


def _is_linear(part: nn.Module) -> bool:
    """Tell whether a module is a linear layer; GPT-2's has its weight transposed."""
    transposed = transposed_linear()
    return isinstance(part, nn.Linear) or (transposed is not None and isinstance(part, transposed))


def _near_pattern(pattern: str, known: Sequence[str]) -> str:
    """Say which pattern may have been meant, of a part of a name."""
    parts = {part for name in known for part in name.split(".") if not part.isdigit()}
    near = nearest(pattern.strip("*."), parts)
    return f"did you mean '*.{near}.*'?" if near else f"parts of names are {', '.join(sorted(parts))}"


def _near(name: str, known: Sequence[str]) -> str:
    last = sorted({part.rpartition(".")[2] for part in known})
    near = nearest(name, [*known, *last])
    return f"did you mean {near}?" if near else f"there are {', '.join(last)}"
