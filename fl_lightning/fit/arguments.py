"""The arguments of commands, read before torch and Lightning are imported, which takes seconds."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from typing_extensions import override

from fl_lightning.errors import ConfigurationError


def whole_number(name: str, text: str) -> int:
    """Read a whole number of at least 1; ``name`` is what gave the text, for the message."""
    if not re.fullmatch("0*[1-9][0-9]{0,8}", text):
        raise ConfigurationError(f"{name}: expected a whole number of at least 1, got {text}: give up to 9 digits")
    return int(text)


class CommandParser(argparse.ArgumentParser):
    """Parses a command that trains nothing itself, and reports a mistake in one line."""

    @override
    def error(self, message: str) -> NoReturn:
        """Raise an error; argparse would print its usage and exit."""
        message = message.replace("the following arguments are required:", "give")
        raise ConfigurationError(f"{message}: {self.prog} --help lists the options")
