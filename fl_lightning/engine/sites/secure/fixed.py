"""FixedPoint: numbers as multiples of a step, modulo 2^64, to which masks can be added and taken away exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.errors import TrainingError

LARGEST = 2.0**20  # largest size of a number that clients sum: an entry of an update, a change of a buffer, a metric
BITS = 62  # of the largest sum: an int64 holds twice as much
BLOCK = 1 << 20  # numbers that are encoded at a time


@dataclass(frozen=True)
class FixedPoint:
    """Encodes numbers so that a sum of them cannot overflow modulo 2^64.

    Each of K sites sends weight × value, with a weight of W at most and a value of 2^20 at most. The step is the
    smallest power of two that is at least K W 2^20 / 2^62. Sites and server know K and W before they train, and so the
    step. An encoded number is off by step / 2 at most, and the sum of K by K step / 2: with K = 10 and W = 1,000 the
    step is 2^-28, and a mean over 10 × 1,000 examples off by 2e-12 at most.

    Attributes:
        step: the step, a power of two.
        limit: largest size of weight × value.

    Example:
        >>> import torch
        >>> from fl_lightning.engine.sites.secure.fixed import FixedPoint
        >>> form = FixedPoint.of(sites=4, weight=16)  # 4 · 16 · 2^20 / 2^62
        >>> form.step == 2.0**-36
        True
        >>> words = [form.encode(torch.tensor([value])) for value in (1.5, -0.25)]
        >>> form.decode(words[0] + words[1])
        tensor([1.2500], dtype=torch.float64)
    """

    step: float
    limit: float

    @classmethod
    def of(cls, sites: int, weight: float) -> FixedPoint:
        """Make the form for the sums of a number of sites, none of which has a larger weight than the one given."""
        limit = weight * LARGEST
        mantissa, exponent = math.frexp(sites * limit)
        power = exponent - 1 if mantissa == 0.5 else exponent
        return cls(2.0 ** (power - BITS), limit)

    def encode(self, values: Tensor, weight: float = 1.0) -> Tensor:
        """Return weight × values (n,) as int64 multiples of the step.

        Raises:
            TrainingError: a number is too large, or not finite.
        """
        words = torch.empty(values.numel(), dtype=torch.int64)
        for part, block in zip(torch.split(words, BLOCK), torch.split(values.reshape(-1), BLOCK), strict=True):
            wide = block.to("cpu", torch.float64) * weight
            if not (wide.abs() <= self.limit).all():  # nan is not, either
                largest = float(wide.abs().max()) / weight
                raise TrainingError(
                    f"expected numbers of at most {LARGEST:,.0f} in what sites sum, got {largest:g}: scale down inputs "
                    "or targets, lower the learning rate, or leave secure aggregation out"
                )
            part.copy_((wide / self.step).round_())
        return words

    def decode(self, words: Tensor) -> Tensor:
        """Return the numbers (n,) of a sum, float64."""
        return words.double() * self.step
