"""Which clients take part in a round: by size, in turn, or as a file says."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lib.toy import Capture, GivenData, Linear, Quadratic, ToyData, trainer

from fl_lightning import (
    ClientSampler,
    ConfigurationError,
    FederatedOrchestrator,
    FixedSchedule,
    PoissonSampler,
    PowerOfChoice,
    RoundRobinSampler,
    SizeSampler,
    UniformSampler,
)
from fl_lightning.seeding import generator


def draw(sampler: ClientSampler, sizes: list[int], num_clients: int, round: int = 1) -> list[int]:
    drawn = sampler.draw(torch.tensor(sizes), num_clients, round, generator(0, "cohort", round))
    return sorted(drawn.tolist())


def schedule(folder: Path, text: str) -> FixedSchedule:
    path = folder / "cohorts.txt"
    path.write_text(text)
    return FixedSchedule(str(path))


@pytest.mark.parametrize(
    ("sampler", "by_hand"), [(UniformSampler(), (2 / 3, 2 / 3, 2 / 3)), (SizeSampler(), (7 / 12, 7 / 12, 5 / 6))]
)
def test_chance_to_be_drawn(sampler: ClientSampler, by_hand: tuple[float, ...]) -> None:
    """Draw two of three clients with n = (1, 1, 2), beside a client without data, in each of 3000 rounds."""
    first, second = 2 / 4, (1 / 4 + 1 / 4) * 2 / 3  # by size, the client with n = 2 is drawn first, or after another
    large = first + second if isinstance(sampler, SizeSampler) else 2 / 3
    small = (2 - large) / 2  # all chances add up to the two clients drawn
    assert (small, small, large) == pytest.approx(by_hand)
    deviation = 0.009
    assert math.sqrt(small * (1 - small) / 3000) == pytest.approx(deviation, abs=0.0005)  # of a client's share
    rounds = [draw(sampler, [1, 0, 1, 2], 2, round) for round in range(1, 3001)]
    assert all(len(set(cohort)) == 2 for cohort in rounds)
    shares = [sum(client in cohort for cohort in rounds) / 3000 for client in range(4)]
    assert shares[1] == 0
    assert [shares[0], *shares[2:]] == pytest.approx([small, small, large], abs=4 * deviation)


def test_poisson_draws_each_client_alone() -> None:
    """Two of four clients on average, beside one without data: each in half of the rounds, each pair in a quarter."""
    rounds = [draw(PoissonSampler(), [1, 0, 10**9, 1, 7], 2, round) for round in range(1, 3001)]
    deviation = math.sqrt(0.25 / 3000)
    shares = [sum(client in cohort for cohort in rounds) / 3000 for client in range(5)]
    assert shares[1] == 0
    assert [shares[0], *shares[2:]] == pytest.approx([0.5] * 4, abs=4 * deviation)
    assert sum({2, 4} <= {*cohort} for cohort in rounds) / 3000 == pytest.approx(0.25, abs=4 * deviation)
    assert {len(cohort) for cohort in rounds} == {0, 1, 2, 3, 4}


def test_poisson_cohorts_of_any_size_train() -> None:
    """In groups and one by one, in batches of one client and of several."""
    rows, found = torch.ones(5, 2, dtype=torch.float64), []
    for settings, data in (({}, {}), ({"clients_at_once": 3}, {}), ({}, {"clients_per_batch": 2})):
        capture, orchestrator = Capture(), FederatedOrchestrator(Linear(2), **settings)
        given = GivenData(rows, participation=2, sampler=PoissonSampler(), seed=3, **data)
        trainer(capture, rounds=20).fit(orchestrator, datamodule=given)
        found.append([cohort.clients for cohort in capture.cohorts])
    assert len({len(cohort) for cohort in found[0]}) >= 3
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("sampler", [UniformSampler(), SizeSampler(), RoundRobinSampler(), PoissonSampler()])
def test_all_clients_that_have_data_where_all_take_part(sampler: ClientSampler) -> None:
    """However different their sizes are."""
    sizes = [10**9, 0, 1, 1, 0, 7]
    assert all(draw(sampler, sizes, 4, round) == [0, 2, 3, 5] for round in range(1, 50))


@pytest.mark.parametrize("sampler", [UniformSampler(), SizeSampler()])
def test_the_generator_decides(sampler: ClientSampler) -> None:
    sizes = list(range(1, 21))
    rounds = [draw(sampler, sizes, 5, round) for round in range(1, 11)]
    assert rounds == [draw(sampler, sizes, 5, round) for round in range(1, 11)]
    assert len({tuple(cohort) for cohort in rounds}) > 5


def test_round_robin_goes_on_where_it_ended() -> None:
    """0, 2, 3, 4, 5 have data; K = 3: 0 2 3 | 4 5 0 | 2 3 4 | 5 0 2 | 3 4 5 | 0 2 3, whichever is asked for first."""
    expected = [[0, 2, 3], [0, 4, 5], [2, 3, 4], [0, 2, 5], [3, 4, 5], [0, 2, 3]]
    sampler = RoundRobinSampler()
    assert [draw(sampler, [5, 0, 1, 9, 2, 2], 3, round) for round in (6, 5, 4, 3, 2, 1)] == expected[::-1]


def test_schedule_reads_a_line_a_round(tmp_path: Path) -> None:
    sampler = schedule(tmp_path, "2 0\n1\n\t0  1 2 \n\n")
    assert [draw(sampler, [1, 1, 1], 3, round) for round in (3, 1, 2)] == [[0, 1, 2], [0, 2], [1]]


def cohorts_trained(data: GivenData, rounds: int) -> list[tuple[int, ...]]:
    capture = Capture()
    trainer(capture, rounds=rounds).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    trained = [client for cohort in capture.cohorts for client in cohort.clients]
    assert sorted(capture.clients) == sorted(trained)
    return [cohort.clients for cohort in capture.cohorts]


@pytest.mark.parametrize("clients_per_batch", [1, 2, 3])
def test_cohorts_of_different_length(clients_per_batch: int, tmp_path: Path) -> None:
    """At most K = 3 of four clients; the update is that of the clients there are."""
    sampler, rows = schedule(tmp_path, "3 1\n2\n0 1 2\n0 3\n"), torch.arange(8, dtype=torch.float64).reshape(4, 2)
    data = GivenData(rows, participation=3, sampler=sampler, clients_per_batch=clients_per_batch)
    assert cohorts_trained(data, rounds=4) == [(1, 3), (2,), (0, 1, 2), (0, 3)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("0 1\n0 x\n", r"line 2: .*round 2, whole numbers .* got '0 x': correct it"),
        ("0 1\n0,1\n", r"line 2: .*got '0,1'"),
        ("-1\n", r"line 1: .*got '-1'"),
        ("0\n\n1\n", r"line 2: .*got ''"),
        ("", r"line 1: .*got ''"),
    ],
)
def test_refuses_lines_that_are_no_clients(text: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"cohorts\.txt, {line}"):
        schedule(tmp_path, text)


def write_bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("make", "reason"),
    [(lambda path: None, "No such file"), (Path.mkdir, "Is a directory"), (write_bytes, "the file is not text")],
)
def test_refuses_a_file_that_it_cannot_read(make: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    make(tmp_path / "none.txt")
    with pytest.raises(ConfigurationError, match=rf"cannot read .*none\.txt: {reason}.*; give a text file"):
        FixedSchedule(str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\n", r"cohorts\.txt ends at line 1, there is none for round 2: .*max_epochs to 1"),
        ("0\n1 5\n", r"FixedSchedule to draw clients from 0 to 2 that have data, got \[5\] in round 2"),
        ("0\n0 1 2\n", r"FixedSchedule to draw 1 to 2 distinct clients.* got \[0, 1, 2\] for round 2"),
        ("0\n1 1\n", r"got \[1, 1\] for round 2"),
    ],
)
def test_refuses_rounds_that_cannot_be(text: str, message: str, tmp_path: Path) -> None:
    rows = torch.ones(3, 2, dtype=torch.float64)
    data = GivenData(rows, participation=2, sampler=schedule(tmp_path, text))
    with pytest.raises(ConfigurationError, match=message):
        cohorts_trained(data, rounds=2)


def test_a_schedule_is_tried_out_before_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "cohorts.txt").write_text("0\n7\n")
    data, capture = ToyData(sampler=FixedSchedule(str(tmp_path / "cohorts.txt"))), Capture()
    with pytest.raises(ConfigurationError, match=r"got \[7\] in round 2"):
        trainer(capture, rounds=2).fit(FederatedOrchestrator(Quadratic()), datamodule=data)
    assert capture.clients == []


def test_power_of_choice_takes_the_largest_losses_of_its_candidates() -> None:
    """All four with data are candidates: the losses 5 and 4; a client without data is none, whatever its loss.

    With two candidates for two clients, losses do not matter: the draw is that of SizeSampler.
    """
    losses = torch.tensor([1.0, 9.0, 5.0, 4.0, 2.0])
    for candidates, expected in ((9, [2, 3]), (2, None)):
        sampler = PowerOfChoice(candidates)
        sampler.losses = dict.fromkeys(range(1, 30), losses)
        for round in range(1, 30):
            by_size = draw(SizeSampler(), [1, 0, 2, 3, 1], 2, round)
            assert draw(sampler, [1, 0, 2, 3, 1], 2, round) == (expected or by_size)


@pytest.mark.parametrize(("candidates", "message"), [(0, "candidates must be at least 1"), (1, "got 1 for 2: raise")])
def test_power_of_choice_refuses(candidates: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        draw(PowerOfChoice(candidates), [1, 1, 1], 2)
