"""The algorithms, one file each: rules that change a round, attacks/ that harm it, and monitors/ that only measure."""

if __name__ != "fl_lightning.callbacks":
    raise ImportError(f"import fl_lightning.callbacks, not {__name__}: under two names every class would exist twice")

# make lists writes what follows
# isort: off
from fl_lightning.callbacks.server.cagrad import CAGrad as CAGrad
from fl_lightning.callbacks.server.centred_clipping import CentredClipping as CentredClipping
from fl_lightning.callbacks.server.median import CoordinateMedian as CoordinateMedian
from fl_lightning.callbacks.server.dgc import DominantGradientCorrection as DominantGradientCorrection
from fl_lightning.callbacks.server.fedacg import FedACG as FedACG
from fl_lightning.callbacks.server.fedopt import FedAdagrad as FedAdagrad
from fl_lightning.callbacks.server.fedopt import FedAdam as FedAdam
from fl_lightning.callbacks.server.fedavg import FedAvg as FedAvg
from fl_lightning.callbacks.server.fedavgm import FedAvgM as FedAvgM
from fl_lightning.callbacks.server.fedbe import FedBE as FedBE
from fl_lightning.callbacks.server.feddf import FedDF as FedDF
from fl_lightning.callbacks.server.feddisco import FedDisco as FedDisco
from fl_lightning.callbacks.server.fedexp import FedExP as FedExP
from fl_lightning.callbacks.server.fedfv import FedFV as FedFV
from fl_lightning.callbacks.server.fedlaw import FedLAW as FedLAW
from fl_lightning.callbacks.server.fedmgda import FedMGDAPlus as FedMGDAPlus
from fl_lightning.callbacks.server.fednova import FedNova as FedNova
from fl_lightning.callbacks.server.fedopt import FedYogi as FedYogi
from fl_lightning.callbacks.server.geometric_median import GeometricMedian as GeometricMedian
from fl_lightning.callbacks.server.shrinking import GlobalWeightShrinking as GlobalWeightShrinking
from fl_lightning.callbacks.server.gh import GradientHarmonization as GradientHarmonization
from fl_lightning.callbacks.server.krum import Krum as Krum
from fl_lightning.callbacks.server.norm_clipping import NormClipping as NormClipping
from fl_lightning.callbacks.server.pcgrad import PCGrad as PCGrad
from fl_lightning.callbacks.server.server_ft import ServerFT as ServerFT
from fl_lightning.callbacks.server.sham import ShamCorrection as ShamCorrection
from fl_lightning.callbacks.server.trimmed_mean import TrimmedMean as TrimmedMean
from fl_lightning.callbacks.client.fedcm import FedCM as FedCM
from fl_lightning.callbacks.client.feddecorr import FedDecorr as FedDecorr
from fl_lightning.callbacks.client.feddyn import FedDyn as FedDyn
from fl_lightning.callbacks.client.fedgam import FedGAM as FedGAM
from fl_lightning.callbacks.client.fedgamcv import FedGAMCV as FedGAMCV
from fl_lightning.callbacks.client.fedlc import FedLC as FedLC
from fl_lightning.callbacks.client.fedntd import FedNTD as FedNTD
from fl_lightning.callbacks.client.fedprox import FedProx as FedProx
from fl_lightning.callbacks.client.fedrs import FedRS as FedRS
from fl_lightning.callbacks.client.fedsam import FedSAM as FedSAM
from fl_lightning.callbacks.client.fedsmoo import FedSMOO as FedSMOO
from fl_lightning.callbacks.client.focal import FocalLoss as FocalLoss
from fl_lightning.callbacks.client.moon import MOON as MOON
from fl_lightning.callbacks.client.scaffold import Scaffold as Scaffold
from fl_lightning.callbacks.personal.apfl import APFL as APFL
from fl_lightning.callbacks.personal.ditto import Ditto as Ditto
from fl_lightning.callbacks.personal.fedbabu import FedBABU as FedBABU
from fl_lightning.callbacks.personal.fedbn import FedBN as FedBN
from fl_lightning.callbacks.personal.fedproto import FedProto as FedProto
from fl_lightning.callbacks.personal.fedrep import FedRep as FedRep
from fl_lightning.callbacks.personal.fedrod import FedROD as FedROD
from fl_lightning.callbacks.personal.fine_tuning import FineTuning as FineTuning
from fl_lightning.callbacks.personal.local_part import LocalPart as LocalPart
from fl_lightning.callbacks.personal.perfedavg import PerFedAvg as PerFedAvg
from fl_lightning.callbacks.personal.pfedme import PFedMe as PFedMe
from fl_lightning.callbacks.compression.qsgd import QSGD as QSGD
from fl_lightning.callbacks.compression.randomk import RandomK as RandomK
from fl_lightning.callbacks.compression.signsgd import SignSGD as SignSGD
from fl_lightning.callbacks.compression.topk import TopK as TopK
from fl_lightning.callbacks.privacy.client_dp import ClientDP as ClientDP
from fl_lightning.callbacks.privacy.example_dp import ExampleDP as ExampleDP
from fl_lightning.callbacks.privacy.local_dp import LocalDP as LocalDP
from fl_lightning.callbacks.attacks.alie import ALIE as ALIE
from fl_lightning.callbacks.attacks.faults import FaultInjection as FaultInjection
from fl_lightning.callbacks.attacks.gaussian import GaussianAttack as GaussianAttack
from fl_lightning.callbacks.attacks.ipm import IPM as IPM
from fl_lightning.callbacks.attacks.scaling import ScalingAttack as ScalingAttack
from fl_lightning.callbacks.attacks.sign_flip import SignFlip as SignFlip
from fl_lightning.callbacks.monitors.clients import ClientMonitor as ClientMonitor
from fl_lightning.callbacks.monitors.coherence import CoherenceMonitor as CoherenceMonitor
from fl_lightning.callbacks.monitors.conflict import ConflictMonitor as ConflictMonitor
from fl_lightning.callbacks.monitors.hessian import HessianMonitor as HessianMonitor
from fl_lightning.callbacks.monitors.imbalance import ImbalanceMonitor as ImbalanceMonitor
from fl_lightning.callbacks.monitors.surface import LossSurface as LossSurface
from fl_lightning.callbacks.monitors.personal import PersonalEvaluation as PersonalEvaluation
from fl_lightning.callbacks.monitors.cohorts import SaveCohorts as SaveCohorts
from fl_lightning.callbacks.monitors.training import TrainingEvaluation as TrainingEvaluation

__all__ = [name for name, value in vars().items() if callable(value)]
