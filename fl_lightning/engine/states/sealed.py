"""SealedState: a rule's state while clients train, when the rule may only read it."""

from __future__ import annotations

from collections import UserDict
from collections.abc import MutableMapping
from typing import Any, NoReturn
from weakref import ReferenceType, ref

from torch import Tensor
from typing_extensions import override

from fl_lightning.errors import ConfigurationError


class SealedState(UserDict[str, Tensor]):
    """Shows a rule's state, and refuses every change: a device that changes the state knows only its own clients.

    Args:
        data: the rule's state.
        rule: the name of the rule's class.
        hooks: the names of the client hooks that the rule defines.
    """

    data: Any  # of UserDict, a dict or a DiskState here

    def __init__(self, data: MutableMapping[str, Tensor], rule: str, hooks: list[str]) -> None:
        self.data = data
        self._rule = rule
        self._hooks = hooks
        # What has been read, and how often it had been changed before. A value from a file is gone when its reader is.
        self._read: dict[str, tuple[ReferenceType[Tensor], int]] = {}

    @override
    def __getitem__(self, name: str) -> Tensor:
        value: Tensor = self.data[name]
        if isinstance(value, Tensor) and not value.is_inference():  # which nobody can change here
            self._read.setdefault(name, (ref(value), value._version))
        return value

    @override
    def __setitem__(self, name: str, value: Tensor) -> None:
        self.refuse(f"sets self.state[{name!r}]")

    @override
    def __delitem__(self, name: str) -> None:
        self.refuse(f"deletes self.state[{name!r}]")

    @override
    def __ior__(self, other: Any) -> NoReturn:
        self.refuse("sets entries of self.state")

    def check_unchanged(self) -> None:
        """Refuse a change in place of a tensor that has been read."""
        for name, (reference, version) in self._read.items():
            value = reference()
            if value is not None and value._version != version:
                self.refuse(f"changes self.state[{name!r}] in place")

    def refuse(self, deed: str) -> NoReturn:
        """Raise the error that names a client hook's forbidden change, and how the rule can keep a value instead."""
        hooks = " or ".join(self._hooks) or "training"
        raise ConfigurationError(
            f"{self._rule} {deed} in {hooks}, while a client trains, which only one device sees: send the tensor by "
            "run.send(name, tensor) in a client hook, and set the state from cohort.results[k].vectors[name] in a "
            "server hook (aggregate, update, on_round_end)"
        )
