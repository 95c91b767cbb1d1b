"""Data sets, and partitions of the data over clients."""

if __name__ != "fl_lightning.datamodules":
    raise ImportError(f"import fl_lightning.datamodules, not {__name__}: under two names every class would exist twice")

from fl_lightning.datamodules.base.federated import FederatedDataModule as FederatedDataModule
from fl_lightning.datamodules.base.labelled import LabelledData as LabelledData
from fl_lightning.datamodules.base.partitioned import PartitionedData as PartitionedData
from fl_lightning.datamodules.changes.augmentation import Augmentation as Augmentation
from fl_lightning.datamodules.changes.augmentation import AutoAugment as AutoAugment
from fl_lightning.datamodules.changes.augmentation import RandomCrop as RandomCrop
from fl_lightning.datamodules.changes.augmentation import RandomFlip as RandomFlip
from fl_lightning.datamodules.changes.corruption import Backdoor as Backdoor
from fl_lightning.datamodules.changes.corruption import Corruption as Corruption
from fl_lightning.datamodules.changes.corruption import LabelFlip as LabelFlip
from fl_lightning.datamodules.changes.corruption import LabelSwap as LabelSwap
from fl_lightning.datamodules.changes.domain_shift import Blur as Blur
from fl_lightning.datamodules.changes.domain_shift import Colour as Colour
from fl_lightning.datamodules.changes.domain_shift import DomainShift as DomainShift
from fl_lightning.datamodules.changes.domain_shift import Rotation as Rotation
from fl_lightning.datamodules.changes.long_tail import long_tail as long_tail
from fl_lightning.datamodules.partition import IID as IID
from fl_lightning.datamodules.partition import ClassesPerClient as ClassesPerClient
from fl_lightning.datamodules.partition import Dirichlet as Dirichlet
from fl_lightning.datamodules.partition import DomainDirichlet as DomainDirichlet
from fl_lightning.datamodules.partition import ExtendedDirichlet as ExtendedDirichlet
from fl_lightning.datamodules.partition import HybridDirichlet as HybridDirichlet
from fl_lightning.datamodules.partition import Natural as Natural
from fl_lightning.datamodules.partition import Partition as Partition
from fl_lightning.datamodules.partition import QuantitySkew as QuantitySkew

# make lists writes what follows
# isort: off
from fl_lightning.datamodules.images.boxes import BoxData as BoxData
from fl_lightning.datamodules.images.boxes import BoxFolder as BoxFolder
from fl_lightning.datamodules.images.vision import CIFAR10 as CIFAR10
from fl_lightning.datamodules.images.vision import CIFAR100 as CIFAR100
from fl_lightning.datamodules.images.digits import Digits as Digits
from fl_lightning.datamodules.images.emnist import EMNIST as EMNIST
from fl_lightning.datamodules.images.vision import FashionMNIST as FashionMNIST
from fl_lightning.datamodules.images.image_data import ImageData as ImageData
from fl_lightning.datamodules.images.image_folder import ImageFolder as ImageFolder
from fl_lightning.datamodules.images.vision import MNIST as MNIST
from fl_lightning.datamodules.images.published import PublishedImages as PublishedImages
from fl_lightning.datamodules.images.emnist import QMNIST as QMNIST
from fl_lightning.datamodules.images.shapes import Shapes as Shapes
from fl_lightning.datamodules.images.tiny_imagenet import TinyImageNet as TinyImageNet
from fl_lightning.datamodules.images.vision import VisionData as VisionData
from fl_lightning.datamodules.sites.client_files import ClientFiles as ClientFiles
from fl_lightning.datamodules.sites.fl_bench import FLBench as FLBench
from fl_lightning.datamodules.sites.leaf import Leaf as Leaf
from fl_lightning.datamodules.sites.pfllib import PFLlib as PFLlib
from fl_lightning.datamodules.tables.column_data import ColumnData as ColumnData
from fl_lightning.datamodules.tables.flower_datasets import FlowerDatasets as FlowerDatasets
from fl_lightning.datamodules.tables.huggingface import HuggingFace as HuggingFace
from fl_lightning.datamodules.tables.markov import MarkovTexts as MarkovTexts
from fl_lightning.datamodules.tables.synthetic import Synthetic as Synthetic
from fl_lightning.datamodules.tables.table import Table as Table
from fl_lightning.datamodules.tables.tensors import Tensors as Tensors

__all__ = [name for name, value in vars().items() if callable(value)]
