"""Moved to fl_lightning."""

from fl_lightning.deprecated import moved
from fl_lightning.runs.environment import RunTracking

__all__ = ["RunTracking"]

moved("fl_lightning.tracking", "fl_lightning")
