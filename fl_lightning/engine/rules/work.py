"""LocalSettings and Work: the work of every client in a round, and of one client."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Literal

import torch

from fl_lightning.errors import ConfigurationError, check_at_least, check_choice, check_positive, check_within

Factors = Sequence[Sequence[float]] | None
"""Factors on the clients' learning rates, one for each parameter group of each optimizer; None for 1."""

MOST_WORK = 10**6  # epochs or steps of a client in a round


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
        check_at_least(1, local_steps=1 if self.steps is None else self.steps, accumulate_grad_batches=self.accumulate)
        if self.epochs is not None:
            check_positive(local_epochs=self.epochs)
        for name, work in (("local_epochs", self.epochs), ("local_steps", self.steps)):
            if work is not None and work > MOST_WORK:
                raise ConfigurationError(f"{name} must be at most {MOST_WORK}, or a round never ends, got {work}")
        check_within("[0, 1]", stragglers=self.stragglers)
        check_within("(0, 1]", local_lr_decay=self.lr_decay)
        if self.clip is not None:
            check_positive(gradient_clip_val=self.clip)
        check_choice("gradient_clip_algorithm", self.clip_algorithm, "norm", "value")

    def work(self, generator: torch.Generator | None = None, batches: Callable[[], Sized] | None = None) -> Work:
        """Decide a client's work in a round.

        Args:
            generator: decides whether the client is a straggler, keyed by client and round; None for no stragglers.
            batches: returns the batches of one pass over the client's data; None if the client is not known yet.
        """
        if generator and self.stragglers and float(torch.rand((), generator=generator)) < self.stragglers:
            fewer = int(torch.randint(1, ceil(self.steps or self.epochs or 1) + 1, (), generator=generator))
            if self.epochs is None:
                return Work(self, None, fewer, batches)
            return Work(self, min(fewer, self.epochs), None, batches)
        return Work(self, self.epochs, self.steps, batches)


@dataclass(frozen=True)
class Work:
    """One client's work in a round.

    Attributes:
        settings: the local work of every client.
        epochs: passes over the client's data, or None if ``steps`` is given.
        steps: number of batches, or None if ``epochs`` is given.
        batches: returns the batches of one pass over the client's data; None if the client is not known yet.
    """

    settings: LocalSettings
    epochs: int | float | None
    steps: int | None
    batches: Callable[[], Sized] | None

    def loader(self) -> Sized:
        """Return the batches of one pass over the client's data, such as a list or a DataLoader.

        Raises:
            ConfigurationError: the client is not known yet.
        """
        if self.batches is None:
            raise ConfigurationError(
                "clients differ in their numbers of batches, so setup and on_fit_start cannot know them: ask for "
                "self.trainer.num_training_batches or estimated_stepping_batches in configure_optimizers or a training "
                "hook"
            )
        return self.batches()

    @cached_property
    def num_batches(self) -> int:
        """Number of batches in one pass over the client's data."""
        return len(self.loader())

    @cached_property
    def whole_epochs(self) -> int:
        """Number of whole passes over the client's data."""
        return int(self.epochs) if self.steps is None else self.steps // self.num_batches  # type: ignore[arg-type]  # one is given

    @cached_property
    def last_batches(self) -> int:
        """Number of batches after the whole passes; less than one pass is at least one batch."""
        if self.steps is not None:
            return self.steps % self.num_batches
        fraction = self.epochs - self.whole_epochs  # type: ignore[operator]  # epochs or steps is given
        if not fraction:
            return 0
        least = 0 if self.whole_epochs else 1
        return max(round(fraction * self.num_batches), least)

    @cached_property
    def total_batches(self) -> int:
        """Number of batches in all passes."""
        return self.whole_epochs * self.num_batches + self.last_batches

    @property
    def max_epochs(self) -> int:
        """Number of passes, a fraction of a pass counted as one."""
        if self.steps is None:
            return ceil(self.epochs)  # type: ignore[arg-type]  # epochs or steps is given
        return self.whole_epochs + (self.last_batches > 0)

    @property
    def max_steps(self) -> int:
        """Number of optimizer steps if ``steps`` is given, else -1, which stands for no limit."""
        return -1 if self.steps is None else self.optimizer_steps

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer steps, if every batch has a loss."""
        accumulate = self.settings.accumulate
        steps_of_epoch = ceil(self.num_batches / accumulate)
        return self.whole_epochs * steps_of_epoch + ceil(self.last_batches / accumulate)
