"""FedBABU: a head that is not trained, and clients that train it for themselves, by hand."""

import pytest
from lib.two_numbers import served

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import FedBABU


def test_the_head_stays_and_clients_train_all() -> None:
    """The shared number grows by (1 + 3) / 2 a round. Fine-tuned from 2: 2 + 1 and 2 + 3; own: 0 + 1 and 0 - 2."""
    assert served(FedBABU(["own"]), rounds=2) == ([4.0, 0.0], [[3.0, 1.0], [5.0, -2.0]])


def test_momentum_and_weight_decay_do_not_move_the_head() -> None:
    model, _ = served(FedBABU(["own"]), rounds=2, steps=2, sgd={"momentum": 0.9, "weight_decay": 0.1})
    assert model[1] == 0.0


@pytest.mark.parametrize("work", [{}, {"local_steps": 1}])
def test_epochs_of_fine_tuning(work: dict[str, int]) -> None:
    """Three passes over one batch, whatever the round's work, from 2: 2 + 3 · 1 and 2 + 3 · 3; own 0 + 3 and 0 - 6."""
    assert served(FedBABU(["own"], epochs=3), rounds=2, **work) == ([4.0, 0.0], [[5.0, 3.0], [11.0, -6.0]])


def test_epochs() -> None:
    with pytest.raises(ConfigurationError, match="epochs must be at least 1, got 0"):
        FedBABU(["own"], epochs=0)
