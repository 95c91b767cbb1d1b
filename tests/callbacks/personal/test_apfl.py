"""APFL by hand."""

import pytest
from lib.two_numbers import served

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import APFL


def test_a_mixture() -> None:
    """The own model v takes the step α · 1 = ½ from 0, own of client 1: -2 · ½ = -1. With w = (2, -½): ½ v + ½ w."""
    assert served(APFL(0.5)) == ([2.0, -0.5], [[1.25, 0.0], [1.75, -0.75]])


def test_alone_a_client_trains_alone() -> None:
    assert served(APFL(1.0), rounds=2)[1] == [[2.0, 2.0], [6.0, -4.0]]


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_alpha(alpha: float) -> None:
    with pytest.raises(ConfigurationError, match=r"alpha must be in \(0, 1\], got"):
        APFL(alpha)
