"""Outcome: what a client that has trained sends, to be compared with another training of the client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isnan

import torch
from torch import Tensor

from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.updates.cohort import ClientResult


@dataclass(frozen=True)
class Outcome:
    """Holds the update and the values that one client sends.

    Attributes:
        update: (P,) the client's parameters less the global model's.
        result: the values that the client sends beside its update.
    """

    update: Tensor
    result: ClientResult

    @classmethod
    def of(cls, run: LocalRun) -> Outcome:
        """Return what a client that has trained sends."""
        result = run.result()
        vectors = dict(result.vectors)  # the run may send more
        return cls(run.params - run.anchor, replace(result, loss=run.loss, vectors=vectors))

    def distance(self, other: Outcome, logged: bool = False) -> float:
        """Compute the largest relative distance of two outcomes' updates, losses, buffers and sent vectors.

        Args:
            other: the other outcome.
            logged: whether logged metrics are compared, too.

        Returns:
            The largest of ‖a - b‖ / max(‖a‖, ‖b‖) over these; infinite for other shapes, numbers of steps or integers.
        """
        one, two = self._tensors(logged), other._tensors(logged)
        alike = one.keys() == two.keys() and all(one[name].shape == two[name].shape for name in one)
        if not alike or self.result.num_steps != other.result.num_steps:
            return inf
        return max(_relative(one[name], two[name]) for name in one)

    def _tensors(self, logged: bool) -> dict[str, Tensor]:
        found = {"update": self.update, "loss": self.update.new_tensor(self.result.loss), **self.result.vectors}
        for place, buffer in enumerate(self.result.buffers):
            if buffer is not None:
                found[f"buffer {place}"] = buffer.to_dense()
        if logged:
            for name, value in self.result.metrics.items():
                found[f"metric {name}"] = self.update.new_tensor(value)
        return found


def _relative(one: Tensor, other: Tensor) -> float:
    exact = not (one.is_floating_point() or one.is_complex())
    wide = torch.promote_types(one.dtype, torch.float64)  # holds integers, too
    one, other = one.to(wide), other.to(wide)
    if torch.isclose(one, other, rtol=0.0, atol=0.0, equal_nan=True).all():
        return 0.0
    distance = float((one - other).norm()) / max(float(one.norm()), float(other.norm()))
    return inf if exact or isnan(distance) else distance
