"""ClientSaver: saves the client module in checkpoints as the plain Trainer would, and restores it.

The orchestrator's checkpoints name every tensor of the client module ``client.<name>``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from typing_extensions import override

from fl_lightning.engine.hosting.checkpoint_checks import check_state
from fl_lightning.engine.module.state import make_room
from fl_lightning.engine.rules.server import Server
from fl_lightning.lightning_private import saved_hyper_parameters

PREFIX = "client."


class ClientSaver(Server):
    """Saves and restores the client module as the plain Trainer would.

    The module's own ``state_dict``, ``load_state_dict``, ``strict_loading``, ``on_save_checkpoint`` and
    ``on_load_checkpoint`` decide what a checkpoint holds and what must be in there; all of them see the module's own
    names. The hyper-parameters that the module and the data module have saved enter the checkpoint, too, as far as they
    are plain values: others could not be loaded with ``weights_only=True``.
    """

    @property
    @override
    def strict_loading(self) -> bool:
        """Whether a checkpoint must hold exactly the client module's tensors."""
        return self.client.strict_loading

    @strict_loading.setter
    def strict_loading(self, strict_loading: bool) -> None:
        self.client.strict_loading = strict_loading

    @override
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if not is_overridden("state_dict", self.client, LightningModule):
            return super().state_dict(*args, **kwargs)
        found = kwargs.get("destination")
        found = OrderedDict() if found is None else found
        found.update(_renamed(self.client.state_dict(), lambda name: kwargs.get("prefix", "") + PREFIX + name))
        return found

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        if not is_overridden("load_state_dict", self.client, LightningModule):
            return super().load_state_dict(state_dict, strict, assign)
        return self.client.load_state_dict(own_names(state_dict), strict=strict)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        argument, saved = saved_hyper_parameters(self.client)
        for key in {self.CHECKPOINT_HYPER_PARAMS_KEY, LightningDataModule.CHECKPOINT_HYPER_PARAMS_KEY} & set(
            checkpoint
        ):
            checkpoint[key] = _plain_in(checkpoint[key])  # of the orchestrator and of the data module
        if plain := _plain_in(saved):
            checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY] = plain
            checkpoint[self.CHECKPOINT_HYPER_PARAMS_NAME] = argument
        with _own_view(checkpoint):
            self.client.on_save_checkpoint(checkpoint)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        with _own_view(checkpoint):
            self.client.on_load_checkpoint(checkpoint)
            if not is_overridden("load_state_dict", self.client, LightningModule):  # which may rename
                make_room(self.client, checkpoint["state_dict"])
                check_state(nn.Module.state_dict(self.client), checkpoint["state_dict"], self.strict_loading)


def own_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Select the client module's entries of an orchestrator's state, under the module's own names.

    Example:
        >>> from fl_lightning.engine.hosting.saving import own_names
        >>> dict(own_names({"client.layer.weight": 1, "client.layer.bias": 2}))
        {'layer.weight': 1, 'layer.bias': 2}
    """
    return _renamed(state, lambda name: f"{name}."[len(PREFIX) : -1] if _is_clients(name) else None)


def _is_clients(name: str) -> bool:
    """Whether a name is the client module's, of a tensor or of a module; "client" is the module itself."""
    return f"{name}.".startswith(PREFIX)


@contextmanager
def _own_view(checkpoint: dict[str, Any]) -> Iterator[None]:
    """Give a checkpoint's ``state_dict`` the client module's own names inside a ``with`` block."""
    others = {name: value for name, value in checkpoint["state_dict"].items() if not _is_clients(name)}
    checkpoint["state_dict"] = own_names(checkpoint["state_dict"])
    yield
    checkpoint["state_dict"] = _renamed(checkpoint["state_dict"], lambda name: (PREFIX + name).removesuffix("."))
    checkpoint["state_dict"].update(others)


def _renamed(state: Mapping[str, Any], rename: Callable[[str], str | None]) -> dict[str, Any]:
    """Rename the entries of a state_dict, and the modules in its metadata, which hold the versions of their states.

    Args:
        state: the state_dict; it is not changed.
        rename: function that returns the new name of an entry or a module, or None to leave the entry out.
    """
    renamed = OrderedDict((new, value) for name, value in state.items() if (new := rename(name)) is not None)
    if metadata := getattr(state, "_metadata", None):
        versions = {new: value for name, value in metadata.items() if (new := rename(name)) is not None}
        renamed._metadata = versions  # type: ignore[attr-defined]  # torch, too, adds this attribute
    return renamed


def _plain_in(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts, lists, tuples and dicts alone, which any torch.load accepts."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, (*value, *value.values())))
    return value is None or type(value) in (bool, int, float, complex, str)
