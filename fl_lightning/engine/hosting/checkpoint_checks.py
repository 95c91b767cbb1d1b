"""Checks that a checkpoint fits the run: the names and shapes of its tensors, and their order in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from fl_lightning.errors import ConfigurationError


def check_state(own: Mapping[str, Any], saved: Mapping[str, Any], strict: bool = True) -> None:
    """Refuse a checkpoint whose tensors have other names or shapes than the model's.

    Args:
        own: the model's state_dict.
        saved: the checkpoint's state_dict, under the same names.
        strict: whether both must have the same names; otherwise only the shapes of those that both have are compared.
    """
    absent = "no such tensor"
    for name in [*own, *saved] if strict else [name for name in own if name in saved]:
        expected, found = (shape(state[name]) if name in state else absent for state in (own, saved))
        if expected != found:
            raise ConfigurationError(
                f"the checkpoint is of another model: {name} has {found} there and {expected} here; "
                "start with the config the checkpoint was made with (config.yaml beside its folder)"
            )


def check_orders(own: Sequence[list[int] | None], saved: Sequence[list[int] | None] | None) -> None:
    """Refuse a checkpoint whose parameters lie in memory in another order, since the rules' vectors have that order.

    Args:
        own: the order of each parameter's dimensions in memory, as :func:`memory_order` returns it.
        saved: the orders in the checkpoint; None without a checkpoint, or for one that has no orders.
    """
    if saved is not None and list(saved) != list(own):
        raise ConfigurationError(
            "the parameters lie in memory in another order than in the checkpoint, and so would the rules' vectors: "
            "set model.channels_last as in the run that saved it, or start a new run from it with model.init_from"
        )


def shape(value: Any) -> tuple[int, ...]:
    """Return the shape of an entry of a state_dict; () for an entry that is not a tensor."""
    return tuple(getattr(value, "shape", ()))
