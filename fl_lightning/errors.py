"""The errors that users are meant to see, and the checks of arguments that raise them."""

from __future__ import annotations

import difflib
import errno
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from math import inf
from types import FrameType

SMALLEST = 2.0**-126  # of float32's numbers with full precision: divided by less, float32 overflows
# Numbers of OSErrors that speak of the machine, not of the file that is read or written.
EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.ENOMEM}


class ConfigurationError(Exception):
    """A mistake that the user can correct.

    The message is one line: what was expected, what was given, how to correct the mistake. The command line prints the
    message without a traceback and exits with status 2.
    """


class RankError(RuntimeError):
    """Another rank of a run on several devices has not come in time; the message is one line, which names the rank."""


class TrainingError(ConfigurationError, RuntimeError):
    """Training cannot go on: updates are not finite, or every client fails. The user's settings are to blame."""


def check_choice(name: str, value: object, *choices: object) -> None:
    """Refuse a ``value`` of the argument ``name`` that is not one of ``choices``."""
    if value not in choices:
        *others, last = (repr(choice) for choice in choices)
        raise ConfigurationError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def check_positive(**values: float) -> None:
    """Refuse a number that is not positive and finite, or that float32 cannot divide by; name it by its keyword."""
    for name, value in values.items():
        if not 0 < value < inf:  # also refuses nan
            raise ConfigurationError(f"{name} must be positive and finite, got {value}")
        if value < SMALLEST:
            raise ConfigurationError(
                f"{name} must be at least {SMALLEST:.2g}, the smallest number that float32 can divide by, got {value}"
            )


def check_not_negative(**values: float) -> None:
    """Refuse a number that is not at least 0 and finite; name it by its keyword."""
    for name, value in values.items():
        if not 0 <= value < inf:  # also refuses nan
            raise ConfigurationError(f"{name} must be at least 0 and finite, got {value}")


def check_at_least(least: int, **values: int) -> None:
    """Refuse a number below ``least``; name it by its keyword."""
    for name, value in values.items():
        if not value >= least:  # also refuses nan
            raise ConfigurationError(f"{name} must be at least {least}, got {value}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Find the known name that is most like a name which does not exist, in whatever case; None if none is like it.

    >>> nearest("fednova", ["FedAvg", "FedNova"])
    'FedNova'
    """
    names = {candidate.lower(): candidate for candidate in sorted(known)}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return names[near[0]] if near else None


# Errors that libraries raise


@contextmanager
def values_of(part: str) -> Iterator[None]:
    """Report a value that a library refuses in one line; an error in the user's code or in this package's stays.

    Args:
        part: the settings that hold the values, such as "trainer" or "model.server_optimizer".

    Raises:
        ConfigurationError: a library raised an error, see :func:`of_library`.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ConfigurationError) or not of_library(error):
            raise
        # jsonargparse puts words of its own around the error of a constructor.
        inner = next((cause for cause in causes(error) if "Union subtypes" not in str(cause)), error)
        kind = f"{type(inner).__name__}: " if isinstance(inner, LookupError) else ""  # whose message is a name alone
        raise ConfigurationError(f"{part}: {kind}{str(inner) or type(inner).__name__}") from error


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then each error that led to it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def of_library(error: BaseException) -> bool:
    """Tell whether a library raised an error, called by this package or by a library and not by the user's code."""
    raised = [frames[-1] for frames in map(_frames, causes(error)) if frames]
    return not any(map(_is_own, raised)) and not of_user(error)


def of_user(error: BaseException) -> bool:
    """Tell whether an error passed through code that belongs neither to this package nor to an installed one."""
    frames = chain.from_iterable(map(_frames, causes(error)))
    return not all(_is_own(frame) or _is_library(frame) for frame in frames)


def system_error(error: BaseException) -> int | None:
    """The operating system's number of an error; None for other errors."""
    if isinstance(error, OSError):
        return error.errno
    if any(words in str(error) for words in ("iostream error", "PytorchStreamWriter failed", "unexpected pos ")):
        return errno.ENOSPC  # torch, whose words do not say why it could not write
    found = re.search(r"\(os error (\d+)\)", str(error))  # of libraries in Rust, such as safetensors
    return int(found[1]) if found else None


def is_exhaustion(error: BaseException) -> bool:
    """Whether an error says that the machine lacks memory, room on disk or file handles."""
    if (number := system_error(error)) is not None:
        return number in EXHAUSTED
    lacks_memory = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator: " in str(error)  # torch's
    return isinstance(error, MemoryError) or lacks_memory


def _frames(error: BaseException) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "fl_lightning"


def _is_library(frame: FrameType) -> bool:
    places = (sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    return frame.f_code.co_filename.startswith((*places, "<"))
