"""Outcome: what one client's training ends with, for comparing two ways of training."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fl_lightning.engine.module.params import is_finite
from fl_lightning.engine.updates.cohort import ClientResult


@dataclass(frozen=True)
class Outcome:
    """Holds the result of one client's training.

    Attributes:
        update: (P,) the client's parameters less the global model's.
        result: the values that the client sends beside its update.
    """

    update: Tensor
    result: ClientResult

    @property
    def is_finite(self) -> bool:
        """Whether all entries of the update are finite."""
        return is_finite(self.update)

    def distance(self, other: Outcome) -> float:
        """Compute the largest relative distance of two outcomes' updates, losses, buffers and sent vectors.

        Returns:
            The largest of ‖a - b‖ / max(‖a‖, ‖b‖) over these; infinite for other shapes or numbers of steps.
        """
        one, two = self._tensors(), other._tensors()
        alike = one.keys() == two.keys() and all(one[name].shape == two[name].shape for name in one)
        if not alike or self.result.num_steps != other.result.num_steps:
            return float("inf")
        return max(_relative(one[name].double(), two[name].double()) for name in one)

    def _tensors(self) -> dict[str, Tensor]:
        buffers = {f"buffer {number}": each for number, each in enumerate(self.result.buffers) if each is not None}
        floats = {name: each.to_dense() for name, each in buffers.items() if each.is_floating_point()}
        loss = self.update.new_tensor(self.result.loss)
        return {"update": self.update, "loss": loss, **floats, **self.result.vectors}


def _relative(one: Tensor, other: Tensor) -> float:
    largest = max(float(one.norm()), float(other.norm()))
    return float((one - other).norm()) / largest if largest else 0.0
