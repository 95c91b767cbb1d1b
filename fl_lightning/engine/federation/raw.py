"""RawInputs: what clients train on before it is scaled, for statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RawInputs:
    """Holds the inputs on which one client trains, before they are scaled.

    Attributes:
        names: names of the F columns; empty for images, whose columns are their channels.
        parts: the inputs, part by part: float64 (n, F), or uint8 images (n, C, H, W), whose values stand for [0, 1].
    """

    names: tuple[str, ...]
    parts: Iterable[Tensor]
