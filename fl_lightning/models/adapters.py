"""What of a large network trains: all of it, its head, or thin matrices beside its frozen weights (LoRA)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from fl_lightning.engine.hosting.adapted import adapted_layers, known_class
from fl_lightning.errors import ConfigurationError, check_at_least, check_choice, check_within, nearest

Adapt = Literal["full", "head", "lora"]
FrozenDtype = Literal["float32", "bfloat16"]
ALL_LINEAR = "all-linear"  # as peft says it
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def transposed_linear() -> type | None:
    """Return GPT-2's linear layer, transformers' Conv1D, whose weight lies transposed; see :func:`known_class`."""
    return known_class("transformers.pytorch_utils", "Conv1D")


class Adapting(TypedDict, total=False):
    """The arguments of :func:`adapt_network` that networks pass on, but for ``targets``."""

    adapt: Adapt
    rank: int
    freeze: Sequence[str]
    alpha: float | None
    dropout: float
    rslora: bool
    dora: bool
    modules_to_save: Sequence[str]


class Targeted(Adapting, total=False):
    """Adds the layers that get matrices."""

    targets: Sequence[str] | str


def adapt_network(
    network: nn.Module,
    head: str | Sequence[str],
    lora_trains_head: bool = True,
    usual: Sequence[str] = (),
    adapt: Adapt = "full",
    rank: int = 8,
    targets: Sequence[str] | str = (),
    freeze: Sequence[str] = (),
    alpha: float | None = None,
    dropout: float = 0.0,
    rslora: bool = False,
    dora: bool = False,
    modules_to_save: Sequence[str] = (),
) -> None:
    """Choose what of a network trains, in place; the rest is frozen: it is no part of the federation's vectors.

    LoRA adds to the frozen weight W of a layer ``alpha / rank`` times the product B A of two thin matrices (Hu et al.,
    2022); B is zero at first. peft puts them in.

    Args:
        network: the network.
        head: name of the head, the last layer, or a list of the names of its parts; "" if there is none to train.
        lora_trains_head: whether the head trains beside the matrices.
        usual: ``targets`` by default.
        adapt: part of the network that trains. "full" trains all parameters, "head" the head, "lora" thin matrices
            beside frozen weights and, in classifiers, the head.
        rank: rank r of the matrices, at least 1.
        targets: names or patterns of the linear layers that get matrices, such as ``qkv`` or ``blocks.1.*``;
            ``all-linear`` for all but the head.
        freeze: patterns of parameters that stay as they are, such as ``*.lora_A.*`` (FFA-LoRA, Sun et al., 2024).
        alpha: numerator of the matrices' factor alpha / r; None means twice the rank.
        dropout: probability in [0, 1) with which, in training, an input of the matrices is dropped.
        rslora: whether the factor is alpha / √r (rsLoRA, Kalajdzievski, 2023).
        dora: whether the norms of the weights' columns train apart from their directions (DoRA, Liu et al., 2024).
        modules_to_save: names or patterns of further modules that train whole, such as ``norm``.

    Raises:
        ConfigurationError: an argument is outside its range, a name or pattern has no layer, module or parameter, an
            argument of matrices is given without ``adapt: lora``, or peft is not installed.
    """
    check_choice("adapt", adapt, "full", "head", "lora")
    parts = [head] if isinstance(head, str) else head
    before = set(network.parameters())
    in_head: set[nn.Parameter] = set()  # not by name: a head may share its weight with the first layer
    for part in filter(None, parts):
        in_head.update(network.get_submodule(part).parameters())
    whole = _whole(network, modules_to_save, adapt)
    if adapt == "lora":
        check_at_least(1, rank=rank)
        check_within("[0, 1)", dropout=dropout)
        layers = _layers(network, targets or usual, parts)
        factor = 2.0 * rank if alpha is None else alpha
        _put_in(network, layers, r=rank, lora_alpha=factor, lora_dropout=dropout, use_rslora=rslora, use_dora=dora)
    elif alpha is not None or dropout or rslora or dora:
        raise ConfigurationError(
            f"alpha, dropout, rslora and dora are of LoRA's matrices, but adapt is {adapt}: set adapt to lora, or "
            "leave them out"
        )
    trains = whole if adapt == "lora" and not lora_trains_head else in_head | whole
    if adapt != "full":
        for parameter in network.parameters():
            parameter.requires_grad_(parameter not in before or parameter in trains)
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
    if not halve_frozen(network):
        raise ConfigurationError("frozen_dtype: bfloat16 needs frozen weights: set adapt to lora or head")


def halve_frozen(network: nn.Module) -> bool:
    """Keep the frozen weights of a network's layers in bfloat16 and all else in float32, in place.

    Weights that are no floating-point numbers, because they are quantised, stay as they are.

    Returns:
        Whether there is a weight in bfloat16.
    """
    frozen = set[nn.Parameter]()
    others = set[nn.Parameter]()
    for layer in network.modules():
        if isinstance(layer, nn.Embedding):
            embedding: Any = layer.weight
            others.add(embedding)  # the last layer of a language model may share the weight of an embedding
        elif _is_linear(layer) or isinstance(layer, CONVOLUTIONS):
            weight: Any = layer.weight
            if weight.is_floating_point() and not weight.requires_grad:
                frozen.add(weight)
    for _, layer in adapted_layers(network):
        others |= set(layer.parameters()) - set(layer.get_base_layer().parameters())  # frozen adapters
    frozen -= others
    for parameter in network.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(torch.bfloat16 if parameter in frozen else torch.float32)
    return bool(frozen)


def computing(dtype: str, inputs: Tensor) -> AbstractContextManager[Any]:
    """Return the context in which a network computes whose frozen weights have a dtype, on the device of its inputs."""
    if dtype == "float32":
        return nullcontext()
    # A cache would outlive an optimizer step inside of another autocast.
    return torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False)


def _whole(network: nn.Module, patterns: Sequence[str], how: Adapt) -> set[nn.Parameter]:
    """Return the parameters of the modules, beside the head, that train whole."""
    if patterns and how == "full":
        raise ConfigurationError("modules_to_save: all parameters train already: set adapt to lora or head")
    parameters = set[nn.Parameter]()
    modules = dict(network.named_modules())
    for pattern in patterns:
        found = [name for name in modules if _is_meant(name, pattern)]
        if not found:
            raise ConfigurationError(
                f"modules_to_save: no module has a name as {pattern!r}: {_near(pattern, [*modules][1:])}"
            )
        for name in found:
            for own_name, parameter in modules[name].named_parameters(name):
                if not parameter.is_floating_point():
                    raise ConfigurationError(
                        f"modules_to_save: {own_name} is quantised and cannot train: leave {name} out, or set "
                        "frozen_dtype to bfloat16"
                    )
                parameters.add(parameter)
    return parameters


def _layers(network: nn.Module, targets: Sequence[str] | str, head: Sequence[str]) -> list[str]:
    """Return the names of the linear layers that some names or patterns mean."""
    layers = [name for name, part in network.named_modules() if _is_linear(part)]
    if targets == ALL_LINEAR:
        in_head = tuple(f"{part}." for part in head if part)
        return [name for name in layers if not f"{name}.".startswith(in_head)]
    if isinstance(targets, str):
        raise ConfigurationError(f"targets must be a list, as in [{targets}], or {ALL_LINEAR}, got {targets!r}")
    chosen = list[str]()
    for target in targets:
        found = [name for name in layers if _is_meant(name, target)]
        if not found:
            raise ConfigurationError(f"targets: no linear layer has a name as {target!r}: {_near(target, layers)}")
        chosen += found
    if not chosen:
        last = dict.fromkeys(name.rpartition(".")[2] for name in layers)
        raise ConfigurationError(
            f"targets must name linear layers for adapt: lora, such as {', '.join([*last][:6])}, or be {ALL_LINEAR}"
        )
    return chosen


def _is_meant(name: str, pattern: str) -> bool:
    """Tell whether a pattern, or the end of a name, means a layer."""
    return fnmatchcase(name, pattern) or f".{name}".endswith(f".{pattern}")


def _put_in(network: nn.Module, layers: Sequence[str], **settings: Any) -> None:
    """Put matrices beside some layers; ``settings`` are those of peft's ``LoraConfig``."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ConfigurationError("adapt: lora needs peft: pip install 'fl-lightning[lora]'") from None
    kind = transposed_linear()
    transposed = kind is not None and all(isinstance(network.get_submodule(name), kind) for name in layers)
    inject_adapter_in_model(LoraConfig(target_modules=[*layers], fan_in_fan_out=transposed, **settings), network)


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
