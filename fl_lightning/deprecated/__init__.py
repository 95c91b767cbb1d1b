"""Modules of version 0.1 that the guide taught, importable under their old names until 0.3."""

from warnings import warn


def moved(old: str, new: str) -> None:
    """Warn whoever imports an old module.

    Args:
        old: the module's old name.
        new: where its names are now.
    """
    warn(f"{old} has moved: import from {new}; the old name goes in 0.3", DeprecationWarning, stacklevel=3)
