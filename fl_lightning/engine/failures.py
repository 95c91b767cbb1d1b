"""Describe where a client's training failed, and choose the error that ends a run."""

from __future__ import annotations

import traceback

from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning.errors import TrainingError, of_library

# What to do about an error of torch, by a part of its message.
HINTS = {
    "Expected more than 1 value per channel": "BatchNorm needs two examples; drop_last (--data.drop_last true) leaves "
    "out a last batch of one",
}


def described(error: Exception, module: LightningModule) -> str:
    """Describe an error in a module's training: class, message, layer that raised it, and what to do if known."""
    names = {id(part): name for name, part in module.named_modules() if part is not module}
    found = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    layers = [each for each in found if isinstance(each, nn.Module) and id(each) in names]
    where = f" (in {names[id(layers[-1])]}, {_short(layers[-1])})" if layers else ""
    hint = next((f": {words}" for found, words in HINTS.items() if found in str(error)), "")
    return f"{type(error).__name__}: {error}{where}{hint}"


def _short(layer: nn.Module) -> str:
    return type(layer).__name__ if list(layer.children()) else str(layer)


def ending(message: str, error: Exception | None) -> Exception:
    """Return the error that ends a run after clients have failed.

    Args:
        message: which client was left out, and why.
        error: the error that the client raised; None if its update was not finite.

    Returns:
        A TrainingError, shown without a traceback, if no code of the user had a part in the error; else a RuntimeError.
    """
    if error is None or of_library(error):
        return TrainingError(message)
    return RuntimeError(message)
