"""Layers around which peft has put adapters, known by peft's classes and not by names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from fl_lightning.errors import ConfigurationError


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
            "lora"
        )
    return found[0]
