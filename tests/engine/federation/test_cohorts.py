"""Who takes part in a round, as the engine sees it, and what the round does without those who do not."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.command import rows
from lib.toy import Capture, GivenData, Linear, close, trainer
from lib.worlds import Given, given, trace
from torch import Tensor

from fl_lightning import (
    Availability,
    ClientSampler,
    ConfigurationError,
    FederatedOrchestrator,
    RoundRobinSampler,
    SizeSampler,
    TrafficMonitor,
    UniformSampler,
)
from fl_lightning.engine.federation.cohorts import Turnout
from fl_lightning.runs.folder.run_folder import RunFolder


def test_a_sampler_must_draw() -> None:
    with pytest.raises(ConfigurationError, match="ClientSampler must define draw"):
        ClientSampler().draw(Tensor([1]), 1, 1, torch.Generator())


def fitted(data: GivenData, rounds: int = 1, **settings: Any) -> tuple[FederatedOrchestrator, Capture]:
    orchestrator, capture = FederatedOrchestrator(Linear(2), **settings), Capture()
    trainer(capture, rounds=rounds).fit(orchestrator, datamodule=data)
    return orchestrator, capture


def test_more_are_selected_and_the_first_arrive() -> None:
    """Of six clients, participation 2 with a ratio of 2.4 selects round(4.8) = 5; the two fastest of them count."""
    data = given(6, participation=2, availability=Given(6, 5, 4, 3, 2, 1, over_selection=2.4))
    _, capture = fitted(data, rounds=8)
    for round, cohort in enumerate(capture.cohorts, start=1):
        seen = data.turnout(round)
        assert seen.counts == {"selected": 5, "arrived": 2, "dropped": 0, "late": 3}
        assert cohort.clients == seen.arrived == tuple(sorted({*seen.arrived, *seen.late}, reverse=True)[:2][::-1])
    assert len({data.turnout(round) for round in range(1, 9)}) > 1
    assert data.turnout(3).counts["selected"] == 5
    everyone = given(6, participation=5, availability=Availability(over_selection=2.0))
    assert everyone.turnout(1).counts == {"selected": 6, "arrived": 5, "dropped": 0, "late": 1}


def test_time_is_counted_in_local_steps() -> None:
    """Clients of 1, 2 and 4 batches: two epochs take 2, 4 and 8, three steps 3 each, one and a half epochs 1 (half a
    batch is rounded down), 3 and 6. A straggler takes the time of the steps that it does.
    """

    def arrived(deadline: float, **work: Any) -> list[int]:
        data = given(3, steps=[1, 2, 4], samples=[1, 2, 4], availability=Availability(deadline=deadline))
        return fitted(data, **work)[1].clients

    assert [arrived(deadline, local_epochs=2) for deadline in (1.9, 2, 4, 8)] == [[], [0], [0, 1], [0, 1, 2]]
    assert [arrived(deadline, local_steps=3) for deadline in (2.9, 3)] == [[], [0, 1, 2]]
    assert [arrived(deadline, local_epochs=1.5) for deadline in (3, 5.9, 6)] == [[0, 1], [0, 1], [0, 1, 2]]
    assert arrived(1, local_epochs=8, stragglers=1.0, seed=3) == [k for k in range(3) if straggler_steps(k) <= 1]


def straggler_steps(client: int) -> int:
    """Steps of a straggler of the test above, counted as it trains."""
    _, capture = fitted(given(3, steps=[1, 2, 4], samples=[1, 2, 4]), local_epochs=8, stragglers=1.0, seed=3)
    return capture.runs[client].num_steps


def test_the_sampler_sees_the_clients_that_are_there(tmp_path: Path) -> None:
    """Round 1: 0, 2, 3, of whom two are drawn; round 2: client 1 alone; round 3: nobody."""
    world = trace(tmp_path, "round,client\n1,0\n1,2\n1,3\n2,1\n4,0\n")
    for sampler in (UniformSampler(), SizeSampler(), RoundRobinSampler()):
        cohorts = list(map(given(4, participation=2, sampler=sampler, availability=world).cohort, range(1, 5)))
        assert len(cohorts[0]) == 2
        assert {*cohorts[0]} < {0, 2, 3}
        assert cohorts[1:] == [[1], [], [0]]


def test_a_round_in_which_nobody_arrives_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    """Client 0 sends (0, 1) in rounds 1 and 3 under a momentum of a half: 1 + 1.5. Rounds 2 and 4 change nothing."""
    momentum: Any = lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.5)  # noqa: E731
    data = given(2, availability=trace(tmp_path, "round,client\n1,0\n3,0\n4,1\n", deadline=1.0))
    data.steps[1], data.samples[1] = 5, 5  # client 1 is late
    orchestrator, folder = FederatedOrchestrator(Linear(2), server_optimizer=momentum), RunFolder(tmp_path)
    with pytest.warns(UserWarning, match="skipped") as told:
        trainer(rounds=4, logger=folder).fit(orchestrator, datamodule=data)
    assert [str(each.message) for each in told if "skipped" in str(each.message)] == [
        "round 2 is skipped: no update arrives (0 selected, 0 dropped out, 0 late)",
        "round 4 is skipped: no update arrives (1 selected, 0 dropped out, 1 late)",
    ]
    assert close(orchestrator.params, (0, 2.5))
    assert orchestrator.rounds_done == 4
    names = ("selected", "arrived", "dropped", "late", "quarantined")
    found = [[row[f"clients/{name}"] for name in names] for row in rows(Path(folder.log_dir, "metrics.csv"))]
    assert found == [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 1, 0]]


def test_bytes_of_those_who_do_not_arrive(tmp_path: Path) -> None:
    """16 bytes each. Absent: nothing; lost and late: down alone; arrived: both ways."""
    world = Given(1, 9, 1, 1, 1, 1, 1, 1, deadline=5, dropout_before=0.4, dropout_after=0.4)
    data, folder = given(8, availability=world), RunFolder(tmp_path)
    trainer(TrafficMonitor(), rounds=6, logger=folder).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    seen = [data.turnout(round) for round in range(1, 7)]
    assert all(any(getattr(each, name) for each in seen) for name in ("absent", "lost", "late", "arrived"))
    found = [(row["bytes/down"], row["bytes/up"]) for row in rows(Path(folder.log_dir, "metrics.csv"))]
    assert found == [(16 * (8 - len(each.absent)), 16 * len(each.arrived)) for each in seen]


def test_a_client_without_data_is_not_selected() -> None:
    data = given(3, samples=[1, 0, 1], availability=Availability(over_selection=3.0))
    assert data.turnout(1) == Turnout(arrived=(0, 2))


class Alternate:
    """No subclass of Availability: even clients are there in odd rounds, odd clients in even ones; the last is lost."""

    over_selection = 1.5

    def present(self, num_clients: int, round: int, seed: int) -> Tensor:
        return torch.arange(num_clients) % 2 != round % 2

    def turnout(
        self, selected: Sequence[int], needed: int, num_steps: Callable[[int], int], round: int, seed: int
    ) -> Turnout:
        return Turnout(arrived=tuple(selected[:-1]), lost=tuple(selected[-1:]))


def test_a_world_is_whatever_says_who_is_there_and_arrives() -> None:
    """Of 0, 2, 4 and of 1, 3, 5, all are selected: participation 2 with a ratio of 1.5."""
    data = given(6, participation=2, availability=Alternate())
    assert fitted(data, rounds=3)[1].clients == [0, 2, 1, 3, 0, 2]
    assert data.turnout(2) == Turnout(arrived=(1, 3), lost=(5,))
