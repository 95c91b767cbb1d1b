"""What the commands share: a parser that reports a mistake in one line, and numbers, read and written."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from typing_extensions import override

from fl_lightning.errors import ConfigurationError

MOST_NAMES = 4  # largest number of names that are listed whole


class CommandParser(argparse.ArgumentParser):
    """Parses a command that trains nothing itself, without abbreviations, and reports a mistake in one line.

    Args:
        name: the name of the command.
        about: the sentence at the beginning of the help, which describes the command.
        more: the last sentence of the help; None for none.
    """

    def __init__(self, name: str, about: str, more: str | None = None) -> None:
        super().__init__(f"fl-lightning {name}", description=about, epilog=more, allow_abbrev=False)

    @override
    def error(self, message: str) -> NoReturn:
        """Raise an error; argparse would print its usage and exit."""
        message = message.replace("the following arguments are required:", "give")
        raise ConfigurationError(f"{message}: {self.prog} --help lists the options")


def counted(number: int, what: str) -> str:
    """Write a number and a noun, in the plural unless the number is 1.

    >>> counted(1, "run"), counted(1200, "round"), counted(0, "client")
    ('1 run', '1,200 rounds', '0 clients')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def some(names: Sequence[str]) -> str:
    """List up to four names, or else the first three and the number of the others.

    >>> some(["a", "b", "c", "d"]), some(["a", "b", "c", "d", "e"])
    ('a, b, c, d', 'a, b, c and 2 more')
    """
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: MOST_NAMES - 1])} and {len(names) - MOST_NAMES + 1} more"


def whole_number(name: str, text: str) -> int:
    """Read a whole number of at least 1; ``name`` is what gave the text, for the message."""
    if not re.fullmatch("0*[1-9][0-9]{0,8}", text):
        raise ConfigurationError(f"{name}: expected a whole number of at least 1, got {text}: give up to 9 digits")
    return int(text)
