"""Layers of any network, found by what they do or by name."""

import difflib
from typing import Any

from torch import nn

from fl_lightning import ConfigurationError

TIMM = ("forward_features", "forward_head", "get_classifier")


def find_classifier(module: nn.Module) -> nn.Module | None:
    """The layer that makes class scores of features: timm's where the module holds one network of timm that has one,
    else the last nn.Linear in the order of ``modules()``, if there is any.
    """
    networks: list[Any] = [part for part in module.modules() if all(hasattr(part, name) for name in TIMM)]
    found: nn.Module | None = networks[0].get_classifier() if len(networks) == 1 else None
    if isinstance(found, nn.Module) and not isinstance(found, nn.Identity):  # distilling networks have two, in a tuple
        return found
    return next((part for part in reversed([*module.modules()]) if isinstance(part, nn.Linear)), None)


def find_layer(module: nn.Module, name: str) -> nn.Module:
    """A submodule by its name in ``named_modules()``.

    Raises:
        ConfigurationError: there is none of that name.
    """
    parts: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    if name not in parts:
        names = [part for part in parts if part]
        near = difflib.get_close_matches(name, names, cutoff=0.4) or names[:8]
        raise ConfigurationError(
            f"layer must name a submodule of {type(module).__name__}, got {name!r}; near it: {', '.join(near)}"
        )
    return parts[name]
