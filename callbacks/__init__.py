"""The algorithms, one file each: server/ and client/ change a round, attacks/ harm one, monitors/ only measure."""

if __name__ != "fl_lightning.callbacks":
    raise ImportError(f"import fl_lightning.callbacks, not {__name__}: under two names every class would exist twice")

# make lists writes what follows
from fl_lightning.callbacks.attacks.alie import ALIE
from fl_lightning.callbacks.attacks.faults import FaultInjection
from fl_lightning.callbacks.attacks.gaussian import GaussianAttack
from fl_lightning.callbacks.attacks.ipm import IPM
from fl_lightning.callbacks.attacks.scaling import ScalingAttack
from fl_lightning.callbacks.attacks.sign_flip import SignFlip
from fl_lightning.callbacks.client.feddecorr import FedDecorr
from fl_lightning.callbacks.client.feddyn import FedDyn
from fl_lightning.callbacks.client.fedgam import FedGAM
from fl_lightning.callbacks.client.fedgamcv import FedGAMCV
from fl_lightning.callbacks.client.fedprox import FedProx
from fl_lightning.callbacks.client.fedsam import FedSAM
from fl_lightning.callbacks.client.fedsmoo import FedSMOO
from fl_lightning.callbacks.client.focal import FocalLoss
from fl_lightning.callbacks.client.moon import MOON
from fl_lightning.callbacks.client.scaffold import Scaffold
from fl_lightning.callbacks.monitors.clients import ClientMonitor
from fl_lightning.callbacks.monitors.coherence import CoherenceMonitor
from fl_lightning.callbacks.monitors.cohorts import SaveCohorts
from fl_lightning.callbacks.monitors.conflict import ConflictMonitor
from fl_lightning.callbacks.monitors.hessian import HessianMonitor
from fl_lightning.callbacks.monitors.personal import PersonalEvaluation
from fl_lightning.callbacks.monitors.surface import LossSurface
from fl_lightning.callbacks.monitors.training import TrainingEvaluation
from fl_lightning.callbacks.server.cagrad import CAGrad
from fl_lightning.callbacks.server.centred_clipping import CentredClipping
from fl_lightning.callbacks.server.dgc import DominantGradientCorrection
from fl_lightning.callbacks.server.fedavg import FedAvg
from fl_lightning.callbacks.server.fedavgm import FedAvgM
from fl_lightning.callbacks.server.fedbe import FedBE
from fl_lightning.callbacks.server.feddf import FedDF
from fl_lightning.callbacks.server.fedfv import FedFV
from fl_lightning.callbacks.server.fedlaw import FedLAW
from fl_lightning.callbacks.server.fedmgda import FedMGDAPlus
from fl_lightning.callbacks.server.fednova import FedNova
from fl_lightning.callbacks.server.fedopt import FedAdagrad, FedAdam, FedYogi
from fl_lightning.callbacks.server.geometric_median import GeometricMedian
from fl_lightning.callbacks.server.gh import GradientHarmonization
from fl_lightning.callbacks.server.krum import Krum
from fl_lightning.callbacks.server.median import CoordinateMedian
from fl_lightning.callbacks.server.norm_clipping import NormClipping
from fl_lightning.callbacks.server.pcgrad import PCGrad
from fl_lightning.callbacks.server.server_ft import ServerFT
from fl_lightning.callbacks.server.sham import ShamCorrection
from fl_lightning.callbacks.server.shrinking import GlobalWeightShrinking
from fl_lightning.callbacks.server.trimmed_mean import TrimmedMean

__all__ = [  # noqa: RUF022
    # Rules that act on the server
    "CAGrad",
    "CentredClipping",
    "CoordinateMedian",
    "DominantGradientCorrection",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBE",
    "FedDF",
    "FedFV",
    "FedLAW",
    "FedMGDAPlus",
    "FedNova",
    "FedYogi",
    "GeometricMedian",
    "GlobalWeightShrinking",
    "GradientHarmonization",
    "Krum",
    "NormClipping",
    "PCGrad",
    "ServerFT",
    "ShamCorrection",
    "TrimmedMean",
    # Rules that act on clients
    "FedDecorr",
    "FedDyn",
    "FedGAM",
    "FedGAMCV",
    "FedProx",
    "FedSAM",
    "FedSMOO",
    "FocalLoss",
    "MOON",
    "Scaffold",
    # Attacks and faults
    "ALIE",
    "FaultInjection",
    "GaussianAttack",
    "IPM",
    "ScalingAttack",
    "SignFlip",
    # Monitors
    "ClientMonitor",
    "CoherenceMonitor",
    "ConflictMonitor",
    "HessianMonitor",
    "LossSurface",
    "PersonalEvaluation",
    "SaveCohorts",
    "TrainingEvaluation",
]
