"""What the commands share: a parser that reports a mistake in one line, and numbers of things in words."""

from __future__ import annotations

import argparse
from typing import NoReturn

from typing_extensions import override

from fl_lightning.errors import ConfigurationError


class CommandParser(argparse.ArgumentParser):
    """Parses a command that trains nothing itself, and reports a mistake in one line."""

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
