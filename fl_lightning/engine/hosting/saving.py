"""The client module in checkpoints: its names there, what fits, and values that any ``torch.load`` accepts.

The orchestrator's checkpoints name every tensor of the client module ``client.<name>``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fl_lightning.engine.states.large import checksums, digest, fingerprint
from fl_lightning.errors import ConfigurationError

PREFIX = "client."
LEFT_OUT = "left_out"  # in a checkpoint, the digests of frozen parameters that it lacks, by their names


def own_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Select the client module's entries of an orchestrator's state, under the module's own names.

    Example:
        >>> from fl_lightning.engine.hosting.saving import own_names
        >>> dict(own_names({"client.layer.weight": 1, "client.layer.bias": 2}))
        {'layer.weight': 1, 'layer.bias': 2}
    """

    def own_name(name: str) -> str | None:
        return f"{name}."[len(PREFIX) : -1] if _is_clients(name) else None

    return rename_entries(state, own_name)


def _is_clients(name: str) -> bool:
    """Whether a name is the client module's, of a tensor or of a module; "client" is the module itself."""
    return f"{name}.".startswith(PREFIX)


@contextmanager
def own_view(checkpoint: dict[str, Any]) -> Iterator[None]:
    """Give a checkpoint's ``state_dict`` the client module's own names inside a ``with`` block."""
    others = {name: value for name, value in checkpoint["state_dict"].items() if not _is_clients(name)}
    checkpoint["state_dict"] = own_names(checkpoint["state_dict"])
    yield
    checkpoint["state_dict"] = rename_entries(checkpoint["state_dict"], lambda name: (PREFIX + name).removesuffix("."))
    checkpoint["state_dict"].update(others)


def rename_entries(state: Mapping[str, Any], rename: Callable[[str], str | None]) -> dict[str, Any]:
    """Rename the entries of a state_dict, and the modules in its metadata, which hold the versions of their states.

    Args:
        state: the state_dict; it is not changed.
        rename: function that returns the new name of an entry or a module, or None to leave the entry out.
    """
    entries = OrderedDict((new, value) for name, value in state.items() if (new := rename(name)) is not None)
    metadata = getattr(state, "_metadata", None)
    if metadata:
        versions = {new: value for name, value in metadata.items() if (new := rename(name)) is not None}
        entries._metadata = versions  # type: ignore[attr-defined]  # torch, too, adds this attribute
    return entries


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Select the values that any ``torch.load`` accepts, with ``weights_only=True``, too."""
    return {name: value for name, value in values.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts, lists, tuples and dicts alone, which any torch.load accepts."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, (*value, *value.values())))
    return value is None or type(value) in (bool, int, float, complex, str)


def check_state(own: Mapping[str, Any], saved: Mapping[str, Any], strict: bool = True) -> None:
    """Refuse a checkpoint whose tensors have other names or shapes than the model's.

    Args:
        own: the model's state_dict.
        saved: the checkpoint's state_dict, under the same names.
        strict: whether both must have the same names; otherwise only the shapes of those that both have are compared.
    """
    names = [*own, *saved] if strict else [name for name in own if name in saved]
    for name in names:
        here = _shape_in(own, name)
        there = _shape_in(saved, name)
        if here != there:
            raise ConfigurationError(
                f"the checkpoint is of another model: {name} has {there} there and {here} here; "
                "start with the config the checkpoint was made with (config.yaml beside its folder), or take weights "
                "alone, those of a plain Lightning checkpoint, too, by model.init_from"
            )


def _shape_in(state: Mapping[str, Any], name: str) -> object:
    return shape(state[name]) if name in state else "no such tensor"


def _frozen(module: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    """Select the frozen parameters of a module that have some of the names.

    A quantised parameter is more than its bits: what else of it stands in the module's state, such as its scales, is
    selected, too, if it has one of the names. It is neither a parameter nor a buffer.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    frozen = {name: own for name, own in module.named_parameters() if name in names and not own.requires_grad}
    rest = {*names} - parameters.keys() - buffers.keys()
    if rest:
        frozen |= {name: own for name, own in nn.Module.state_dict(module).items() if name in rest}
    return {name: own.detach().contiguous() for name, own in frozen.items()}


class Elsewhere:
    """Knows which frozen parameters of a module come from elsewhere, and so need be in no checkpoint.

    Attributes:
        names: names of the tensors that ``init_from`` has given; the module's ``from_elsewhere`` names others.
    """

    def __init__(self) -> None:
        self.names: Collection[str] = ()
        self._prints: dict[str, int] = {}
        self._sums: dict[str, int] = {}  # of those that were still as given when first seen elsewhere than on the CPU
        self._digests: dict[str, str] = {}  # of what has been left out so far
        self._is_known = False

    def remember(self, module: nn.Module) -> None:
        """Compute the fingerprints of the parameters as the run was given them: once, before a checkpoint is loaded."""
        if not self._is_known:
            self._is_known = True
            given = _frozen(module, {*self.names, *getattr(module, "from_elsewhere", ())})
            self._prints = {name: fingerprint(tensor) for name, tensor in given.items()}

    def leave_out(self, checkpoint: dict[str, Any]) -> None:
        """Take what is still as it was given out of a checkpoint with the module's own names, and note its digest."""
        state = checkpoint["state_dict"]
        kept = {name: state[name].detach().contiguous() for name in self._prints if name in state}
        for name, tensor in kept.items():
            if not self._is_as_given(name, tensor):
                continue
            if name not in self._digests:
                self._digests[name] = digest(tensor)
            checkpoint.setdefault(LEFT_OUT, {})[name] = self._digests[name]
            del state[name]

    def _is_as_given(self, name: str, tensor: Tensor) -> bool:
        """Compare a parameter on its device; the first time on another one than the CPU, by its bytes on the CPU."""
        if tensor.is_cpu:
            return fingerprint(tensor) == self._prints[name]
        (now,) = checksums([tensor])
        if name not in self._sums and fingerprint(tensor) == self._prints[name]:
            self._sums[name] = now
        return self._sums.get(name) == now


def fill_in(checkpoint: dict[str, Any], module: nn.Module) -> None:
    """Give a checkpoint the frozen parameters that it lacks, from a module that was given the same.

    Raises:
        ConfigurationError: the module has others.
    """
    left_out: dict[str, str] = checkpoint.get(LEFT_OUT, {})
    own = _frozen(module, left_out)
    for name, expected in left_out.items():
        if name not in own or digest(own[name]) != expected:
            raise ConfigurationError(
                f"the checkpoint lacks {name}, a frozen parameter that the run was given and never changed, and "
                f"{type(module).__name__} has another one here: give it the same weights by model.init_from, or the "
                "network's pretrained"
            )
        checkpoint["state_dict"][name] = own[name]


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
