"""Partitions, which deal the training examples to the clients."""

from fl_lightning.datamodules.partition.base import Partition
from fl_lightning.datamodules.partition.classes import ClassesPerClient
from fl_lightning.datamodules.partition.dirichlet import Dirichlet
from fl_lightning.datamodules.partition.domains import DomainDirichlet
from fl_lightning.datamodules.partition.extended import ExtendedDirichlet
from fl_lightning.datamodules.partition.hybrid import HybridDirichlet
from fl_lightning.datamodules.partition.iid import IID
from fl_lightning.datamodules.partition.natural import Natural
from fl_lightning.datamodules.partition.quantity import QuantitySkew
from fl_lightning.datamodules.partition.stated import Stated

__all__ = [
    "IID",
    "ClassesPerClient",
    "Dirichlet",
    "DomainDirichlet",
    "ExtendedDirichlet",
    "HybridDirichlet",
    "Natural",
    "Partition",
    "QuantitySkew",
    "Stated",
]
