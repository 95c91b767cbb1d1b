"""Buffers of all kinds."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from toy import Net


class Counts(Net):
    """Whole numbers and truth values: the data that have been seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("met", torch.zeros(3, dtype=torch.bool))

    def loss(self, batch: Any) -> Tensor:
        self.count += len(batch[0])
        self.met[batch[1]] = True
        return super().loss(batch) / (1 + self.met.sum())


class DataDependentStart(Net):
    """ActNorm: the first batch of all sets a parameter, and a truth value says that this is done."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.register_buffer("started", torch.tensor(False))

    def loss(self, batch: Any) -> Tensor:
        if not self.started:
            self.shift.data.copy_(-batch[0].mean(0))
            self.started.fill_(True)  # type: ignore[operator]
        return super().loss([batch[0] + self.shift, batch[1]])


class Codebook(Net):
    """VQ-VAE: a codebook in buffers, moved by running means, and a straight-through gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4))
        self.register_buffer("codes", torch.randn(5, 2))
        self.register_buffer("sizes", torch.ones(5))

    def loss(self, batch: Any) -> Tensor:
        z = self.net[0](batch[0])
        which = F.one_hot(torch.cdist(z, self.codes).argmin(1), 5).float()  # type: ignore[arg-type]
        self.sizes.mul_(0.9).add_(which.sum(0), alpha=0.1)  # type: ignore[operator]
        self.codes.lerp_(which.T @ z.detach() / self.sizes[:, None], 0.1)  # type: ignore[operator, index]
        coded = which @ self.codes.clone()  # type: ignore[operator]
        return F.mse_loss(self.net[1](z + (coded - z).detach()), batch[0]) + F.mse_loss(z, coded)


class NewTensors(Net):
    """Puts another tensor in a buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def loss(self, batch: Any) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * batch[0].mean(0)  # type: ignore[has-type]
        return super().loss([batch[0] - self.mean, batch[1]])


class SharedBuffer(NewTensors):
    """Puts another tensor in the place of a buffer that two submodules share."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror = nn.Module()
        self.mirror.register_buffer("mean", self.mean)


class NoneAtFirst(Net):
    """A buffer that is None until the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def loss(self, batch: Any) -> Tensor:
        mean = batch[0].mean(0)
        self.mean = mean if self.mean is None else 0.9 * self.mean + 0.1 * mean  # type: ignore[has-type]
        return super().loss([batch[0] - self.mean, batch[1]])


class Grows(Net):
    """A buffer that takes another shape on each batch: the last one's examples."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(0, 4))

    def loss(self, batch: Any) -> Tensor:
        shift = self.last.mean(0) if len(self.last) else 0  # type: ignore[has-type]
        self.last = batch[0].clone()
        return super().loss([batch[0] - 0.1 * shift, batch[1]])


class TakesShape(Net):
    """A buffer that is empty until the first batch, and then has the same shape on every client."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(0))

    def loss(self, batch: Any) -> Tensor:
        if not len(self.mean):
            self.mean.resize_(4).zero_()
        self.mean.lerp_(batch[0].mean(0), 0.1)
        return super().loss([batch[0] - self.mean, batch[1]])


class RegistersLate(Net):
    """A buffer that does not exist before the first batch."""

    def loss(self, batch: Any) -> Tensor:
        if not hasattr(self, "mean"):
            self.register_buffer("mean", torch.zeros(4))
        self.mean.lerp_(batch[0].mean(0), 0.1)  # type: ignore[operator]
        return super().loss([batch[0] - self.mean, batch[1]])


class Expanded(Net):
    """A buffer whose entries share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((1,), 0.5).expand(4))

    def loss(self, batch: Any) -> Tensor:
        return super().loss([batch[0] * self.scale, batch[1]])


class SparseBuffer(Net):
    """A sparse matrix in a buffer, as graph networks keep their adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.eye(4).roll(1, 0).to_sparse())

    def loss(self, batch: Any) -> Tensor:
        return super().loss([(self.edges @ batch[0].T).T, batch[1]])


class NotSaved(Net):
    """A buffer that is no part of checkpoints, and moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def loss(self, batch: Any) -> Tensor:
        self.mean.lerp_(batch[0].mean(0), 0.1)  # type: ignore[operator]
        return super().loss([batch[0] - self.mean, batch[1]])


class OtherNumbers(Net):
    """Buffers in half precision, double precision and complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("short", torch.zeros(4, dtype=torch.bfloat16))
        self.register_buffer("wide", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("turning", torch.ones(4, dtype=torch.complex64))

    def loss(self, batch: Any) -> Tensor:
        mean = batch[0].mean(0)
        self.short.lerp_(mean.bfloat16(), 0.1)  # type: ignore[operator]
        self.wide.add_(mean.double())  # type: ignore[operator]
        self.turning.mul_(torch.polar(torch.ones(4), mean))  # type: ignore[operator]
        return super().loss([batch[0] + self.short + self.turning.imag + 0.1 * self.wide.float(), batch[1]])  # type: ignore
