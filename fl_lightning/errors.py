"""The errors that users are meant to see, and the checks of arguments that raise them."""

from __future__ import annotations

import difflib
import errno
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from math import inf
from operator import index
from types import FrameType

LARGEST = 2.0**128  # no float32 number is as large
SMALLEST = 2.0**-126  # smallest float32 number with full precision; division by a smaller one may overflow
# errno values of OSErrors whose cause is the machine (full disk, …), not the file that is read or written.
EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.ENOMEM}


class ConfigurationError(Exception):
    """A mistake that the user can correct.

    The message is one line: what was expected, what was given, how to correct the mistake. The command line prints the
    message without a traceback and exits with status 2.
    """


class ClientFailure(RuntimeError):  # noqa: N818  # the failure of a client
    """Raise this error in a client hook to make the client fail, as an error in the client's own training does.

    Any other error in a hook stops the run.
    """


class RankError(RuntimeError):
    """Another rank (process) of a run on several devices did not respond in time; the one-line message names it."""


class TrainingError(ConfigurationError, RuntimeError):
    """Raise this error in a server hook when training cannot go on, as when every update or loss is infinite or nan.

    The message is one line, as that of a :class:`ConfigurationError`: the user's settings are to blame.
    """


def check_choice(name: str, value: object, *choices: object) -> None:
    """Refuse a value that is not one of the choices.

    >>> from fl_lightning import check_choice
    >>> check_choice("option", "III", "I", "II")
    Traceback (most recent call last):
        ...
    fl_lightning.errors.ConfigurationError: option must be 'I' or 'II', got 'III'

    Args:
        name: the argument that has the value.
        value: the value.
        choices: the values that the argument may have, at least two.

    Raises:
        ConfigurationError: the value is none of them.
    """
    if value not in choices:
        *others, last = (repr(choice) for choice in choices)
        raise ConfigurationError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")


def check_positive(**values: float) -> None:
    """Refuse a number that is not positive and finite in float32, or that float32 cannot divide by.

    >>> from fl_lightning import check_positive
    >>> check_positive(mu=0.1, tau=-1.0)
    Traceback (most recent call last):
        ...
    fl_lightning.errors.ConfigurationError: tau must be positive and finite, got -1.0

    Args:
        values: the numbers, by the names of the arguments that have them.

    Raises:
        ConfigurationError: a number is nan, less than 2⁻¹²⁶ or not less than 2¹²⁸.
    """
    for name, value in values.items():
        if not 0 < value < LARGEST:  # also refuses nan
            raise ConfigurationError(f"{name} must be positive and finite{_in_float32(value)}, got {value}")
        if value < SMALLEST:
            raise ConfigurationError(
                f"{name} must be at least {SMALLEST:.2g}, the smallest number that float32 can divide by, got {value}"
            )


def check_not_negative(**values: float) -> None:
    """Refuse a number that is not at least 0 and finite in float32.

    >>> from fl_lightning import check_not_negative
    >>> check_not_negative(mu=-0.1)
    Traceback (most recent call last):
        ...
    fl_lightning.errors.ConfigurationError: mu must be at least 0 and finite, got -0.1

    Args:
        values: the numbers, by the names of the arguments that have them.

    Raises:
        ConfigurationError: a number is negative, nan or not less than 2¹²⁸.
    """
    for name, value in values.items():
        if not 0 <= value < LARGEST:  # also refuses nan
            raise ConfigurationError(f"{name} must be at least 0 and finite{_in_float32(value)}, got {value}")


def _in_float32(value: float) -> str:
    return " in float32" if LARGEST <= value < inf else ""


def check_at_least(least: int, **values: int) -> None:
    """Refuse a number that is not whole, or too small.

    >>> from fl_lightning import check_at_least
    >>> check_at_least(1, epochs=0)
    Traceback (most recent call last):
        ...
    fl_lightning.errors.ConfigurationError: epochs must be at least 1, got 0

    Args:
        least: the smallest number that is allowed.
        values: the numbers, by the names of the arguments that have them.

    Raises:
        ConfigurationError: a number is below ``least``, or no whole number, such as 1.0.
    """
    for name, value in values.items():
        try:
            number = index(value)
        except TypeError:
            raise ConfigurationError(f"{name} must be a whole number, got {value!r}") from None
        if number < least:
            raise ConfigurationError(f"{name} must be at least {least}, got {value}")


