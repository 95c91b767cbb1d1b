"""Read what an object was told: its constructors' arguments and its numbers, from its attributes, as values or text.

And let pickle find the lambdas among default arguments.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import LambdaType, ModuleType, NoneType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Class = TypeVar("Class", bound=type)
Facts = dict[str, str]  # by name
LOCAL = {"num_workers", "download", "cache", "seconds_looking"}  # numbers and arguments that may differ, as paths may
SAMPLED = 1 << 20  # entries of a tensor among the settings that are compared
DEPTH = 4  # objects inside of objects whose settings are compared


def arguments(thing: object) -> dict[str, Any]:
    """Return the arguments of an object's constructors, those of its base classes included, that are attributes.

    An attribute has the name of the argument, or begins with an underscore.
    """
    attributes = getattr(thing, "__dict__", {})
    given: dict[str, Any] = {}
    for name in _argument_names(type(thing)):
        for attribute in (name, f"_{name}"):
            if attribute in attributes:
                given[name] = attributes[attribute]
    return given


def settings(thing: object, depth: int = DEPTH) -> Facts:
    """Write what an object was told as text: its :func:`arguments`, and public attributes with numbers."""
    told: dict[str, Any] = {}
    for name, value in vars(thing).items():
        if name[0] != "_" and type(value) in (int, float, complex):
            told[name] = value
    told |= arguments(thing)
    return {name: as_text(value, depth) for name, value in told.items() if name not in LOCAL}


def parts(module: nn.Module, name: str) -> Facts:
    """Write the class and the settings of a module and of each module in it, whose names begin with ``name``."""
    facts: Facts = {}
    for path, part in module.named_modules(prefix=name):
        facts[path] = type(part).__qualname__
        for key, value in settings(part).items():
            facts[f"{path}.{key}"] = value
    return facts


def shapes(module: nn.Module) -> Facts:
    """Write the shape and the kind of each tensor of a module, apart from its values."""
    facts: Facts = {}
    for path, tensor in tensors(module).items():
        kind = "trainable" if tensor.requires_grad else "fixed"
        facts[path] = f"{tuple(tensor.shape)} {tensor.dtype} {kind}"
    return facts


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Find the tensors of a module by name: parameters, buffers, and attributes that are tensors."""
    named: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                named[f"{path}.{name}"] = value
    return {name: tensor for name, tensor in named.items() if not is_lazy(tensor)}


def _argument_names(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        constructor = vars(base).get("__init__")
        if inspect.isfunction(constructor):
            yield from inspect.signature(constructor).parameters


class Kind(Enum):
    """Names the kinds of values among settings, each of which is written down in a way of its own."""

    PLAIN = "a number, a text, a truth value, a member of an enum, a dtype or None"
    PATH = "a path"
    ARRAY = "a tensor or an array"
    MAPPING = "values by name"
    LIST = "values in order"
    SET = "values without an order"
    PARTIAL = "a function with some of its arguments"
    NAMED = "a class or a function"
    MODULE = "a module of Python"
    OBJECT = "anything else"


CLASSES: dict[Kind, Any] = {
    Kind.PLAIN: (NoneType, bool, int, float, complex, str, bytes, Enum, torch.dtype, np.generic),
    Kind.PATH: PurePath,
    Kind.ARRAY: (Tensor, np.ndarray),
    Kind.MAPPING: Mapping,
    Kind.LIST: (list, tuple),
    Kind.SET: (set, frozenset),
    Kind.PARTIAL: partial,
    Kind.NAMED: type,
    Kind.MODULE: ModuleType,
}


def kind_of(value: Any) -> Kind:
    """Tell what a value among the settings is."""
    for kind, classes in CLASSES.items():
        if isinstance(value, classes):
            return kind
    return Kind.NAMED if inspect.isroutine(value) else Kind.OBJECT


def as_text(value: Any, depth: int = DEPTH) -> str:
    """Write a setting as a text that is the same in every process; a path is local, and says nothing."""
    match kind_of(value):
        case Kind.PLAIN:
            names_a_file = isinstance(value, str) and os.sep in value
            return "a path" if names_a_file else repr(value)
        case Kind.PATH:
            return "a path"
        case Kind.ARRAY:
            return _array_as_text(value, depth)
        case Kind.MAPPING:
            pairs = [f"{key}: {as_text(entry, depth)}" for key, entry in value.items()]
            return f"{{{', '.join(pairs)}}}"
        case Kind.LIST:
            return f"[{', '.join(as_text(entry, depth) for entry in value)}]"
        case Kind.SET:
            return f"[{', '.join(sorted(as_text(entry, depth) for entry in value))}]"
        case Kind.PARTIAL:
            return f"{as_text(value.func, depth)}({as_text(value.args, depth)}, {as_text(value.keywords, depth)})"
        case Kind.NAMED | Kind.MODULE:
            return str(getattr(value, "__qualname__", value.__name__))
    inside = settings(value, depth - 1) if depth and hasattr(value, "__dict__") else {}
    known = [f"{name}={text}" for name, text in inside.items()]
    return f"{type(value).__qualname__}({', '.join(known)})"


def _array_as_text(array: Any, depth: int) -> str:
    """Write the shape and the dtype of a tensor or an array, and a hash of its entries; of no numbers, all entries."""
    if isinstance(array, np.ndarray) and array.dtype.kind not in "biufc":
        return as_text(array.tolist(), depth)
    tensor = torch.as_tensor(array).detach()
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    flat = dense.reshape(-1)
    sampled = flat[:: 1 + len(flat) // SAMPLED].clone()  # since a tensor that NumPy sees can no longer be resized
    return f"{tuple(tensor.shape)} {tensor.dtype} {digest(sampled.view(torch.uint8).cpu().numpy())}"


def digest(content: Any) -> str:
    """Hash bytes to 16 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:16]


def picklable_defaults(cls: Class) -> Class:
    """Make lambdas among a class's default arguments attributes of the class, so that pickle finds them.

    The command line needs lambdas as defaults: it reads a default's class and arguments from the lambda's source.
    """
    for name, parameter in inspect.signature(cls.__init__).parameters.items():  # type: ignore[misc]  # of a class, not an instance
        default = parameter.default
        if isinstance(default, LambdaType) and default.__name__ == "<lambda>":
            default.__qualname__ = f"{cls.__qualname__}._default_{name}"
            setattr(cls, f"_default_{name}", staticmethod(default))
    return cls
