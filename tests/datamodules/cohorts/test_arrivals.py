"""ArrivalSampler: who arrives, with which model, and when."""

import pytest
import torch

from fl_lightning import ArrivalSampler, ConfigurationError
from fl_lightning.datamodules.cohorts.arrivals import Arrivals

SIZES = torch.tensor([3, 1, 0, 8, 5, 2, 4, 4])


def rounds(count: int, num_clients: int = 2, **arguments: int) -> list[Arrivals]:
    sampler = ArrivalSampler(**{"busy": 4, "seed": 1, **arguments})
    return [sampler.arrivals(SIZES, num_clients, round) for round in range(1, count + 1)]


@pytest.mark.parametrize("busy", [2, 3, 4, 7])
def test_a_client_trains_from_when_it_began_until_it_arrives(busy: int) -> None:
    began: dict[int, int] = {}
    for round, found in enumerate(rounds(200, busy=busy), 1):
        assert len(found.versions) == 2
        assert 2 not in found.versions, "it has no data"
        for client, version in (found.versions | found.busy).items():
            assert began.setdefault(client, version) == version <= round
        assert began.keys() == found.versions.keys() | found.busy.keys()
        for client in found.versions:
            del began[client]
        assert busy - 1 <= len(found.busy) + 1 <= busy, "the last one's place is taken after the server's step"
    assert [found.time for found in rounds(200)] == sorted(found.time for found in rounds(200))


def test_times_are_those_of_the_clients() -> None:
    """All equally fast, seven of seven: after 1, 2, 3, … units, in order of size."""
    first, second, *_ = rounds(4, busy=7, speed_spread=0)
    assert ([*first.versions], first.time) == ([1, 5], 2.0)
    assert ([*second.versions], second.time) == ([0, 1], 3.0), "client 1 began anew at 2"
    assert second.versions == {1: 2, 0: 1}


def test_rounds_may_be_drawn_in_any_order() -> None:
    one, other = (ArrivalSampler(busy=4, seed=1) for _ in range(2))
    late = one.arrivals(SIZES, 2, 50)
    assert late == [other.arrivals(SIZES, 2, round) for round in range(1, 51)][-1]
    assert one.arrivals(SIZES, 2, 50) == late != one.arrivals(SIZES, 3, 50)
    assert one.arrivals(SIZES, 2, 50) == late != ArrivalSampler(busy=4, seed=2).arrivals(SIZES, 2, 50)


@pytest.mark.parametrize("busy", [1, 8])
def test_busy_is_from_a_cohort_to_all_that_have_data(busy: int) -> None:
    with pytest.raises(
        ConfigurationError, match=f"expected from 2 clients, .* to 7 that have data to be busy, got busy {busy}"
    ):
        rounds(1, busy=busy)
    with pytest.raises(ConfigurationError, match="busy must be at least 1"):
        ArrivalSampler(0)
