"""What is answered before torch is imported: pages of help and wrong names of classes, by files of ``make lists``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.fit.messages import no_class
from fl_lightning.runs.folder.yaml_text import read_yaml

OPTIONS = Path(__file__).parents[1] / "options.yaml"
PAGES = Path(__file__).parents[1] / "help.yaml"
REST = "rest"  # the key of what the pages of all commands end with
KNOWN_PACKAGES = ("fl_lightning", "torch")  # whose imports define no class of an option in the list


def stored_help(command: str) -> str | None:
    """Return the help of a command of one run; None for other commands, and with another version of Lightning."""
    pages = read_yaml(PAGES, PAGES.read_text(encoding="utf-8"))
    if command not in pages or pages["lightning"] != version("lightning"):
        return None
    return f"{pages[command]}\n\n{pages[REST]}"


def texts_in(settings: Any, option: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in nested settings, with the option that has the text; a class's name is that of its option.

    >>> list(texts_in({"data": {"class_path": "Digits", "init_args": {"partition": "IID"}}}))
    [('data', 'Digits'), ('data.partition', 'IID')]
    """
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            inner = re.sub(r"\.?\b(class_path|init_args)\b|\+$", "", f"{option}.{key}")
            yield from texts_in(value, inner.removeprefix("."))
    elif isinstance(settings, list):
        for value in settings:
            yield from texts_in(value, option)
    elif isinstance(settings, str):
        yield option, settings


def check_classes(texts: Sequence[tuple[str, str]], classes: Mapping[str, Sequence[str]]) -> None:
    """Refuse a name that no class of this package or Lightning has, unless a module is named that may define classes.

    Args:
        texts: options and texts, as :func:`texts_in` yields them.
        classes: the names of all classes that there are when only this package has been imported, by option.

    Raises:
        ConfigurationError: there is no such class.
    """
    for _, text in texts:
        if re.fullmatch(r"[^\W\d]\w*(\.\w+)+", text) and text.partition(".")[0] not in KNOWN_PACKAGES:
            return
    named = {name for names in classes.values() for name in names}  # one of another option has the parser's answer
    for option, text in texts:
        is_name = text.isidentifier() and isinstance(read_yaml("a value", text), str)  # null is none
        if option in classes and is_name and text not in named and not Path(text).exists():
            raise ConfigurationError(f"{option}: {no_class(text, classes[option])}")
