"""Partitions of labels, counted by client and class."""

import numpy as np
import torch
from torch import Tensor

from fl_lightning.datamodules import Partition


def split(partition: Partition, labels: Tensor, num_clients: int, seed: int = 0) -> list[Tensor]:
    """Each client's examples."""
    return list(partition.split(labels, num_clients, np.random.default_rng(seed)))


def class_counts(partition: Partition, labels: Tensor, num_clients: int, seed: int = 0) -> Tensor:
    """(N, C) examples of each class that each client holds."""
    num_classes = int(labels.max()) + 1
    owners = torch.from_numpy(partition.owners(labels.numpy(), num_clients, np.random.default_rng(seed)))
    return torch.bincount(owners * num_classes + labels, minlength=num_clients * num_classes).view(num_clients, -1)


def many(partition: Partition, labels: Tensor, num_clients: int, seeds: int) -> Tensor:
    """(S, N, C) examples of each class that each client holds, for the seeds 0 … S - 1."""
    return torch.stack([class_counts(partition, labels, num_clients, seed) for seed in range(seeds)])
