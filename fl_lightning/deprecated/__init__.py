"""Modules from the guide of version 0.1, which can be imported under their old names until 0.3."""

from warnings import warn


def moved(old: str, new: str) -> None:
    """Warn that a module is imported under its old name.

    Args:
        old: the module's old name.
        new: the modules to import from instead, as text for the warning.
    """
    warn(f"{old} has moved: import from {new}; the old name goes in 0.3", DeprecationWarning, stacklevel=3)
