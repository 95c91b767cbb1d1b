"""Outcome: what a client that has trained sends, to be compared with another training of the client."""

from __future__ import annotations

import hashlib
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
        # Copies, since the run may send more, and entries of a local part are hidden in place before they leave.
        vectors = {name: vector.clone() for name, vector in result.vectors.items()}
        return cls(run.params - run.anchor, replace(result, loss=run.loss, vectors=vectors))

    def distance(self, other: Outcome, logged: bool = False) -> float:
        """Compute the largest relative distance of two outcomes' updates, losses, buffers and sent vectors.

        Args:
            other: the other outcome.
            logged: whether logged metrics are compared, too.

        Returns:
            The largest of ‖a - b‖ / max(‖a‖, ‖b‖) over these; infinite for other shapes, numbers of steps or integers.
        """
        mine = self._tensors(logged)
        others = other._tensors(logged)
        if mine.keys() != others.keys() or self.result.num_steps != other.result.num_steps:
            return inf
        if any(mine[name].shape != others[name].shape for name in mine):
            return inf
        return max(_relative_distance(mine[name], others[name]) for name in mine)

    def digest(self) -> str:
        """Hash what :meth:`distance` compares, so that devices can compare outcomes without exchanging them."""
        content = hashlib.blake2b(str(self.result.num_steps).encode())
        for name, tensor in self._tensors(logged=False).items():
            content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return content.hexdigest()

    def _tensors(self, logged: bool) -> dict[str, Tensor]:
        """Return what is compared, by name."""
        tensors = {"update": self.update, "loss": self.update.new_tensor(self.result.loss), **self.result.vectors}
        for place, buffer in enumerate(self.result.buffers):
            if buffer is not None:
                tensors[f"buffer {place}"] = buffer.to_dense()
        if logged:
            for name, value in self.result.metrics.items():
                tensors[f"metric {name}"] = self.update.new_tensor(value)
        return tensors


def _relative_distance(first: Tensor, second: Tensor) -> float:
    """Compute ‖a - b‖ / max(‖a‖, ‖b‖), 0 where nan meets nan; infinite for integers that differ."""
    if first is second:  # a buffer that neither client has changed
        return 0.0
    wide = torch.promote_types(first.dtype, torch.float64)  # holds integers, too
    a = first.to(wide)
    b = second.to(wide)
    if torch.isclose(a, b, rtol=0.0, atol=0.0, equal_nan=True).all():
        return 0.0
    rounds = first.is_floating_point() or first.is_complex()
    distance = float((a - b).norm()) / max(float(a.norm()), float(b.norm()))
    return distance if rounds and not isnan(distance) else inf
