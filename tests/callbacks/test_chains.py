"""Any client rule goes with any server rule, and two server rules with each other or are refused with the reason."""

from typing import Any

import pytest
import torch
from rules import (
    CLIENT_RULES,
    CORRECTIONS,
    ELSEWHERE,
    FITTED,
    REDUCERS,
    SERVER_RULES,
    SHRINKERS,
    STEPPERS,
    UNIFORM,
    WEIGHERS,
    WEIGHTINGS,
    run,
)

from fl_lightning import ConfigurationError


def why_not(first: str, second: str) -> str | None:
    """Why two rules cannot follow one another, or None: said here from what they do, not from what they declare."""
    weighs = WEIGHERS | FITTED
    both = {first, second}
    if first in weighs and second in weighs:
        return "settle the clients' weights"
    if len(both & (FITTED | SHRINKERS).keys()) == 2:
        return "settle the shrinking factor"
    if len(both & REDUCERS.keys()) == 2:
        return "replace the weighted sum"
    if len(both & STEPPERS.keys()) == 2:
        return "settle the server's step"
    if first in weighs and second in CORRECTIONS | WEIGHTINGS:
        return "weighs the updates as they are"
    if both & REDUCERS.keys() and both & (weighs | SHRINKERS).keys():
        return "takes no weighted sum"
    return None


@pytest.mark.parametrize("server", SERVER_RULES)
@pytest.mark.parametrize("client", CLIENT_RULES)
def test_every_client_rule_with_every_server_rule(client: str, server: str) -> None:
    """Three rounds end in a finite model, and not in the one without the client rule; the order matters to averages."""
    both = CLIENT_RULES[client](), SERVER_RULES[server]()
    model = run(*both, rounds=3).params
    assert model.isfinite().all()
    assert not torch.equal(model, run(SERVER_RULES[server](), rounds=3).params)
    if client not in UNIFORM:
        assert torch.equal(model, run(*reversed(both), rounds=3).params)
    elif server in WEIGHERS | FITTED:
        with pytest.raises(ConfigurationError, match="weighs the updates as they are; put"):
            run(*reversed(both))


@pytest.mark.parametrize("first", CLIENT_RULES)
def test_every_chain_of_two_client_rules(first: str) -> None:
    """Two that settle where the gradient is evaluated are refused; all others run."""
    for second in CLIENT_RULES:
        rules = CLIENT_RULES[first](), CLIENT_RULES[second]()
        if type(rules[0]) is type(rules[1]):
            continue
        if {first, second} <= ELSEWHERE:
            with pytest.raises(ConfigurationError, match="both settle where clients evaluate their gradients"):
                run(*rules)
        else:
            assert run(*rules, rounds=3).params.isfinite().all(), second


def distinct(first: str, second: str) -> bool:
    """Whether two entries are two rules: one rule in two settings is one rule twice."""
    return type(SERVER_RULES[first]()) is not type(SERVER_RULES[second]())


@pytest.mark.parametrize("first", SERVER_RULES)
def test_every_chain_of_two_server_rules(first: str) -> None:
    for second in SERVER_RULES:
        if not distinct(first, second):
            continue
        rules: Any = SERVER_RULES[first](), SERVER_RULES[second]()
        reason = why_not(first, second)
        if reason is None:
            assert run(*rules).params.isfinite().all(), second
            continue
        with pytest.raises(ConfigurationError, match=reason) as refusal:
            run(*rules)
        names = {type(rule).__name__ for rule in rules}
        assert all(name in str(refusal.value) for name in names)
        assert "\n" not in str(refusal.value)


def test_some_chains_are_refused_and_most_are_not() -> None:
    pairs = [(a, b) for a in SERVER_RULES for b in SERVER_RULES if distinct(a, b)]
    refused = [pair for pair in pairs if why_not(*pair)]
    assert 0 < len(refused) < len(pairs) / 2
