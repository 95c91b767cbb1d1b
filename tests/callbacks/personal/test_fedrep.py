"""FedRep: first the head, then the rest, by hand."""

import pytest
from lib.two_numbers import served

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import FedRep


def test_the_head_first_then_the_rest() -> None:
    """Two epochs for the head: own moves by 2 and -4; one for the rest: shared by 1 and 3, whose mean is 2.

    In the second round again. With momentum ½ the head moves by 1 + 1.5 and -2 - 3, the rest by what it moved before:
    its velocity is zero until its gradient is not.
    """
    rule = FedRep(["own"], head_epochs=2)
    assert served(rule, rounds=2, local_epochs=3) == ([4.0, 0.0], [[4.0, 4.0], [4.0, -8.0]])
    assert served(rule, local_epochs=3, sgd={"momentum": 0.5}) == ([2.0, 0.0], [[2.0, 2.5], [2.0, -5.0]])


def test_weight_decay_does_not_move_what_is_frozen() -> None:
    """Round 2 begins with shared 2: it stays while own moves from 1 to 1 + (1 - ½) and from -2 to -2 - (2 - 1)."""
    _, models = served(FedRep(["own"]), rounds=2, local_epochs=2, sgd={"weight_decay": 0.5})
    assert models == [[3.0, 1.5], [3.0, -3.0]]  # shared: 2 + (1 - 1) and 2 + (3 - 1), whose mean is 3


@pytest.mark.parametrize("settings", [{"local_epochs": 2}, {"local_steps": 9}])
def test_epochs_must_be_left_for_the_rest(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=r"got model.local_epochs (2|None): set it to 3 or more"):
        served(FedRep(["own"], head_epochs=2), **settings)


def test_head_epochs() -> None:
    with pytest.raises(ConfigurationError, match="head_epochs must be at least 1, got 0"):
        FedRep(["own"], head_epochs=0)
