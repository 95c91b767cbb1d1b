"""The faster way: clients train at once, and steps are compiled, where that saves time; a line says so."""

import logging
from itertools import count
from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import SEEN, trainer

from fl_lightning import FederatedOrchestrator
from fl_lightning.engine.training.in_lockstep import trainer as by_time
from fl_lightning.engine.training.in_lockstep import trial
from fl_lightning.engine.training.in_lockstep.trainer import Way, faster_way, is_trial_due

TIMED = {Way.ONE_BY_ONE: 1.0, Way.AT_ONCE: 0.5, Way.COMPILED: 0.2}  # seconds of a batch


def test_the_faster_way_is_one_that_is_open() -> None:
    """Groups are given up for clients one by one from 1.1 times their time on."""
    both = {Way.ONE_BY_ONE, Way.COMPILED}
    assert faster_way(Way.AT_ONCE, TIMED, left_s=0.0, open_ways=both) is Way.AT_ONCE
    barely = {**TIMED, Way.AT_ONCE: 1.1}
    assert faster_way(Way.AT_ONCE, barely, left_s=0.0, open_ways=both) is Way.AT_ONCE
    slower = {**TIMED, Way.AT_ONCE: 1.2, Way.COMPILED: 1.2}
    for way in (Way.AT_ONCE, Way.COMPILED):
        assert faster_way(way, slower, left_s=0.0, open_ways=both) is Way.ONE_BY_ONE
    assert faster_way(Way.AT_ONCE, slower, left_s=0.0, open_ways={Way.COMPILED}) is Way.AT_ONCE
    # No client could be timed alone.
    assert faster_way(Way.AT_ONCE, {Way.AT_ONCE: 9.0}, left_s=0.0, open_ways=both) is Way.AT_ONCE


def test_steps_are_compiled_where_the_rest_of_the_run_saves_more_time_than_that_takes() -> None:
    """Compiling takes 20 s and saves 0.4 of the time: from 50 s on. It is given up if batches then take longer."""
    open_ways = {Way.COMPILED}
    assert faster_way(Way.AT_ONCE, TIMED, left_s=50.0, open_ways=open_ways) is Way.AT_ONCE
    assert faster_way(Way.AT_ONCE, TIMED, left_s=51.0, open_ways=open_ways) is Way.COMPILED
    assert faster_way(Way.AT_ONCE, TIMED, left_s=51.0, open_ways=()) is Way.AT_ONCE
    assert faster_way(Way.COMPILED, TIMED, left_s=51.0, open_ways=()) is Way.COMPILED
    slower = {**TIMED, Way.COMPILED: 0.6}
    assert faster_way(Way.COMPILED, slower, left_s=51.0, open_ways=()) is Way.AT_ONCE
    # Compiled from the first round on: there is no time to compare with.
    assert faster_way(Way.COMPILED, {Way.COMPILED: 0.6}, left_s=51.0, open_ways=()) is Way.COMPILED


def test_slow_groups_are_compiled_where_that_would_beat_clients_one_by_one() -> None:
    """Compiled, a batch would take 0.6 of its time at once: 0.72 s for 1.2 s; 86 rounds' seconds save 20 s."""
    both = {Way.ONE_BY_ONE, Way.COMPILED}
    slower = {Way.ONE_BY_ONE: 1.0, Way.AT_ONCE: 1.2}
    assert faster_way(Way.AT_ONCE, slower, left_s=85.0, open_ways=both) is Way.ONE_BY_ONE
    assert faster_way(Way.AT_ONCE, slower, left_s=86.0, open_ways=both) is Way.COMPILED
    much_slower = {Way.ONE_BY_ONE: 1.0, Way.AT_ONCE: 1.8}
    assert faster_way(Way.AT_ONCE, much_slower, left_s=1e6, open_ways=both) is Way.ONE_BY_ONE
    compiled = {**slower, Way.COMPILED: 1.15}
    assert faster_way(Way.COMPILED, compiled, left_s=1e6, open_ways=both) is Way.ONE_BY_ONE


def test_rounds_that_begin_with_a_trial() -> None:
    """The first of a fit, those of a way that is not tried yet, and 1, 2, 4, 8, …, each once."""
    due = [number for number in range(1, 18) if is_trial_due(number, last=1, fallback=None)]
    assert due == [2, 4, 8, 16]
    assert not is_trial_due(4, last=4, fallback=None)
    assert is_trial_due(5, last=0, fallback=None)
    assert is_trial_due(5, last=4, fallback=Way.AT_ONCE)


def said(caplog: pytest.LogCaptureFixture, rounds: int, **settings: Any) -> tuple[FederatedOrchestrator, list[str]]:
    """Train, and return what is said of the way."""
    orchestrator = FederatedOrchestrator(TinyClassifier(), **settings)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        trainer(rounds=rounds).fit(orchestrator, datamodule=TinyData(batch_size=4))
    lines = [record.getMessage() for record in caplog.records]
    return orchestrator, [line for line in lines if line.startswith(("clients_at_once", "compile_clients"))]


def test_auto_gives_up_slower_groups(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.Trial, "seconds", property(lambda self: 1e-9, lambda self, value: None))
    orchestrator, lines = said(caplog, 3, clients_at_once="auto")
    assert not SEEN[orchestrator].at_once
    assert lines[0] == "clients_at_once: 6 clients train at once"
    assert lines[1].startswith("clients_at_once: clients train one after another, since a batch takes ")


def test_a_number_of_clients_is_not_given_up(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.Trial, "seconds", property(lambda self: 1e-9, lambda self, value: None))
    orchestrator, lines = said(caplog, 3, clients_at_once=6)
    assert SEEN[orchestrator].at_once
    assert len(lines) == 1


def test_a_few_rounds_are_not_worth_compiling(caplog: pytest.LogCaptureFixture) -> None:
    orchestrator, lines = said(caplog, 5, clients_at_once=6)
    assert not SEEN[orchestrator].compiled
    assert len(lines) == 1


@pytest.mark.parametrize("slower", [False, True])
def test_steps_are_compiled_where_that_saves_time(
    slower: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a second at each look, or by ten once steps are compiled; compiling takes no time."""
    times, compiled = count(), list[Any]()
    monkeypatch.setattr(by_time, "perf_counter", lambda: next(times) * (10 if slower and compiled else 1))
    monkeypatch.setattr(by_time, "COMPILING_S", 1.0)
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
    orchestrator, lines = said(caplog, 6, clients_at_once=6)
    assert len(compiled) == 1
    assert SEEN[orchestrator].compiled is not slower
    assert lines[1] == "compile_clients: local steps are compiled from round 3 on, since 4 rounds of 1 s are left"
    assert len(lines) == 2 + slower
    if slower:
        assert lines[2].startswith("compile_clients: local steps are no longer compiled, since a batch takes 667 ms")
