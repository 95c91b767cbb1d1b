"""What the commands share: a parser that reports a mistake in one line, and numbers, read and written."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Sequence
from typing import NoReturn, TextIO

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
        if one := re.fullmatch("one of the arguments (.+) is required", message):
            message = f"give one of {', '.join(one[1].split())}"
        raise ConfigurationError(f"{message}: {self.prog} --help lists the options")


def shows_bars(stream: TextIO) -> bool:
    """Tell whether a stream leads to a terminal, and not to a notebook, which says the same, and redraws nothing."""
    return stream.isatty() and "JPY_PARENT_PID" not in os.environ  # which Jupyter sets for its kernels


def counted(number: int, what: str) -> str:
    """Write a number and a noun, in the plural unless the number is 1.

    >>> counted(1, "run"), counted(1200, "round"), counted(0, "client")
    ('1 run', '1,200 rounds', '0 clients')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Write a duration in words; nan is a dash.

    >>> [duration(seconds) for seconds in (0.42, 20, 130, 2700, 9000, 90000)]
    ['0.42 s', '20 s', '2.2 minutes', '45 minutes', '2.5 hours', '25 hours']
    """
    if math.isnan(seconds):
        return "–"
    value = seconds
    unit = "s"
    if seconds >= 7200:
        value = seconds / 3600
        unit = "hours"
    elif seconds >= 100:
        value = seconds / 60
        unit = "minutes"
    return f"{value:.2g} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


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
