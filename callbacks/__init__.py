"""The algorithms: one file each."""

if __name__ != "fl_lightning.callbacks":
    raise ImportError(f"import fl_lightning.callbacks, not {__name__}: under two names every class would exist twice")

from fl_lightning.callbacks.cagrad import CAGrad
from fl_lightning.callbacks.centred_clipping import CentredClipping
from fl_lightning.callbacks.coherence import CoherenceMonitor
from fl_lightning.callbacks.cohorts import SaveCohorts
from fl_lightning.callbacks.dgc import DominantGradientCorrection
from fl_lightning.callbacks.fedavg import FedAvg
from fl_lightning.callbacks.fedavgm import FedAvgM
from fl_lightning.callbacks.fedbe import FedBE
from fl_lightning.callbacks.feddecorr import FedDecorr
from fl_lightning.callbacks.feddf import FedDF
from fl_lightning.callbacks.feddyn import FedDyn
from fl_lightning.callbacks.fedfv import FedFV
from fl_lightning.callbacks.fedgam import FedGAM
from fl_lightning.callbacks.fedgamcv import FedGAMCV
from fl_lightning.callbacks.fedlaw import FedLAW
from fl_lightning.callbacks.fedmgda import FedMGDAPlus
from fl_lightning.callbacks.fednova import FedNova
from fl_lightning.callbacks.fedopt import FedAdagrad, FedAdam, FedYogi
from fl_lightning.callbacks.fedprox import FedProx
from fl_lightning.callbacks.fedsam import FedSAM
from fl_lightning.callbacks.fedsmoo import FedSMOO
from fl_lightning.callbacks.focal import FocalLoss
from fl_lightning.callbacks.geometric_median import GeometricMedian
from fl_lightning.callbacks.gh import GradientHarmonization
from fl_lightning.callbacks.hessian import HessianMonitor
from fl_lightning.callbacks.krum import Krum
from fl_lightning.callbacks.median import CoordinateMedian
from fl_lightning.callbacks.monitor import ConflictMonitor
from fl_lightning.callbacks.moon import MOON
from fl_lightning.callbacks.norm_clipping import NormClipping
from fl_lightning.callbacks.pcgrad import PCGrad
from fl_lightning.callbacks.personal import PersonalEvaluation
from fl_lightning.callbacks.scaffold import Scaffold
from fl_lightning.callbacks.server_ft import ServerFT
from fl_lightning.callbacks.shrinking import GlobalWeightShrinking
from fl_lightning.callbacks.sign_flip import SignFlip
from fl_lightning.callbacks.surface import LossSurface
from fl_lightning.callbacks.trimmed_mean import TrimmedMean
from fl_lightning.callbacks.updates import ClientMonitor

__all__ = [
    "MOON",
    "CAGrad",
    "CentredClipping",
    "ClientMonitor",
    "CoherenceMonitor",
    "ConflictMonitor",
    "CoordinateMedian",
    "DominantGradientCorrection",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBE",
    "FedDF",
    "FedDecorr",
    "FedDyn",
    "FedFV",
    "FedGAM",
    "FedGAMCV",
    "FedLAW",
    "FedMGDAPlus",
    "FedNova",
    "FedProx",
    "FedSAM",
    "FedSMOO",
    "FedYogi",
    "FocalLoss",
    "GeometricMedian",
    "GlobalWeightShrinking",
    "GradientHarmonization",
    "HessianMonitor",
    "Krum",
    "LossSurface",
    "NormClipping",
    "PCGrad",
    "PersonalEvaluation",
    "SaveCohorts",
    "Scaffold",
    "ServerFT",
    "SignFlip",
    "TrimmedMean",
]
