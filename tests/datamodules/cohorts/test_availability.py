"""Availability: who is there, who drops out, and who is late."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.toy import Capture, Linear, trainer
from lib.worlds import Given, given, trace

from fl_lightning import (
    Availability,
    AvailabilityTrace,
    ConfigurationError,
    Diurnal,
    FederatedOrchestrator,
)
from fl_lightning.engine.federation.cohorts import Turnout

NAN = float("nan")


def turnout(world: Availability, clients: int, needed: int, round: int = 1, seed: int = 0) -> Turnout:
    return world.turnout(range(clients), needed, lambda client: 10, round, seed)


# What becomes of the clients that are selected


@pytest.mark.parametrize(
    ("deadline", "needed", "arrived"),
    [
        (None, 5, (0, 1, 2, 3, 4)),
        (None, 2, (1, 4)),
        (4, 3, (1, 2, 4)),
        (3, 5, (1, 2, 4)),
        (2.5, 3, (1, 4)),
        (0.5, 3, ()),
    ],
)
def test_the_first_that_are_in_time_arrive(deadline: float | None, needed: int, arrived: tuple[int, ...]) -> None:
    """Clients 1, 4, 2, 0, 3 send at the times 1, 2, 3, 5, 9; the others are late."""
    seen = turnout(Given(5, 1, 3, 9, 2, deadline=deadline), clients=5, needed=needed)
    late = tuple(k for k in range(5) if k not in arrived)
    assert seen == Turnout(arrived=arrived, late=late)
    assert seen.counts == {"selected": 5, "arrived": len(arrived), "dropped": 0, "late": len(late)}


def test_a_tie_is_broken_by_lot_and_not_by_the_number() -> None:
    first = [turnout(Given(1, 1, 1, 1), clients=4, needed=1, round=round).arrived for round in range(1, 41)]
    assert {client for (client,) in first} == {0, 1, 2, 3}


def test_chances_to_drop_out() -> None:
    """Before with 0.3, after with 0.5 of those left: 0.3, 0.35, and 0.35 arrive. Four standard deviations of 4000."""
    world = Availability(dropout_before=0.3, dropout_after=0.5)
    seen = [turnout(world, clients=4, needed=4, round=round) for round in range(1, 1001)]
    shares = [sum(len(getattr(each, name)) for each in seen) / 4000 for name in ("absent", "lost", "arrived", "late")]
    assert shares == pytest.approx([0.3, 0.35, 0.35, 0], abs=4 * math.sqrt(0.35 * 0.65 / 4000))
    assert turnout(Availability(dropout_before=1.0), 3, 3) == Turnout((), absent=(0, 1, 2))
    assert turnout(Availability(dropout_after=1.0), 3, 3) == Turnout((), lost=(0, 1, 2))


def test_the_fate_of_a_client_does_not_depend_on_the_others() -> None:
    world = Availability(dropout_before=0.5)
    alone = [world.turnout([k], 1, lambda client: 1, round=3, seed=1).arrived for k in range(20)]
    assert turnout(world, 20, 20, round=3, seed=1).arrived == tuple(k for found in alone for k in found)
    assert turnout(world, 20, 20, round=4, seed=1) != turnout(world, 20, 20, round=3, seed=1)
    assert turnout(world, 20, 20, round=3, seed=2) != turnout(world, 20, 20, round=3, seed=1)


def test_speeds_are_log_normal_and_stay() -> None:
    """Of 2000: log t / 10 has the mean 0 within 4 · 0.5 / √2000, and the deviation 0.5 within 4 · 0.5 / √4000."""
    world = Availability(speed_spread=0.5)
    logs = torch.tensor([world.duration(k, 10, seed=0) / 10 for k in range(2000)], dtype=torch.float64).log()
    assert float(logs.mean()) == pytest.approx(0, abs=0.045)
    assert float(logs.std()) == pytest.approx(0.5, abs=0.032)
    assert world.duration(7, 30, seed=0) == pytest.approx(3 * world.duration(7, 10, seed=0))
    assert Availability().duration(7, 30, seed=0) == 30


# Who is there


def test_diurnal_clients_come_back_each_period() -> None:
    """Half of a period of four rounds: each client is there in two rounds that follow one another, and so on."""
    present = torch.stack([Diurnal(4, 0.5).present(1000, round, seed=0) for round in range(1, 9)])
    assert torch.equal(present[:4], present[4:])
    assert (present[:4].sum(0) == 2).all()
    assert (present & present.roll(-1, 0)).any(0).all()
    assert present.double().mean(1).tolist() == pytest.approx([0.5] * 8, abs=0.07)
    assert Diurnal(4, 1.0).present(1000, 3, seed=0).all()
    assert not torch.equal(Diurnal(4).present(1000, 1, seed=1), present[0])


def test_a_trace_is_read_and_begins_again(tmp_path: Path) -> None:
    world = trace(tmp_path, "round,client,state\n1,0,on\n1,2,on\n4,1,on\n")
    found = [world.present(3, round, seed=0).nonzero().flatten().tolist() for round in range(1, 10)]
    assert found == [[0, 2], [], [], [1], [0, 2], [], [], [1], [0, 2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"trace\.csv: expected the columns round and client, got '': write a row"),
        ("round,client\n", r"trace\.csv has no row: write a row"),
        ("round,client\n1,0\n1,x\n", r"trace\.csv, line 3: expected a round from 1 .* got '1,x': correct it"),
        ("round,client\n0,1\n", "line 2: .* got '0,1'"),
        ("round,client\n1\n", "line 2: .* got '1,'"),
    ],
)
def test_refuses_files_that_are_no_traces(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trace(tmp_path, text)


def test_refuses_a_trace_that_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*none\.csv: No such file or directory; give a CSV"):
        AvailabilityTrace(str(tmp_path / "none.csv"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"cannot read .*binary\.csv: the file is not text; give a CSV"):
        AvailabilityTrace(str(tmp_path / "binary.csv"))


def test_a_trace_of_other_clients_is_refused_before_the_first_round(tmp_path: Path) -> None:
    data, capture = given(3, availability=trace(tmp_path, "round,client\n1,0\n9,3\n")), Capture()
    with pytest.raises(ConfigurationError, match=r"names client 3, but there are only the clients 0 to 2: correct"):
        trainer(capture).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    assert capture.clients == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dropout_before": 1.1}, r"dropout_before must be a probability in \[0, 1\], got 1.1"),
        ({"dropout_after": NAN}, r"dropout_after must be a probability in \[0, 1\], got nan"),
        ({"speed_spread": -1.0}, "speed_spread must be at least 0 and finite, got -1.0"),
        ({"deadline": 0}, "deadline must be positive and finite, got 0"),
        ({"over_selection": 0.9}, "over_selection must be at least 1, got 0.9"),
        ({"period": 0}, "period must be positive and finite, got 0"),
        ({"period": 2, "share": 0}, r"share must be in \(0, 1\], the part of the period, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        (Diurnal if "period" in arguments else Availability)(**arguments)
