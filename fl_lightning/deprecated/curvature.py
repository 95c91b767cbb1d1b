"""Moved to fl_lightning.runs.pictures and fl_lightning.callbacks.monitors.curvature."""

from fl_lightning.callbacks.monitors.curvature import training_loss
from fl_lightning.deprecated import moved
from fl_lightning.runs.pictures import draw_surfaces

__all__ = ["draw_surfaces", "training_loss"]

moved("fl_lightning.curvature", "fl_lightning.runs.pictures and fl_lightning.callbacks.monitors.curvature")
