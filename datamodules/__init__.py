"""Data sets, and partitions of the data over clients."""

if __name__ != "fl_lightning.datamodules":
    raise ImportError(f"import fl_lightning.datamodules, not {__name__}: under two names every class would exist twice")

from fl_lightning.datamodules.base.federated import FederatedDataModule, PartitionedData
from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.datamodules.changes.augmentation import Augmentation, AutoAugment, RandomCrop, RandomFlip
from fl_lightning.datamodules.changes.corruption import Corruption, LabelSwap
from fl_lightning.datamodules.changes.long_tail import long_tail
from fl_lightning.datamodules.images.boxes import BoxData, BoxFolder
from fl_lightning.datamodules.images.digits import Digits
from fl_lightning.datamodules.images.emnist import EMNIST, QMNIST
from fl_lightning.datamodules.images.image_data import ImageData
from fl_lightning.datamodules.images.image_folder import ImageFolder
from fl_lightning.datamodules.images.published import PublishedImages
from fl_lightning.datamodules.images.shapes import Shapes
from fl_lightning.datamodules.images.tiny_imagenet import TinyImageNet
from fl_lightning.datamodules.images.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST, VisionData
from fl_lightning.datamodules.partition import (
    IID,
    ClassesPerClient,
    Dirichlet,
    HybridDirichlet,
    Natural,
    Partition,
    QuantitySkew,
)
from fl_lightning.datamodules.tables.flower_datasets import FlowerDatasets
from fl_lightning.datamodules.tables.huggingface import HuggingFace
from fl_lightning.datamodules.tables.table import Table
from fl_lightning.datamodules.tables.tensors import Tensors

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
