"""The algorithms: one file each."""

if __name__ != "fl_lightning.callbacks":
    raise ImportError(f"import fl_lightning.callbacks, not {__name__}: under two names every class would exist twice")

from fl_lightning.callbacks.dgc import DominantGradientCorrection
from fl_lightning.callbacks.fedavg import FedAvg
from fl_lightning.callbacks.fedlaw import FedLAW
from fl_lightning.callbacks.fednova import FedNova
from fl_lightning.callbacks.fedprox import FedProx
from fl_lightning.callbacks.focal import FocalLoss
from fl_lightning.callbacks.gh import GradientHarmonization
from fl_lightning.callbacks.monitor import ConflictMonitor

__all__ = [
    "ConflictMonitor",
    "DominantGradientCorrection",
    "FedAvg",
    "FedLAW",
    "FedNova",
    "FedProx",
    "FocalLoss",
    "GradientHarmonization",
]
