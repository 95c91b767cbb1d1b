"""SentState: what a rule's client hooks know of the rule's state where the client trains on another machine."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor
from typing_extensions import override

from fl_lightning.errors import ConfigurationError

MARK = "kept/"  # begins the name of a mark in a rule's state at the server: the round of a value that stays at a site


def is_sent(name: str, broadcasts: Collection[str], client: int) -> bool:
    """Tell whether a tensor of a rule's state is sent to a client: it is a broadcast, or belongs to the client."""
    return name in broadcasts or name.endswith(f"/{client}")


def has_shape(value: Tensor, shape: Sequence[int]) -> bool:
    """Tell whether a tensor has a shape in which a size of 0 stands for any."""
    return value.ndim == len(shape) and all(want in (0, size) for want, size in zip(shape, value.shape, strict=True))


class SentState(UserDict[str, Tensor]):
    """Holds what has been sent to a client of a rule's state, and refuses to be asked for anything else.

    A rule that asks for what is not sent would take a start value for it, in silence.

    Args:
        sent: the tensors that have been sent, by name.
        rule: the name of the rule's class.
        broadcasts: the names of the tensors that every client receives, once they are in the state.
        client: the client's id.
    """

    def __init__(self, sent: Mapping[str, Tensor], rule: str, broadcasts: Collection[str], client: int) -> None:
        super().__init__(sent)
        self._rule = rule
        self._broadcasts = broadcasts
        self._client = client

    @override
    def __contains__(self, name: object) -> bool:
        self._check(str(name))
        return super().__contains__(name)

    @override
    def __getitem__(self, name: str) -> Tensor:
        self._check(name)
        return super().__getitem__(name)

    def _check(self, name: str) -> None:
        if not is_sent(name, self._broadcasts, self._client):
            raise ConfigurationError(
                f"{self._rule} reads self.state[{name!r}] where client {self._client} trains, but the server sends "
                f"only its broadcasts and what is named …/{self._client}: add {name!r} to broadcasts, or set "
                "starts_at_server if start reads it"
            )
