"""Data sets, and partitions of the data over clients."""

if __name__ != "fl_lightning.datamodules":
    raise ImportError(f"import fl_lightning.datamodules, not {__name__}: under two names every class would exist twice")

from fl_lightning.datamodules.augmentation import Augmentation, AutoAugment, RandomCrop, RandomFlip
from fl_lightning.datamodules.boxes import BoxData, BoxFolder
from fl_lightning.datamodules.corruption import Corruption, LabelSwap
from fl_lightning.datamodules.digits import Digits
from fl_lightning.datamodules.emnist import EMNIST, QMNIST
from fl_lightning.datamodules.federated import FederatedDataModule, PartitionedData
from fl_lightning.datamodules.flower_datasets import FlowerDatasets
from fl_lightning.datamodules.huggingface import HuggingFace
from fl_lightning.datamodules.image_folder import ImageFolder
from fl_lightning.datamodules.images import ImageData
from fl_lightning.datamodules.labelled import LabelledData
from fl_lightning.datamodules.long_tail import long_tail
from fl_lightning.datamodules.partition import (
    IID,
    ClassesPerClient,
    Dirichlet,
    HybridDirichlet,
    Natural,
    Partition,
    QuantitySkew,
)
from fl_lightning.datamodules.published import PublishedImages
from fl_lightning.datamodules.shapes import Shapes
from fl_lightning.datamodules.table import Table
from fl_lightning.datamodules.tensors import Tensors
from fl_lightning.datamodules.tiny_imagenet import TinyImageNet
from fl_lightning.datamodules.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST, VisionData

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "EMNIST",
    "IID",
    "MNIST",
    "QMNIST",
    "Augmentation",
    "AutoAugment",
    "BoxData",
    "BoxFolder",
    "ClassesPerClient",
    "Corruption",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "FederatedDataModule",
    "FlowerDatasets",
    "HuggingFace",
    "HybridDirichlet",
    "ImageData",
    "ImageFolder",
    "LabelSwap",
    "LabelledData",
    "Natural",
    "Partition",
    "PartitionedData",
    "PublishedImages",
    "QuantitySkew",
    "RandomCrop",
    "RandomFlip",
    "Shapes",
    "Table",
    "Tensors",
    "TinyImageNet",
    "VisionData",
    "long_tail",
]
