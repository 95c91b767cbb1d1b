"""Moved to fl_lightning, and draw_cosines to fl_lightning.runs.pictures."""

from fl_lightning.deprecated import moved
from fl_lightning.runs.log import is_due, log_each, log_figure, save_arrays
from fl_lightning.runs.pictures import draw_cosines

__all__ = ["draw_cosines", "is_due", "log_each", "log_figure", "save_arrays"]

moved("fl_lightning.record", "fl_lightning (draw_cosines: from fl_lightning.runs.pictures)")
