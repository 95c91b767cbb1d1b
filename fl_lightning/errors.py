"""ConfigurationError, the error of a user's mistake, and RankError, that of a rank that does not come."""


class ConfigurationError(Exception):
    """A mistake that the user can correct.

    The message is one line: what was expected, what was given, how to correct the mistake. The command line prints the
    message without a traceback and exits with status 2.
    """


class RankError(RuntimeError):
    """Another rank of a run on several devices has not come in time; the message is one line, which names the rank."""


def check_choice(name: str, value: object, *choices: str) -> None:
    """Refuse a ``value`` of the argument ``name`` that is not one of ``choices``."""
    if value not in choices:
        *others, last = (repr(choice) for choice in choices)
        raise ConfigurationError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")