def check_within(interval: str, **values: float) -> None:
    """Refuse a number outside of an interval.

    >>> from fl_lightning import check_within
    >>> check_within("[0, 1)", momentum=1.0)
    Traceback (most recent call last):
        ...
    fl_lightning.errors.ConfigurationError: momentum must be in [0, 1), got 1.0

    Args:
        interval: the interval, such as "[0, 1)", which holds 0 but not 1; "inf" is infinity.
        values: the numbers, by the names of the arguments that have them.

    Raises:
        ConfigurationError: a number is outside of the interval, or nan.
    """
    low, high = map(float, interval[1:-1].split(","))
    for name, value in values.items():
        closed = (value == low and interval[0] == "[") or (value == high and interval[-1] == "]")
        if not (low < value < high or closed):  # also refuses nan
            raise ConfigurationError(f"{name} must be in {interval}, got {value}")


def check_names(**values: object) -> None:
    """Refuse what is no list of names of submodules or parameters: one name alone, or an empty list.

    >>> from fl_lightning import check_names
    >>> check_names(local="network.fc3")
    Traceback (most recent call last):
        ...
    fl_lightning.errors.ConfigurationError: local must be a list of names such as [network.fc3], got 'network.fc3'

    Args:
        values: the lists, by the names of the arguments that have them.

    Raises:
        ConfigurationError: a value is a text, empty or None.
    """
    for name, value in values.items():
        if isinstance(value, str) or not value:
            raise ConfigurationError(f"{name} must be a list of names such as [network.fc3], got {value!r}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Find the known name that is most similar to an unknown one, ignoring case; None if no name is similar.

    >>> nearest("fednova", ["FedAvg", "FedNova"])
    'FedNova'
    """
    return next(iter(most_similar(name, known, 1)), None)


def most_similar(name: str, known: Iterable[str], count: int, cutoff: float = 0.6) -> list[str]:
    """Find the known names that are most similar to an unknown one, the most similar first, ignoring case.

    Args:
        name: the unknown name.
        known: the known names.
        count: number of names to return, if as many are similar.
        cutoff: similarity in [0, 1], as difflib measures it, below which a name is not similar.
    """
    names = {candidate.lower(): candidate for candidate in sorted(known)}
    return [names[near] for near in difflib.get_close_matches(name.lower(), names, n=count, cutoff=cutoff)]


def refusal(check: Callable[[], object]) -> str | None:
    """Return the message with which a check refuses something; None if it does not."""
    try:
        check()
    except ConfigurationError as error:
        return str(error)
    return None


# Errors that libraries raise


@contextmanager
def values_of(part: str) -> Iterator[None]:
    """Turn a library's error about a value into a one-line error; errors of the user's code and this package stay.

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
        # jsonargparse wraps a constructor's error in an error with a message of its own.
        inner = next((cause for cause in causes(error) if "Union subtypes" not in str(cause)), error)
        kind = f"{type(inner).__name__}: " if isinstance(inner, LookupError) else ""  # its message is only a name
        raise ConfigurationError(f"{part}: {kind}{str(inner) or type(inner).__name__}") from error


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then each error that led to it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def of_library(error: BaseException) -> bool:
    """Tell whether a library raised an error, and no code of the user is in the error's traceback."""
    raised = [found[-1] for found in map(frames, causes(error)) if found]
    return not any(map(_is_own, raised)) and not of_user(error)


def of_user(error: BaseException) -> bool:
    """Tell whether an error's traceback holds code of the user, neither this package's nor an installed package's."""
    found = chain.from_iterable(map(frames, causes(error)))
    return not all(_is_own(frame) or is_library(frame) for frame in found)


def system_error(error: BaseException) -> int | None:
    """Return an error's errno, the operating system's number; None if the error is not from the operating system."""
    if isinstance(error, OSError):
        return error.errno
    if any(words in str(error) for words in ("iostream error", "PytorchStreamWriter failed", "unexpected pos ")):
        return errno.ENOSPC  # torch's message does not say why writing failed: assume a full disk
    found = re.search(r"\(os error (\d+)\)", str(error))  # in messages of Rust libraries, such as safetensors
    return int(found[1]) if found else None


def is_exhaustion(error: BaseException) -> bool:
    """Tell whether an error says that the machine lacks memory, disk space or file handles."""
    if (number := system_error(error)) is not None:
        return number in EXHAUSTED
    lacks_memory = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator: " in str(error)  # torch's
    return isinstance(error, MemoryError) or lacks_memory


def frames(error: BaseException) -> list[FrameType]:
    """Return the frames of an error's traceback, that of the code that raised the error last."""
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "fl_lightning"


def is_library(frame: FrameType) -> bool:
    """Tell whether a frame is that of an installed package or of the standard library."""
    places = (sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    return frame.f_code.co_filename.startswith((*places, "<"))
