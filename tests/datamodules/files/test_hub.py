"""The hub and its cache: a library reads what is there, at once, where the hub does not answer."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.datamodules.files.hub import hub_or_cache


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*address: Any, **options: Any) -> Any:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)


@pytest.mark.usefixtures("_no_network")
def test_the_switch_is_turned_back() -> None:
    library = SimpleNamespace(HF_HUB_OFFLINE=False)

    def read() -> None:
        with hub_or_cache(library, "https://hub.example") as reached:
            assert (reached, library.HF_HUB_OFFLINE) == (False, True)
            raise ValueError("of the library")

    start = time.monotonic()
    with pytest.raises(ValueError, match="of the library"):
        read()
    assert library.HF_HUB_OFFLINE is False
    assert time.monotonic() - start < 15


def test_a_switch_of_the_users_stays() -> None:
    """Nobody is asked."""
    library = SimpleNamespace(HF_HUB_OFFLINE=True)
    with hub_or_cache(library, "no address") as reached:
        assert (reached, library.HF_HUB_OFFLINE) == (False, True)
    assert library.HF_HUB_OFFLINE is True
