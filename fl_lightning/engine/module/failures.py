"""Describe where a client's training failed, and choose the error that ends a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning.errors import (
    ClientFailure,
    ConfigurationError,
    TrainingError,
    causes,
    frames,
    is_exhaustion,
    is_library,
    of_library,
)

# What to do about an error of torch, by a part of its message.
CLASSES = "the loss takes classes, not floats: in a Table, task: classification makes classes of numbers"
HINTS = {
    "Expected more than 1 value per channel": "BatchNorm needs two examples; drop_last (--data.drop_last true) leaves "
    "out a last batch of one, and Dirichlet's form: rebalanced gives every client min_samples",
    "expected target dtype to be Long": CLASSES,
    "expected scalar type Long but found": CLASSES,
    "can't be cast to the desired output type Long": "the loss takes floats, as a Table's task: regression gives",
}


class RuleError(RuntimeError):
    """A hook of a rule or a monitor raised an error, which stops the run; the message names hook and client."""


def guard_hook(hook: Callable[..., Any], method: Any = None, run: Any = None) -> Callable[..., Any]:
    """Let a hook of a callback stop the fit when the hook raises an error while a client trains.

    Errors of the client's own step, as in a closure that the hook evaluates, stay the client's.

    Args:
        hook: a bound method that takes a client's run, or the closure that such a method has returned.
        method: the method that has returned the closure.
        run: the client's run, for a closure.
    """
    method = method or hook

    def call(*args: Any) -> Any:
        try:
            return hook(*args)
        except (ConfigurationError, ClientFailure, RuleError):
            raise
        except Exception as error:
            if is_exhaustion(error) or _is_of_step(error):
                raise
            round, clients = _round_and_clients(run, args)
            owner = getattr(method, "__self__", None)
            name = f"{type(owner).__name__}.{method.__name__}" if owner else method.__qualname__
            noun = "clients" if len(clients) > 1 else "client"
            whose = f"{noun} {', '.join(map(str, clients))}"
            raise RuleError(f"round {round}: {name} raises {type(error).__name__} on {whose}: {error}") from error

    return call


def _round_and_clients(run: Any, args: Sequence[Any]) -> tuple[int, Sequence[int]]:
    """Return the round and the clients of a hook's call, from the run that it got; ``start`` gets no run."""
    if run is None:
        run = next((argument for argument in args if hasattr(argument, "anchor")), None)
    if run is None:
        server, client, *_ = args
        return server.round, [client]
    if hasattr(run, "clients"):  # a group of clients that train at once
        return run.round, run.clients
    return run.round, [run.client]


def _is_of_step(error: Exception) -> bool:
    """Tell whether an error comes from the evaluation of a client's local step."""
    return any(_is_of_engine(frame) and frame.f_code.co_name == "_evaluate" for frame in frames(error))


def error_text(error: Exception, module: LightningModule) -> str:
    """Describe an error in a module's training: class, message, layer that raised it, and what to do if known."""
    text = f"{type(error).__name__}: {error}"
    names = {id(part): name for name, part in module.named_modules() if part is not module}
    layers: list[nn.Module] = []
    for frame in frames(error):
        owner = None if _is_of_engine(frame) else frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            layers.append(owner)
    if layers:
        innermost = layers[-1]
        text += f" (in {names[id(innermost)]}, {_short(innermost)})"
    for part, hint in HINTS.items():
        if part in str(error):
            return f"{text}: {hint}"
    return text


def named_error(error: Exception) -> str:
    """Name the type of an error and the class that raised it, without the text, which may quote an example."""
    first = list(causes(error))[-1]
    classes: list[str] = []
    for frame in frames(first):
        if "self" in frame.f_code.co_varnames[:1] and not _is_of_engine(frame) and not is_library(frame):
            classes.append(type(frame.f_locals["self"]).__name__)
    name = type(first).__name__
    return f"{name} in {classes[-1]}" if classes else name


def _is_of_engine(frame: FrameType) -> bool:
    """Tell whether a frame is the engine's: to look at its variables would keep them, and the error, in memory."""
    return str(frame.f_globals.get("__name__")).startswith("fl_lightning.engine.")


def _short(layer: nn.Module) -> str:
    """Write a layer; of one that holds others, only the class."""
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
