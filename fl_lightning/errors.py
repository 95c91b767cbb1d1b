"""The one error that users are meant to see."""


class ConfigurationError(Exception):
    """A mistake that the user can mend.

    The message is one line: what was expected, what came, how to mend it. The command line prints it without a
    traceback and exits with status 2.
    """
