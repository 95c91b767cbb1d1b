"""Prints the arguments of all public classes, by which a test finds those that came later, or all public names.

At a release:

.venv/bin/python tools/signatures.py > tests/releases/X.Y.Z/arguments.yaml
.venv/bin/python tools/signatures.py names > tests/releases/X.Y.Z/names.yaml
"""

import sys
from importlib import import_module
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from fl_lightning.cli import COMMANDS
from fl_lightning.fit.configs import CONFIGS
from fl_lightning.fit.helps.class_lists import KINDS

ROOMS = ("fl_lightning", "fl_lightning.callbacks", "fl_lightning.datamodules", "fl_lightning.models")
ELSEWHERE = ("fl_lightning.reproduce.controls", "ShamCorrection")  # a class that a shipped config names


def public_arguments() -> dict[str, dict[str, Any]]:
    """Return the arguments that configs hold of each public class, base classes' included, with their defaults.

    The classes are the orchestrator and those that an option takes.
    """
    bases = tuple(kind.base for kind in KINDS.values())
    places = [ELSEWHERE]
    for room in ROOMS:
        places += [(room, name) for name in import_module(room).__all__]
    found = {}
    for room, name in places:
        cls = getattr(import_module(room), name)
        if isinstance(cls, type) and issubclass(cls, bases):
            found[f"{room}.{name}"] = _arguments(cls)
    return found


def _arguments(cls: type) -> dict[str, Any]:
    parser = ArgumentParser()
    parser.add_class_arguments(cls, fail_untyped=False)
    return dict(parser.get_defaults().as_dict())


def public_names() -> dict[str, list[str]]:
    """Return the names that stay until 1.0: those of the public packages, the commands and the shipped configs."""
    names = {room: sorted(import_module(room).__all__) for room in ROOMS}
    configs = [path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml")]
    return names | {"commands": sorted(COMMANDS), "configs": sorted(configs)}


if __name__ == "__main__":
    if sys.argv[1:] == ["names"]:
        yaml.safe_dump(public_names(), sys.stdout)
        sys.exit()
    for path, arguments in public_arguments().items():
        print(f"{path}: [{', '.join(arguments)}]")
