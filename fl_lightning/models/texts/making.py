"""Functions that make networks of transformers, and let them take less memory."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fl_lightning.datamodules.files.pretrained import import_transformers, one_line, read_pretrained, silent
from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.models.adapters import halve_frozen, keep_frozen
from fl_lightning.models.texts.quantized import QUANTIZED, FrozenWeights, reading, settle


def make_network(
    task: str, model: str, settings: Mapping[str, Any], weights: bool, frozen_dtype: FrozenWeights, **more: Any
) -> Any:
    """Make a network of transformers.

    Args:
        task: end of the name of transformers' class ``AutoModelFor…``.
        model: name on the hub, folder, or, without weights, type.
        settings: settings of the network's config.
        weights: whether to read pretrained weights.
        frozen_dtype: dtype in which all weights are made: "bfloat16", or torch's default, from which "nf4" and "int8"
            are quantised.
        more: settings that every config has.

    Raises:
        ConfigurationError: there is no such model or setting, the settings do not fit one another, or a model is to be
            quantised that already is.
    """
    transformers = import_transformers()
    maker = f"AutoModelFor{task}"
    dtype = torch.bfloat16 if frozen_dtype == "bfloat16" else torch.get_default_dtype()
    if weights:
        config = read_pretrained("AutoConfig", model)
        _check_settings(config, settings)
        config = read_pretrained("AutoConfig", model, **settings, **more)
        quantizing: dict[str, Any] = {}
        if frozen_dtype in QUANTIZED:
            if getattr(config, "quantization_config", None) is not None:
                raise ConfigurationError(f"frozen_dtype: {model} is quantised already: set frozen_dtype to float32")
            with silent(transformers), torch.device("meta"):
                parts = head_of(getattr(transformers, maker).from_config(config))
            quantizing = reading(transformers, frozen_dtype, parts)
        network = read_pretrained(maker, model, config=config, dtype=dtype, **quantizing)
        if quantizing:
            settle(network, frozen_dtype)
        network.train()  # transformers gives it for evaluation, without dropout
    else:
        if model not in transformers.CONFIG_MAPPING:
            near = nearest(model, transformers.CONFIG_MAPPING) or "gpt2"
            raise ConfigurationError(
                f"expected a type of transformers for weights: false, such as {near}, got {model!r}: correct the type, "
                "or set weights to true to read a model of this name"
            )
        _check_settings(transformers.AutoConfig.for_model(model), settings)
        try:
            with silent(transformers):
                config = transformers.AutoConfig.for_model(model, **settings, **more)
                network = getattr(transformers, maker).from_config(config, dtype=dtype)
        except Exception as error:  # of many classes
            raise ConfigurationError(
                f"transformers makes no {maker} of type {model} with {dict(settings)}: {one_line(error)}"
            ) from None
    network.config_as_made = copy.deepcopy(network.config)
    network.config.use_cache = False  # of what earlier tokens gave: for writing texts, not for training
    return network


def make_small(network: Any, frozen_dtype: FrozenWeights, checkpointing: bool) -> FrozenWeights:
    """Let a network of transformers take less memory, in place; returns the dtype of its frozen weights.

    Raises:
        ConfigurationError: no weight is frozen for "bfloat16", or transformers has no checkpointing for the network.
    """
    if frozen_dtype == "nf4" or frozen_dtype == "int8":
        halve_frozen(network)  # what is not quantised
    else:
        keep_frozen(network, frozen_dtype)
    if checkpointing:
        if not network.supports_gradient_checkpointing:
            kind = network.config.model_type
            raise ConfigurationError(f"transformers has no checkpointing for {kind}: set checkpointing to false")
        enable = getattr(network, "activation_checkpointing_enable", network.gradient_checkpointing_enable)
        enable({"use_reentrant": False})  # else frozen first layers would leave the adapters without gradients
    return frozen_dtype


def _check_settings(config: Any, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a config does not have; transformers keeps them, and does nothing."""
    known = {*vars(config), *config.attribute_map}
    for name in settings:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(sorted(vars(config)))}"
            raise ConfigurationError(f"settings: {type(config).__name__} has no {name}: {hint}")


def head_of(network: Any) -> list[str]:
    """Name the parts of a network of transformers that stand around its base model."""
    return [name for name, _ in network.named_children() if name != network.base_model_prefix]


def usual_targets(network: Any) -> Sequence[str]:
    """Name the layers that peft gives adapters by default; empty if peft is not installed, or has no choice."""
    try:
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as CHOICES
    except ImportError:
        return ()
    chosen: Sequence[str] = CHOICES.get(network.config.model_type, ())
    return chosen
