"""What must be alike at a server and its sites: settings but for places, and the source of classes of others."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from pydoc import locate
from typing import Any

from fl_lightning.fit.processes import class_paths
from fl_lightning.runs.config.resuming import CALLBACKS, affecting

# Packages whose classes are compared by their paths alone; the package's own version is compared, too.
RELEASED = ("fl_lightning", "torch", "lightning", "torchvision", "timm")


def compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be the same on all machines of a federation: settings by dotted names, and source by class.

    Left out are the settings that say where a machine has its data, as their classes say (``places``).

    Args:
        config: the config of a fit, as plain dicts and lists.
    """
    settings = affecting(config)
    for name in places_in(config.get("data"), "data"):
        settings.pop(name, None)
    acting = [config.get("model"), config.get("data"), settings.get(CALLBACKS)]
    return settings | sources_of(class_paths(acting))


def places_in(value: Any, name: str) -> Iterator[str]:
    """Yield the dotted names of the settings, at any depth, that are places for the classes which have them.

    Args:
        value: a setting, with all below it.
        name: its dotted name.
    """
    if not isinstance(value, Mapping):
        return
    arguments = value.get("init_args") if "class_path" in value else value
    for place in getattr(locate(str(value.get("class_path"))), "places", ()):
        yield f"{name}.{place}"
    for argument, below in (arguments or {}).items():
        yield from places_in(below, f"{name}.{argument}")


def sources_of(paths: list[str]) -> dict[str, str]:
    """Return a hash of the source of each class that is not of a package in ``RELEASED``, by "source of <class>".

    The hash is over the files in which the class and those from which it inherits stand; what these files import is
    not in it. Line ends count as one character. A class without such a file has none.

    Args:
        paths: paths of classes, or of functions.
    """
    sources: dict[str, str] = {}
    for path in paths:
        found: Any = locate(path)
        if found is None:
            continue
        digest = hashlib.blake2b(digest_size=8)
        files = dict.fromkeys(file for part in getattr(found, "__mro__", (found,)) if (file := _file_of(part)))
        for file in files:
            digest.update(file.read_bytes().replace(b"\r\n", b"\n"))
        if files:
            sources[f"source of {found.__module__}.{found.__qualname__}"] = digest.hexdigest()
    return sources


def _file_of(part: Any) -> Path | None:
    """Return the file in which a class or function stands; None for one of ``RELEASED``, and for one of no file."""
    package, _, _ = part.__module__.partition(".")
    if package in RELEASED:
        return None
    try:
        file = inspect.getsourcefile(part)
    except TypeError:  # of Python itself, or compiled
        return None
    return None if file is None else Path(file)
