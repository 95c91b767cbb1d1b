"""Buffers of all kinds."""

from typing import Any

import torch
from lib.toy import Net
from torch import Tensor, nn


class Counts(Net):
    """Whole numbers and truth values: the data that have been seen."""

    def build(self) -> None:
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("met", torch.zeros(3, dtype=torch.bool))

    def loss(self, batch: Any) -> Tensor:
        self.count += len(batch[0])
        self.met[batch[1]] = True
        return super().loss(batch) / (1 + self.met.sum())


class Centred(Net):
    """Takes a running mean from its inputs; the next classes keep it in unusual buffers."""

    def build(self) -> None:
        self.register_buffer("mean", torch.zeros(4))

    def moved(self, mean: Tensor) -> Tensor:
        """Move the buffer towards the mean of a batch."""
        return self.mean.lerp_(mean, 0.1)

    def loss(self, batch: Any) -> Tensor:
        return super().loss([batch[0] - self.moved(batch[0].mean(0)), batch[1]])


class NotSaved(Centred):
    """A buffer that is no part of checkpoints, and moves."""

    def build(self) -> None:
        self.register_buffer("mean", torch.zeros(4), persistent=False)


class NewTensors(Centred):
    """Puts another tensor in a buffer's place."""

    def moved(self, mean: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * mean
        return self.mean


class SharedBuffer(NewTensors):
    """Puts another tensor in the place of a buffer that two submodules share."""

    def build(self) -> None:
        super().build()
        self.mirror = nn.Module()
        self.mirror.register_buffer("mean", self.mean)


class NoneAtFirst(Centred):
    """A buffer that is None until the first batch."""

    def build(self) -> None:
        self.register_buffer("mean", None)

    def moved(self, mean: Tensor) -> Tensor:
        self.mean = mean if self.mean is None else 0.9 * self.mean + 0.1 * mean
        return self.mean


class TakesShape(Centred):
    """A buffer that is empty until the first batch, and then has the same shape on every client."""

    def build(self) -> None:
        self.register_buffer("mean", torch.zeros(0))

    def moved(self, mean: Tensor) -> Tensor:
        if not len(self.mean):
            self.mean.resize_(4).zero_()
        return super().moved(mean)


class RegistersLate(Centred):
    """A buffer that does not exist before the first batch."""

    def build(self) -> None:
        pass

    def moved(self, mean: Tensor) -> Tensor:
        if not hasattr(self, "mean"):
            super().build()
        return super().moved(mean)


class Grows(Net):
    """A buffer that takes another shape on each batch: the last one's examples."""

    def build(self) -> None:
        self.register_buffer("last", torch.zeros(0, 4))

    def loss(self, batch: Any) -> Tensor:
        shift = self.last.mean(0) if len(self.last) else 0
        self.last = batch[0].clone()
        return super().loss([batch[0] - 0.1 * shift, batch[1]])


class Expanded(Net):
    """A buffer whose entries share memory."""

    def build(self) -> None:
        self.register_buffer("scale", torch.full((1,), 0.5).expand(4))

    def loss(self, batch: Any) -> Tensor:
        return super().loss([batch[0] * self.scale, batch[1]])


class SparseBuffer(Net):
    """A sparse matrix in a buffer, as graph networks keep their adjacency."""

    def build(self) -> None:
        self.register_buffer("edges", torch.eye(4).roll(1, 0).to_sparse())

    def loss(self, batch: Any) -> Tensor:
        return super().loss([(self.edges @ batch[0].T).T, batch[1]])


class OtherNumbers(Net):
    """Buffers in half precision, double precision and complex numbers."""

    def build(self) -> None:
        self.register_buffer("short", torch.zeros(4, dtype=torch.bfloat16))
        self.register_buffer("wide", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("turning", torch.ones(4, dtype=torch.complex64))

    def loss(self, batch: Any) -> Tensor:
        mean = batch[0].mean(0)
        self.short.lerp_(mean.bfloat16(), 0.1)
        self.wide.add_(mean.double())
        self.turning.mul_(torch.polar(torch.ones(4), mean))
        return super().loss([batch[0] + self.short + self.turning.imag + 0.1 * self.wide.float(), batch[1]])
