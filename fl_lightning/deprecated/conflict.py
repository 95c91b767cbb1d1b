"""Moved to fl_lightning, and critical_round to fl_lightning.callbacks.monitors.coherence."""

from fl_lightning.callbacks.monitors.coherence import critical_round
from fl_lightning.deprecated import moved
from fl_lightning.engine.gram import (
    angle,
    conflict_ratio,
    cosines,
    norms,
    pairs,
    partners,
    project_conflicts,
    share_removed,
)

__all__ = [
    "angle",
    "conflict_ratio",
    "cosines",
    "critical_round",
    "norms",
    "pairs",
    "partners",
    "project_conflicts",
    "share_removed",
]

moved("fl_lightning.conflict", "fl_lightning (critical_round: from fl_lightning.callbacks.monitors.coherence)")
