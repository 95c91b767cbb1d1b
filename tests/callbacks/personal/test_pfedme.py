"""pFedMe by hand."""

import pytest
from lib.two_numbers import served

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import PFedMe


@pytest.mark.parametrize(("steps", "theta"), [(1, 0.25), (2, 0.375)])
def test_envelope(steps: int, theta: float) -> None:
    """λ = 2, rate ¼, gradient -1 at w = 0: θ = ¼, then ¼ - ¼ (-1 + 2 · ¼) = 3/8; w moves by 2 θ.

    All is linear in the gradient: (1, 1) for client 0, (3, -2) for client 1.
    """
    model, models = served(PFedMe(2.0, 0.25, steps))
    assert models == [[theta, theta], [3 * theta, -2 * theta]]
    assert model == [4 * theta, -theta]


@pytest.mark.parametrize("arguments", [(0.0, 0.1, 1), (1.0, 0.0, 1), (1.0, 0.1, 0)])
def test_arguments(arguments: tuple[float, float, int]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        PFedMe(*arguments)
