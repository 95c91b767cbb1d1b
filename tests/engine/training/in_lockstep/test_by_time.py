"""The faster way: clients train at once where that saves time; a line says so."""

import logging
from itertools import count
from typing import Any

import pytest
from lib.rules import TinyClassifier, TinyData
from lib.toy import SEEN, trainer

from fl_lightning import FederatedOrchestrator
from fl_lightning.engine.training.in_lockstep import trainer as by_time
from fl_lightning.engine.training.in_lockstep import trial
from fl_lightning.engine.training.in_lockstep.trainer import is_trial_due


def test_rounds_that_begin_with_a_trial() -> None:
    """The first of a fit, and 1, 2, 4, 8, …, each once."""
    due = [number for number in range(1, 18) if is_trial_due(number, last=1)]
    assert due == [2, 4, 8, 16]
    assert not is_trial_due(4, last=4)
    assert is_trial_due(5, last=0)


def said(caplog: pytest.LogCaptureFixture, rounds: int, **settings: Any) -> tuple[FederatedOrchestrator, list[str]]:
    """Train, and return what is said of the way."""
    orchestrator = FederatedOrchestrator(TinyClassifier(), **settings)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        trainer(rounds=rounds).fit(orchestrator, datamodule=TinyData(batch_size=4))
    lines = [record.getMessage() for record in caplog.records]
    return orchestrator, [line for line in lines if line.startswith(("clients_at_once", "compile_clients"))]


BATCHES = 15  # of the six clients, a round
SLOW = ["clients_at_once: 6 clients train at once", "clients_at_once: clients train one after another, since a batch "]


@pytest.mark.parametrize(("alone_s", "gives_up"), [(0.9, True), (0.92, False)])
def test_auto_gives_up_groups_from_a_tenth_more_time_on(
    alone_s: float, gives_up: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a second at each look: groups take a second a round, and so many a batch."""
    times = count()
    monkeypatch.setattr(by_time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(trial.Trial, "seconds", property(lambda self: alone_s / BATCHES, lambda self, value: None))
    orchestrator, lines = said(caplog, 4, clients_at_once="auto")
    assert SEEN[orchestrator].at_once is not gives_up
    assert len(lines) == 1 + gives_up
    assert all(line.startswith(start) for line, start in zip(lines, SLOW, strict=False))


def test_a_number_of_clients_is_not_given_up(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.Trial, "seconds", property(lambda self: 1e-9, lambda self, value: None))
    orchestrator, lines = said(caplog, 3, clients_at_once=6)
    assert SEEN[orchestrator].at_once
    assert len(lines) == 1
