"""LocalPart: its argument; what stays with a client is tested with the engine."""

from typing import Any

import pytest
from lib.two_numbers import served

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import FedBABU, FedRep, FedROD, LocalPart


def test_each_client_has_its_own_part() -> None:
    """In two rounds the shared number grows by 2 each, the own ones by 1 and by -2 each."""
    assert served(LocalPart(["own"]), rounds=2) == ([4.0, 0.0], [[4.0, 2.0], [4.0, -4.0]])


def test_all_may_stay() -> None:
    """Each client trains alone."""
    assert served(LocalPart(["own", "shared"]), rounds=2) == ([0.0, 0.0], [[2.0, 2.0], [6.0, -4.0]])


@pytest.mark.parametrize("rule", [LocalPart, FedRep, FedBABU, FedROD])
@pytest.mark.parametrize("parts", [[], "own"])
def test_parts_are_a_list_of_names(rule: Any, parts: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"parts must be a list of names such as \[network.fc3\], got"):
        rule(parts)
