"""The initial global model, taken from a file or from timm (``model.init_from``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from safetensors.torch import load_file
from torch import Tensor, nn

from fl_lightning.engine.hosting.adapted import adapted_layers, is_adapter, start_from_adapter
from fl_lightning.engine.hosting.saving import LEFT_OUT, own_names, shape
from fl_lightning.errors import ConfigurationError
from fl_lightning.seeding import isolated

TIMM = "timm:"


def start_from(module: LightningModule, source: str) -> set[str]:
    """Copy the tensors of a file, or timm's pretrained weights, into a module, and log one line about them.

    The names may be the module's, or those of one of its submodules: the submodule that has most of the names. The last
    layer with parameters is the head. A head with another number of outputs, or one that is missing in the source,
    keeps the module's own initial values, and so do adapters that peft has put around layers. All other tensors must
    fit, unless the module's ``strict_loading`` is False: then tensors that only the module or only the source has are
    ignored.

    Args:
        module: the client module.
        source: a Lightning checkpoint, a state_dict (``.safetensors``, or written by ``torch.save``), a checkpoint of a
            federated run, a folder with an adapter of peft, or ``timm:`` and a model name of timm.

    Returns:
        The names of the tensors that the source has given.

    Raises:
        ConfigurationError: there are no such weights, or they do not fit.
    """
    if is_adapter(Path(source)):
        start_from_adapter(module, Path(source))
        return set()  # the frozen weights are the module's own
    saved = _of_timm(source.removeprefix(TIMM)) if source.startswith(TIMM) else read_tensors(Path(source))
    module.configure_model()  # may make layers; the Trainer calls it again, which Lightning asks modules to allow
    own = nn.Module.state_dict(module)
    part = _part(module, own, saved)
    plain, adapters = _without_adapters(module, own)
    wrapped = {short: name for name, short in plain.items()}
    saved = {wrapped.get(part + name, part + name): value for name, value in saved.items()}
    names = [name for name, _ in module.named_parameters() if name.startswith(part)]
    head = names[-1].rpartition(".")[0] if names else None
    kept = [
        name
        for name, value in own.items()
        if name.rpartition(".")[0] == head and _is_other_head(value, saved.get(name))
    ]
    expected = {}
    for name, value in own.items():
        if name.startswith(part) and name not in kept and (name not in adapters or name in saved):
            expected[name] = value
    fitting = {name: value for name, value in saved.items() if name not in kept}
    _check_fit(module, source, expected, fitting)
    given = fitting.keys() & own.keys()
    own.update(fitting)  # keeps the versions of the modules' states, which safetensors does not hold
    nn.Module.load_state_dict(module, own, strict=False)
    into = f"{type(module).__name__}.{part}".removesuffix(".")
    line = f"init_from: {source} gives {into} {len(given)} tensors"
    if kept:
        line += f"; {head}, missing or of another size there, keeps its own initial values"
    rank_zero_info(line)
    return given


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the state_dict of a file, with the client module's own names if the file is a federated run's checkpoint.

    Raises:
        ConfigurationError: the file does not exist, or holds no state_dict.
    """
    check_is_file(path)
    try:
        safe = path.suffix == ".safetensors"
        content: Any = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
        state = content.get("state_dict", content)
        found = dict(own_names(state) if "rounds_done" in content else state)
        lacks = content.get(LEFT_OUT)
    except Exception:  # whatever a damaged file makes the two libraries raise
        raise ConfigurationError(
            f"init_from: {path} holds no state_dict: expected a Lightning checkpoint, or a file of tensors by name, "
            "written by safetensors or by torch.save(module.state_dict(), …)"
        ) from None
    if lacks:
        raise ConfigurationError(
            f"init_from: {path} lacks frozen weights that its run was given, such as {next(iter(lacks))}: write all of "
            "them to a file by fl-lightning export RUN weights.safetensors, and give that file"
        )
    return found


def check_is_file(path: Path) -> None:
    """Refuse a source of weights that is no file.

    Raises:
        ConfigurationError: the file does not exist, or is a folder.
    """
    if not path.is_file():
        came = "which is a folder" if path.is_dir() else "which does not exist"
        raise ConfigurationError(
            f"init_from: expected a file of weights, a folder of an adapter, or timm: and a name, got {path}, {came}; "
            "null loads no weights"
        )


def _of_timm(name: str) -> dict[str, Tensor]:
    import timm  # takes a second

    try:
        with isolated(torch.device("cpu")):  # building a network draws random numbers
            return dict(timm.create_model(name, pretrained=True).state_dict())
    except Exception as error:  # a wrong name, no weights, no network: each of other libraries' classes
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"init_from: timm gives no weights {name}: {reason}; timm.list_pretrained() names those that exist"
        ) from None


def _part(module: nn.Module, own: Mapping[str, Any], saved: Mapping[str, Any]) -> str:
    """Find the submodule that has most of the saved names; return the prefix of its names ("" or "network.")."""
    parts = [f"{name}." if name else "" for name, _ in module.named_modules()]
    return max(parts, key=lambda part: sum(part + name in own for name in saved))


def _without_adapters(module: nn.Module, names: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """Return the names that tensors had before peft put adapters around layers, and the names of the adapters'."""
    layers = [name for name, _ in adapted_layers(module)]
    plain = {name: name for name in names}
    adapters = set[str]()
    for layer in reversed(layers):  # a layer within another one first
        base = f"{layer}.base_layer."
        for name, short in plain.items():
            if short.startswith(base):
                plain[name] = f"{layer}.{short.removeprefix(base)}"
            elif short.startswith(f"{layer}."):
                adapters.add(name)
    return plain, adapters


def _is_other_head(own: Any, saved: Any) -> bool:
    """Tell whether a tensor of the head is missing in the source, or has another number of outputs there."""
    return saved is None or (shape(own)[1:] == shape(saved)[1:] and shape(own) != shape(saved))


def _check_fit(module: LightningModule, source: str, own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse tensors that do not fit: name the first that has another shape, is missing, or is unexpected."""
    common = {name: value for name, value in own.items() if name in saved}
    # Of tensors that share their memory, a file may hold one alone.
    places = {value.data_ptr() for value in common.values() if isinstance(value, Tensor)}
    missing = []
    for name, value in own.items():
        is_tied = isinstance(value, Tensor) and value.data_ptr() in places
        if name not in common and not is_tied:
            missing.append(name)
    unexpected = [name for name in saved if name not in own]
    reshaped = [name for name in common if shape(saved[name]) != shape(own[name])]
    words = [f"{name} is {shape(saved[name])} there and {shape(own[name])} here" for name in reshaped[:1]]
    if module.strict_loading or not common:
        words += [f"{name} is missing" for name in missing[:1]]
        words += [f"{name} is unexpected" for name in unexpected[:1]]
    if words:
        raise ConfigurationError(
            f"init_from: {source} does not fit {type(module).__name__}: {', '.join(words)}; expected weights of the "
            "same network (strict_loading = False in the module ignores tensors that only one of the two has)"
        )
