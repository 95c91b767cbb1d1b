"""Networks, and the LightningModules that train them on a client."""

if __name__ != "fl_lightning.models":
    raise ImportError(f"import fl_lightning.models, not {__name__}: under two names every class would exist twice")

from fl_lightning.models.classifier import ImageClassifier
from fl_lightning.models.cnn import CifarAlexNet, FedLAWLeNet, LeNet, PooledCNN, SimpleCNN, TwoLayerCNN
from fl_lightning.models.detector import Detector
from fl_lightning.models.group_norm import WithGroupNorm
from fl_lightning.models.mlp import LogisticRegression, MultilayerPerceptron, TwoNN
from fl_lightning.models.projection import WithProjection
from fl_lightning.models.resnet import CifarResNet
from fl_lightning.models.timm_network import TimmNetwork
from fl_lightning.models.yolo import YOLOv8

__all__ = [
    "CifarAlexNet",
    "CifarResNet",
    "Detector",
    "FedLAWLeNet",
    "ImageClassifier",
    "LeNet",
    "LogisticRegression",
    "MultilayerPerceptron",
    "PooledCNN",
    "SimpleCNN",
    "TimmNetwork",
    "TwoLayerCNN",
    "TwoNN",
    "WithGroupNorm",
    "WithProjection",
    "YOLOv8",
]
