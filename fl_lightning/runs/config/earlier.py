"""Configs of earlier versions: what is gone since, and what came later and does as before."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pydoc import ErrorDuringImport, locate
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.later import later_arguments

ORCHESTRATOR = "fl_lightning.FederatedOrchestrator"  # the class of a config's part "model", which names none


@dataclass(frozen=True)
class Gone:
    """Says what is left of an argument that a class had in an earlier version.

    Attributes:
        cls: the class, as configs name it.
        name: the argument.
        default: the value with which the class did what it does today.
        reason: why the argument is gone, or what does the same.
    """

    cls: str
    name: str
    default: Any
    reason: str

    @property
    def option(self) -> str:
        """The argument's name after that of its class, or after that of the part of a config that names no class."""
        holder = "model" if self.cls == ORCHESTRATOR else self.cls.rpartition(".")[2]
        return f"{holder}.{self.name}"


GONE = (
    Gone(
        ORCHESTRATOR,
        "local_graph",
        False,
        "local steps are no longer captured as CUDA graphs, which keep what a step reads",
    ),
    Gone("fl_lightning.callbacks.FedAvgM", "convention", "heavy ball", "model.server_optimizer has other momenta"),
    Gone("fl_lightning.callbacks.SaveCohorts", "path", "cohorts.txt", "the file in the run folder is cohorts.txt"),
)
# Defaults of 0.3.0 that arguments no longer take, and the defaults of today, which do the same but for rounding.
DEFAULTS: dict[str, dict[str, tuple[Any, Any]]] = {
    ORCHESTRATOR: {"compile_clients": ("auto", False)},
    "fl_lightning.datamodules.HuggingFace": {"drop_last": (None, False)},
}
# What classes did before they had an argument whose default does something else: none may come since 0.3.0.
LACKING = {"fl_lightning.callbacks.FedGAMCV": {"control": "paper"}}


def bring_up_to_date(config: dict[str, Any]) -> list[tuple[Gone, Any]]:
    """Let a run's config say what the run did in today's arguments, in place.

    Returns:
        The arguments that are gone, which are taken out, each with its value there.
    """
    taken = []
    for path, arguments in _classes_in(config):
        _replace_defaults(path, arguments, today=True)
        for name, value in LACKING.get(path, {}).items():
            arguments.setdefault(name, value)
        for gone in GONE:
            if gone.cls == path and gone.name in arguments:
                taken.append((gone, arguments.pop(gone.name)))
    return taken


def check_gone(path: object, taken: Sequence[tuple[Gone, Any]]) -> None:
    """Refuse what was taken out of a run's config unless it was the default.

    Args:
        path: the file that holds the config, for the message.
        taken: see :func:`bring_up_to_date`.

    Raises:
        ConfigurationError: a value was not the default, so that today's class does something else.
    """
    for gone, value in taken:
        if value != gone.default:
            raise ConfigurationError(
                f"{path}: {gone.option} is {value} there, and gone: {gone.reason}; take it out of a copy of the file, "
                "for a new run or to go on with --resume_changed true"
            )


def without_later(config: Mapping[str, Any], imports: bool = True, today: bool = True) -> dict[str, Any]:
    """Copy a config without the arguments that one version lacks, where they do as the version that lacks them.

    They are those that the classes declare by :func:`fl_lightning.later.later`, and those of ``GONE``.

    Args:
        config: the config.
        imports: whether classes that are not loaded are imported; else nothing is known of what these declare.
        today: whether defaults of 0.3.0 that are gone become those of today, or those of today become these.
    """
    copied: dict[str, Any] = copy.deepcopy(dict(config))
    for path, arguments in _classes_in(copied):
        _replace_defaults(path, arguments, today)
        cls = class_at(path) if imports else _loaded_class(path)
        idle = later_arguments(cls) if cls else {}
        idle |= {gone.name: gone.default for gone in GONE if gone.cls == path}
        for name, value in idle.items():
            if name in arguments and _as_text(arguments[name]) == _as_text(value):
                del arguments[name]
    return copied


def _replace_defaults(path: str, arguments: dict[str, Any], today: bool) -> None:
    for name, defaults in DEFAULTS.get(path, {}).items():
        replaced, new = defaults if today else reversed(defaults)
        if name in arguments and arguments[name] == replaced:
            arguments[name] = new


def class_at(path: Any) -> type | None:
    """Import the class of a path; None if there is no such class."""
    with suppress(ErrorDuringImport):
        cls = locate(str(path))
        return cls if isinstance(cls, type) else None
    return None


def _loaded_class(path: str) -> type | None:
    """Return the class of a path if its module has been imported; a report imports no code of a run."""
    module, _, name = path.rpartition(".")
    loaded = sys.modules.get(module)
    cls = vars(loaded).get(name) if loaded else None  # getattr would import what a package imports on first use
    return cls if isinstance(cls, type) else None


def _classes_in(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Find the classes of a config: their paths and their arguments, which may be changed in place."""
    model = config.get("model")
    if isinstance(model, dict):
        yield ORCHESTRATOR, model
    inside: list[Any] = [config]
    while inside:
        part = inside.pop()
        if isinstance(part, list):
            inside += part
        elif isinstance(part, dict):
            arguments = part.get("init_args")
            if "class_path" in part and isinstance(arguments, dict):
                yield str(part["class_path"]), arguments
            inside += part.values()


def _as_text(value: Any) -> str:
    return json.dumps(value, default=str)  # of tuples and lists alike
