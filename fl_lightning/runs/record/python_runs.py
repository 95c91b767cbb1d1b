"""The config.yaml of a run from Python: what is known of the objects that it was made of, in the form of a config."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from fl_lightning.arguments import arguments, as_text, digest, parts, shapes
from fl_lightning.engine.orchestrator import FederatedOrchestrator
from fl_lightning.engine.rules.callback import federated
from fl_lightning.runs.folder.files import NOT_RECORDED

HEAD = """\
# The record of a run from Python, by which `fl-lightning report` compares the run; `fit` cannot repeat the run from it.
# `not_recorded` names what is not known, or not written out (functions, tensors, long lists).
"""
OWN = "fl_lightning.runs."  # modules of callbacks that record a run, and are none of its settings
TRAINER = ("max_epochs", "max_steps", "precision", "check_val_every_n_epoch", "limit_val_batches")
LONGEST = 50  # entries of a list, above which the record has their number alone; ten times as many letters of a text
DEPTH = 5  # objects inside of objects that are described


def record_of(orchestrator: FederatedOrchestrator) -> dict[str, Any]:
    """Describe a run that has begun, in the form of a config.

    An object is written as its class and those arguments that are known: the hyper-parameters that it has saved, and
    attributes with the names of arguments. The optimizers are those that the functions given for them have made. What
    is not known of the client module shows in ``structure``, a hash of its layers, their numbers and shapes.

    Returns:
        The settings; ``not_recorded`` lists the dotted names of those that are not known.
    """
    trainer, client, given = orchestrator.trainer, orchestrator.client, orchestrator.arguments
    writer = Writer()
    made = {name: _optimizers(each) for name, each in orchestrator.made_optimizers().items()}
    callbacks = [each for each in federated(trainer) if not type(each).__module__.startswith(OWN)]
    layers = as_text(parts(client, "") | shapes(client))
    module = writer.thing(client, "model.client", optimizer=made["client"])
    seed = os.environ.get("PL_GLOBAL_SEED")  # of lightning.seed_everything
    return {
        "seed_everything": None if seed is None else int(seed),
        "trainer": {
            **{name: writer.written(getattr(trainer, name), "trainer") for name in TRAINER},
            "callbacks": [writer.thing(each, f"trainer.callbacks.{type(each).__name__}") for each in callbacks],
        },
        "model": {
            "client": {**module, "structure": digest(layers.encode())},
            **{name: writer.written(given[name], f"model.{name}") for name in given if name != "server_optimizer"},
            "server_optimizer": made["server"],
        },
        "data": writer.thing(orchestrator.data, "data"),
        NOT_RECORDED: list(dict.fromkeys(writer.unknown)),
    }


class Writer:
    """Writes objects in the form of a config, and keeps the names of what is ``unknown``."""

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def thing(self, thing: object, name: str, depth: int = DEPTH, **made: Any) -> dict[str, Any]:
        """Write an object as its class and its known arguments; ``made`` stands for arguments that are known better."""
        known = arguments(thing) | dict(getattr(thing, "hparams_initial", {}))
        if inspect.isfunction(init := type(thing).__init__):
            _, *expected = inspect.signature(init).parameters.values()
            names = [each.name for each in expected if each.kind is not each.VAR_KEYWORD]
            inner = getattr(thing, "_modules", {})
            known |= {each: inner[each] for each in names if each in inner}
            self.unknown += [f"{name}.{each}" for each in names if each not in {**known, **made}]
        written = {key: self.written(value, f"{name}.{key}", depth) for key, value in known.items() if key not in made}
        return {"class_path": _path(type(thing)), "init_args": written | made}

    def written(self, value: Any, name: str, depth: int = DEPTH) -> Any:
        """Write any value; one that is not written out as its class, and its shape or length."""
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, PurePath | Enum | torch.dtype | torch.device):
            return str(value)
        if value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and _is_short(value, 10)):
            return value
        if isinstance(value, Mapping) and _is_short(value):
            return {str(key): self.written(each, f"{name}.{key}", depth) for key, each in value.items()}
        if isinstance(value, set | frozenset):
            value = sorted(value, key=str)
        if isinstance(value, list | tuple) and _is_short(value):
            return [self.written(each, name, depth) for each in value]
        if isinstance(value, partial):
            self.unknown += [name] * bool(value.args)
            return {"class_path": _path(value.func), "init_args": self.written(value.keywords, name, depth)}
        if isinstance(value, type) or inspect.isroutine(value):
            self.unknown += [name] * ("<" in _path(value))  # a lambda, or a function inside of a function
            return _path(value)
        if depth and not isinstance(value, list | tuple | Mapping | str | bytes) and not hasattr(value, "__array__"):
            return self.thing(value, name, depth - 1)
        self.unknown.append(name)
        size = tuple(value.shape) if hasattr(value, "shape") else len(value) if hasattr(value, "__len__") else None
        return _path(type(value)) if size is None else f"{type(value).__name__} of {size}"


def _is_short(value: Any, times: int = 1) -> bool:
    return len(value) <= LONGEST * times


def _optimizers(made: Sequence[tuple[type, Sequence[Mapping[str, Any]]]]) -> Any:
    """Write optimizers as a config has them; more than one, or one with several parameter groups, as a list."""
    every = [
        {"class_path": _path(cls), "init_args": {name: group[name] for name in group if name != "initial_lr"}}
        for cls, groups in made
        for group in groups
    ]
    written = Writer().written(every, "")
    return written[0] if len(written) == 1 else written


def _path(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', repr(thing))}"
