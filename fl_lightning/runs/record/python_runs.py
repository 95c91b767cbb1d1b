"""The config.yaml of a run from Python: what is known of the objects that it was made of, in the form of a config."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch

from fl_lightning.arguments import Kind, arguments, as_text, digest, kind_of, parts, shapes
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
    trainer = orchestrator.trainer
    client = orchestrator.client
    made = orchestrator.made_optimizers()
    writer = Writer()
    module = writer.describe(client, "model.client", optimizer=_describe_optimizers(made["client"]))
    layers = as_text(parts(client, "") | shapes(client))
    module["structure"] = digest(layers.encode())
    settings = {name: writer.write(getattr(trainer, name), "trainer") for name in TRAINER}
    callbacks = []
    for callback in federated(trainer):
        if not type(callback).__module__.startswith(OWN):
            callbacks.append(writer.describe(callback, f"trainer.callbacks.{type(callback).__name__}"))
    model = {}
    for name, value in orchestrator.arguments.items():
        if name != "server_optimizer":
            model[name] = writer.write(value, f"model.{name}")
    data = writer.describe(orchestrator.data, "data")
    seed = os.environ.get("PL_GLOBAL_SEED")  # of lightning.seed_everything
    return {
        "seed_everything": None if seed is None else int(seed),
        "trainer": {**settings, "callbacks": callbacks},
        "model": {"client": module, **model, "server_optimizer": _describe_optimizers(made["server"])},
        "data": data,
        NOT_RECORDED: list(dict.fromkeys(writer.unknown)),
    }


class Writer:
    """Writes objects in the form of a config, and keeps the names of what is ``unknown``."""

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def describe(self, thing: object, name: str, depth: int = DEPTH, **made: Any) -> dict[str, Any]:
        """Write an object as its class and its known arguments; ``made`` stands for arguments that are known better."""
        known = arguments(thing) | dict(getattr(thing, "hparams_initial", {}))
        init = type(thing).__init__
        if inspect.isfunction(init):
            _, *parameters = inspect.signature(init).parameters.values()
            expected = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
            modules = getattr(thing, "_modules", {})
            known |= {argument: modules[argument] for argument in expected if argument in modules}
            self.unknown += [f"{name}.{argument}" for argument in expected if argument not in {**known, **made}]
        described = {}
        for argument, value in known.items():
            if argument not in made:
                described[argument] = self.write(value, f"{name}.{argument}", depth)
        return {"class_path": _path(type(thing)), "init_args": described | made}

    def write(self, value: Any, name: str, depth: int = DEPTH) -> Any:
        """Write any value; one that is not written out as its class, and its shape or length."""
        match kind_of(value):
            case Kind.PLAIN:
                return self._write_plain(value, name)
            case Kind.PATH:
                return str(value)
            case Kind.MAPPING if _is_short(value):
                return {str(key): self.write(entry, f"{name}.{key}", depth) for key, entry in value.items()}
            case Kind.LIST if _is_short(value):
                return [self.write(entry, name, depth) for entry in value]
            case Kind.SET:
                return self.write(sorted(value, key=str), name, depth)
            case Kind.PARTIAL:
                if value.args:
                    self.unknown.append(name)
                return {"class_path": _path(value.func), "init_args": self.write(value.keywords, name, depth)}
            case Kind.NAMED:
                if "<" in _path(value):  # a lambda, or a function inside of a function
                    self.unknown.append(name)
                return _path(value)
            case Kind.OBJECT if isinstance(value, torch.device):
                return str(value)
            case Kind.OBJECT | Kind.MODULE if depth and not hasattr(value, "__array__"):
                return self.describe(value, name, depth - 1)
        return self._leave_out(value, name)

    def _write_plain(self, value: Any, name: str) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Enum | torch.dtype | complex):
            return str(value)
        if isinstance(value, bytes) or (isinstance(value, str) and not _is_short(value, 10)):
            return self._leave_out(value, name)
        return value

    def _leave_out(self, value: Any, name: str) -> str:
        """Write the class of a value, and its shape or length, in place of what the value holds."""
        self.unknown.append(name)
        if hasattr(value, "shape"):
            return f"{type(value).__name__} of {tuple(value.shape)}"
        if hasattr(value, "__len__"):
            return f"{type(value).__name__} of {len(value)}"
        return _path(type(value))


def _is_short(value: Any, times: int = 1) -> bool:
    return len(value) <= LONGEST * times


def _describe_optimizers(made: Sequence[tuple[type, Sequence[Mapping[str, Any]]]]) -> Any:
    """Write optimizers as a config has them; more than one, or one with several parameter groups, as a list."""
    described = []
    for cls, groups in made:
        for group in groups:
            known = {name: value for name, value in group.items() if name != "initial_lr"}
            described.append({"class_path": _path(cls), "init_args": known})
    written = Writer().write(described, "")
    return written[0] if len(written) == 1 else written


def _path(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', repr(thing))}"
