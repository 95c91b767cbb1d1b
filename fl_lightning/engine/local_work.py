"""LocalSettings: the work of a client, and of a straggler, in a round."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

import torch

from fl_lightning.errors import ConfigurationError, check_choice


@dataclass(frozen=True)
class LocalSettings:
    """The local work of every client in a round.

    Attributes:
        epochs: passes over the client's data, or None if ``steps`` is given. A fraction of a pass is rounded to the
            nearest whole number of batches, at least one batch per round.
        steps: number of batches per round, or None if ``epochs`` is given; the client repeats its data as needed.
        stragglers: share of the clients that do less work in a round: epochs or steps drawn from 1 to the number given.
        lr_decay: factor on the client's learning rates, per round.
        accumulate: number of batches whose gradients make one optimizer step.
        clip: largest gradient norm or value, or None for no clipping.
        clip_algorithm: quantity that is clipped, "norm" or "value".

    Raises:
        ConfigurationError: a value is out of range, or both epochs and steps are given.
    """

    epochs: int | float | None
    steps: int | None
    stragglers: float
    lr_decay: float
    accumulate: int
    clip: float | None
    clip_algorithm: Literal["norm", "value"]

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ConfigurationError(f"give local_epochs or local_steps, got both: {self.epochs} and {self.steps}")
        for name, value in (("local_steps", self.steps), ("accumulate_grad_batches", self.accumulate)):
            if value is not None and not value >= 1:
                raise ConfigurationError(f"{name} must be at least 1, got {value}")
            if value is not None and value != int(value):
                raise ConfigurationError(f"{name} must be a whole number, got {value}")
        if self.epochs is not None and not 0 < self.epochs < inf:
            raise ConfigurationError(f"local_epochs must be positive, got {self.epochs}")
        if not 0 <= self.stragglers <= 1:
            raise ConfigurationError(f"stragglers must be a share in [0, 1], got {self.stragglers}")
        if not 0 < self.lr_decay <= 1:
            raise ConfigurationError(f"local_lr_decay must be in (0, 1], got {self.lr_decay}")
        if self.clip is not None and not self.clip > 0:
            raise ConfigurationError(f"gradient_clip_val must be positive, or null for none, got {self.clip}")
        check_choice("gradient_clip_algorithm", self.clip_algorithm, "norm", "value")

    def work(self, generator: torch.Generator) -> tuple[float | None, int | None]:
        """Draw a client's epochs and steps in a round, one of them None; ``generator`` is keyed by client and round."""
        if self.stragglers and float(torch.rand((), generator=generator)) < self.stragglers:
            fewer = int(torch.randint(1, ceil(self.steps or self.epochs or 1) + 1, (), generator=generator))
            return (None, fewer) if self.epochs is None else (min(fewer, self.epochs), None)
        return self.epochs, self.steps
