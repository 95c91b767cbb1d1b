"""The network of a run's config: a user's own module."""

from torch import nn


class Pixels(nn.Sequential):
    """Logistic regression on the pixels."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
