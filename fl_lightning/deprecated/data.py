"""Moved to fl_lightning."""

from fl_lightning.deprecated import moved
from fl_lightning.engine.data import FederatedDataModule, TrainingBatch

__all__ = ["FederatedDataModule", "TrainingBatch"]

moved("fl_lightning.data", "fl_lightning")
