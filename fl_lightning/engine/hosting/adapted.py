"""Adapters of peft in a module: layers that have some, known by their classes; a folder that gives them values.

Layers of bitsandbytes are known in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from safetensors.torch import load_file
from torch import nn

from fl_lightning.errors import ConfigurationError

SETTINGS, TENSORS = "adapter_config.json", "adapter_model.safetensors"
FACTORS = {"r": "rank", "lora_alpha": "alpha", "use_rslora": "rslora", "use_dora": "dora"}  # peft's names, and ours


def known_class(module: str, name: str) -> type | None:
    """Return a class of a library; None if the library is not loaded, so that no object of the class exists."""
    found: type | None = getattr(sys.modules.get(module), name, None)
    return found


def is_of(part: object, module: str, name: str) -> bool:
    """Tell whether an object is of a library's class; see :func:`known_class`."""
    cls = known_class(module, name)
    return cls is not None and isinstance(part, cls)


def adapted_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Find the layers around which peft has put adapters of any kind, with their names."""
    for name, layer in module.named_modules():
        if is_of(layer, "peft.tuners.tuners_utils", "BaseTunerLayer"):
            yield name, layer


def quantized_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Find the linear layers whose weights bitsandbytes holds in 4 or 8 bits, with their names."""
    for name, layer in module.named_modules():
        if is_of(layer, "bitsandbytes.nn", "Linear4bit") or is_of(layer, "bitsandbytes.nn", "Linear8bitLt"):
            yield name, layer


def adapted_network(module: nn.Module) -> Any:
    """Find the network into which peft has put adapters.

    Raises:
        ConfigurationError: there is none, or there are several.
    """
    found = list[nn.Module]()
    inner = set[nn.Module]()
    for part in module.modules():
        if part not in inner and isinstance(getattr(part, "peft_config", None), dict):
            found.append(part)
            inner.update(part.modules())
    if len(found) != 1:
        raise ConfigurationError(
            f"expected one network with adapters of peft in {type(module).__name__}, got {len(found)}: set adapt to "
            "lora before training; export writes a model without adapters by --merge DIR or --out FILE"
        )
    return found[0]


def is_adapter(folder: Path) -> bool:
    """Tell whether a folder holds an adapter of peft."""
    return (folder / SETTINGS).is_file()


def start_from_adapter(module: LightningModule, folder: Path) -> None:
    """Copy the tensors of a folder into the module's own adapter, and log one line about them.

    Raises:
        ConfigurationError: the folder holds no adapter that peft reads, the module has none, or has another one, or the
            adapter is of another base model.
    """
    from peft import PeftConfig, set_peft_model_state_dict

    name = type(module).__name__
    module.configure_model()
    network = adapted_network(module)
    (key, own), *_ = network.peft_config.items()
    try:
        saved: Any = PeftConfig.from_pretrained(str(folder))
        tensors = load_file(folder / TENSORS)
    except Exception as error:  # of many classes
        raise ConfigurationError(f"init_from: {folder} holds no adapter that peft reads: {_line(error)}") from None
    base = getattr(network, "name_or_path", "")
    if base and saved.base_model_name_or_path not in (None, "", base):
        raise ConfigurationError(
            f"init_from: the adapter in {folder} is of the model {saved.base_model_name_or_path}, and {name} has "
            f"{base}: take an adapter of this model, or correct base_model_name_or_path in {SETTINGS}"
        )
    for setting, option in FACTORS.items():
        here, there = getattr(own, setting, None), getattr(saved, setting, None)
        if here != there:
            raise ConfigurationError(
                f"init_from: the adapter in {folder} has {option} {there}, and {name} has {here}: set {option} to "
                f"{there}"
            )
    try:
        result: Any = set_peft_model_state_dict(network, tensors, adapter_name=key)
    except Exception as error:  # of other shapes
        raise ConfigurationError(f"init_from: {folder} does not fit {name}: {_line(error)}") from None
    missing = set(result.missing_keys)
    lacking = [own for own, parameter in network.named_parameters() if parameter.requires_grad and own in missing]
    words = [f"{own} is missing" for own in lacking[:1]] + [
        f"{own} is unexpected" for own in result.unexpected_keys[:1]
    ]
    if words:
        raise ConfigurationError(
            f"init_from: {folder} does not fit {name}: {', '.join(words)}; set targets to the layers of the adapter"
        )
    rank_zero_info(f"init_from: {folder} gives {name} the {len(tensors)} tensors of an adapter")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
