"""Default arguments that pickle can find."""

from __future__ import annotations

import inspect
from types import LambdaType
from typing import TypeVar

Class = TypeVar("Class", bound=type)


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
