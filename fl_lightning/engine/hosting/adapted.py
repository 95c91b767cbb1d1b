"""Layers around which peft has put adapters, known by peft's classes and not by names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import nn


def known_class(module: str, name: str) -> type | None:
    """Return a class of a library; None if the library is not loaded, so that no object of the class exists."""
    found: type | None = getattr(sys.modules.get(module), name, None)
    return found


def adapted_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Find the layers around which peft has put adapters of any kind, with their names."""
    tuned = known_class("peft.tuners.tuners_utils", "BaseTunerLayer")
    for name, layer in module.named_modules():
        if tuned is not None and isinstance(layer, tuned):
            yield name, layer
