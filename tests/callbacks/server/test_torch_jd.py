"""TorchJD: its weights are those of the library, and our PCGrad's where the order of projections is nothing."""

import pytest
from hand_made import apply
from toy import close

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import PCGrad, TorchJD

UPDATES = [[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]


def test_upgrad() -> None:
    """The example in TorchJD's documentation."""
    moved, capture = apply(UPDATES, TorchJD())
    assert close(capture.cohort.weights, [1.1109, 0.7894], 1e-4)
    assert close(moved, [0.2929, 1.9004, 1.9004], 1e-4)


def test_a_sum_divided_by_the_number_of_clients() -> None:
    """Two clients project each other in one order alone; ours averages."""
    ours = apply(UPDATES, PCGrad())[0]
    assert close(apply(UPDATES, TorchJD("PCGrad", divide=True))[0], ours, 1e-6)
    assert close(apply(UPDATES, TorchJD("PCGrad"))[0], 2 * ours, 1e-6)


def test_draws_are_those_of_the_seed() -> None:
    three = [*UPDATES, [0.0, -3.0, 1.0]]
    first, again, other = (apply(three, TorchJD("Random"), seed=seed)[0] for seed in (0, 0, 1))
    assert close(first, again, 0.0)
    assert not close(first, other)


def test_weighting() -> None:
    with pytest.raises(ConfigurationError, match="TorchJD has no weighting 'UPgrad': did you mean UPGrad"):
        TorchJD("UPgrad")
