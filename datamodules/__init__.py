"""Data sets, and how they are partitioned over clients."""

if __name__ != "fl_lightning.datamodules":
    raise ImportError(f"import fl_lightning.datamodules, not {__name__}: under two names every class would exist twice")

from fl_lightning.datamodules.digits import Digits
from fl_lightning.datamodules.images import ImageData
from fl_lightning.datamodules.partition import IID, ClassesPerClient, Dirichlet, Partition
from fl_lightning.datamodules.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST, VisionData

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MNIST",
    "ClassesPerClient",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "ImageData",
    "Partition",
    "VisionData",
]
