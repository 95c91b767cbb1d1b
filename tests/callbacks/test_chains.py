"""Any client rule goes with any server rule, and two server rules with each other or are refused with the reason."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import cycle, permutations
from typing import Any

import pytest
import torch
from lib.rules import (
    BY_KIND,
    CLIENT_RULES,
    CORRECTIONS,
    ELSEWHERE,
    FITTED,
    GROUPERS,
    REDUCERS,
    REFINERS,
    SERVER_RULES,
    SHRINKERS,
    STEPPERS,
    UNIFORM,
    WEIGHERS,
    WEIGHTINGS,
    Make,
    run,
)
from lib.toy import train

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import Bucketing
from fl_lightning.engine.rules.callback import is_anonymous

# They read updates and weights, and do not ask whose these are.
ANONYMOUS = {"Krum", "Multi-Krum", "GeometricMedian", "DnC", "NormClipping", "NormClipping, fixed"}
ANONYMOUS |= {"NearestNeighbourMixing", "CoordinateMedian", "TrimmedMean", "CentredClipping", "Bulyan"}
MOMENTUM = {"AveragedMoments"}  # do nothing where the clients' SGD has no momentum, as here
LOSSES = frozenset({"FocalLoss", "FedLC", "FedRS"})


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
    if first in weighs and second in CORRECTIONS | WEIGHTINGS | GROUPERS:
        return "weighs the updates as they are"
    if both & REDUCERS.keys() and both & (weighs | SHRINKERS).keys():
        return "uses no weights"
    if second in GROUPERS and first in REDUCERS.keys() - ANONYMOUS:
        return "hands on means of several clients"
    if first in GROUPERS and second not in ANONYMOUS | STEPPERS.keys() | REFINERS.keys():
        return "hands on means of several clients"
    return None


@cache
def alone(server: str) -> torch.Tensor:
    """The model without a client rule."""
    return run(SERVER_RULES[server]()).params


def check_client_with_server(client: str, server: str) -> None:
    """Two rounds end in a finite model, other than without the client rule; the order matters to averages and groups,
    and in the last digits to two rules that both correct the gradient.
    """
    both = CLIENT_RULES[client](), SERVER_RULES[server]()
    model = run(*both).params
    assert model.isfinite().all()
    assert torch.equal(model, alone(server)) == (client in MOMENTUM)
    if server in GROUPERS and not is_anonymous(both[0]):
        with pytest.raises(ConfigurationError, match="hands on means of several clients, not single ones; put"):
            run(*reversed(both))
    elif client not in UNIFORM:
        torch.testing.assert_close(run(*reversed(both)).params, model, rtol=0, atol=1e-12)
    elif server in WEIGHERS | FITTED:
        with pytest.raises(ConfigurationError, match="weighs the updates as they are; put"):
            run(*reversed(both))


def check_two_clients(first: str, second: str) -> None:
    """Two that settle where the gradient is evaluated, or that replace the loss, are refused; all others run."""
    rules = CLIENT_RULES[first](), CLIENT_RULES[second]()
    both = {frozenset(ELSEWHERE): "settle where clients evaluate their gradients", LOSSES: "replace the training loss"}
    if reason := next((said for names, said in both.items() if {first, second} <= names), None):
        with pytest.raises(ConfigurationError, match=f"both {reason}"):
            run(*rules)
    else:
        assert run(*rules).params.isfinite().all()


def check_two_servers(first: str, second: str) -> None:
    """They run, or are refused in one line that names both and says why."""
    rules: Any = SERVER_RULES[first](), SERVER_RULES[second]()
    if first in GROUPERS and second in ("Krum", "Multi-Krum"):
        rules = Bucketing(1), rules[1]  # Krum needs five updates of six clients
    reason = why_not(first, second)
    if reason is None:
        assert run(*rules).params.isfinite().all()
        return
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        run(*rules)
    names = {type(rule).__name__ for rule in rules}
    assert all(name in str(refusal.value) for name in names)
    assert "\n" not in str(refusal.value)


def distinct(rules: Mapping[str, Make]) -> list[tuple[str, str]]:
    """All pairs of two rules in both orders; one rule in two settings is one rule twice."""
    return [(a, b) for a, b in permutations(rules, 2) if type(rules[a]()) is not type(rules[b]())]


def witnesses(pairs: Iterable[tuple[str, str]], kinds: Sequence[Collection[str]]) -> list[tuple[str, str]]:
    """The first pair of each two kinds, in both orders."""

    def kind(name: str) -> int:
        return next(number for number, names in enumerate(kinds) if name in names)

    found: dict[tuple[int, int], tuple[str, str]] = {}
    for one, other in pairs:
        found.setdefault((kind(one), kind(other)), (one, other))
    return list(found.values())


CLIENT_KINDS = [ELSEWHERE & UNIFORM, ELSEWHERE, UNIFORM, CLIENT_RULES.keys()]
CLIENT_PAIRS, SERVER_PAIRS = distinct(CLIENT_RULES), distinct(SERVER_RULES)
# Every server rule with the next client rule, and every client rule with one that weighs the updates as they are.
MIXED = [*zip(cycle(CLIENT_RULES), SERVER_RULES, strict=False), *((client, "Krum") for client in CLIENT_RULES)]


@pytest.mark.parametrize(("client", "server"), MIXED)
def test_a_client_rule_goes_with_a_server_rule(client: str, server: str) -> None:
    check_client_with_server(client, server)


@pytest.mark.parametrize(("first", "second"), witnesses(CLIENT_PAIRS, CLIENT_KINDS))
def test_client_rules_of_two_kinds(first: str, second: str) -> None:
    check_two_clients(first, second)


@pytest.mark.parametrize(("first", "second"), witnesses(SERVER_PAIRS, BY_KIND))
def test_server_rules_of_two_kinds(first: str, second: str) -> None:
    check_two_servers(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENT_RULES)
def test_every_client_rule_with_every_server_rule(client: str) -> None:
    for server in SERVER_RULES:
        check_client_with_server(client, server)


@pytest.mark.slow
@pytest.mark.parametrize("first", CLIENT_RULES)
def test_every_chain_of_two_client_rules(first: str) -> None:
    for pair in CLIENT_PAIRS:
        if pair[0] == first:
            check_two_clients(*pair)


@pytest.mark.slow
@pytest.mark.parametrize("first", SERVER_RULES)
def test_every_chain_of_two_server_rules(first: str) -> None:
    for pair in SERVER_PAIRS:
        if pair[0] == first:
            check_two_servers(*pair)


def test_some_chains_are_refused_and_most_are_not() -> None:
    refused = [pair for pair in SERVER_PAIRS if why_not(*pair)]
    assert 0 < len(refused) < len(SERVER_PAIRS) / 2


def test_the_witnesses_are_of_all_kinds() -> None:
    """Nine kinds of server rules in both orders, each kind with itself where it has two rules; every refusal."""
    found = witnesses(SERVER_PAIRS, BY_KIND)
    alone = [kind for kind in BY_KIND if len({type(make()) for make in kind.values()}) == 1]
    assert len(found) == len(BY_KIND) ** 2 - len(alone)
    reasons = [{reason for pair in pairs if (reason := why_not(*pair))} for pairs in (found, SERVER_PAIRS)]
    assert reasons[0] == reasons[1]


@pytest.mark.parametrize("name", [name for name in SERVER_RULES if SERVER_RULES[name]().needs_proxy])
def test_a_rule_that_learns_on_a_proxy_set_needs_one(name: str) -> None:
    rule = SERVER_RULES[name]()
    message = f"{type(rule).__name__} learns on a proxy set, but ToyData has none: define proxy_dataloader() in ToyData"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        train(rule)
