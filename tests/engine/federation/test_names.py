"""Names of clients: given in four ways, checked when training begins, written into messages, without effect."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lib.toy import UPDATES, GivenData, Linear, trainer

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import GradientHarmonization
from fl_lightning.engine.federation.clients import names_of

CITIES = ["bern", "oslo"]
ROWS = torch.tensor([[1.0], [50.0]], dtype=torch.float64)


class Attribute(GivenData):
    client_names = CITIES


class Property(GivenData):
    @property
    def client_names(self) -> Any:  # type: ignore[override]  # read alone
        return tuple(CITIES)


WAYS: dict[str, Callable[[], GivenData]] = {
    "argument": lambda: GivenData(ROWS, client_names=CITIES),
    "attribute": lambda: Attribute(ROWS),
    "property": lambda: Property(ROWS),
}


def fitted(data: FederatedDataModule, **settings: Any) -> FederatedOrchestrator:
    orchestrator = FederatedOrchestrator(Linear(1), **settings)
    trainer().fit(orchestrator, datamodule=data)
    return orchestrator


@pytest.mark.parametrize("way", WAYS)
def test_messages_have_number_and_name(way: str) -> None:
    """Updates of norms 1 and 50: the lower median is 1, and client 1 is above ten times as much."""
    data = WAYS[way]()
    assert names_of(data) == CITIES
    with pytest.warns(UserWarning, match=r"round 1: client 1 \(oslo\) is left out: the norm of its update is 50"):
        fitted(data, max_update_norm=10)


def test_without_names_messages_have_the_number_alone() -> None:
    assert names_of(GivenData(ROWS)) is None
    assert GivenData(ROWS).client_label(1) == "1"
    with pytest.warns(UserWarning, match="round 1: client 1 is left out: the norm"):
        fitted(GivenData(ROWS), max_update_norm=10)


def test_texts_of_names() -> None:
    """A name that is the number is written once; numbers of one's own class become texts."""
    data = GivenData(ROWS, client_names=["0", "zero"])
    assert [data.client_label(client) for client in (0, 1)] == ["0", "1 (zero)"]
    data.client_names = [101, 102]  # type: ignore[list-item]  # as a user without a type checker may
    assert names_of(data) == ["101", "102"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["bern"], "expected client_names to be 2 names, one for each client, got 1: correct them"),
        ([], "expected client_names to be 2 names, one for each client, got 0: correct them"),
        ("ab", "expected client_names to be 2 names, one for each client, got 'ab': correct them"),
        (["bern", "bern"], "expected client_names to differ, got 'bern' for clients 0 and 1: rename one"),
    ],
)
def test_names_that_do_not_fit_are_refused_before_training(names: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        fitted(GivenData(ROWS, client_names=names))


def test_names_beside_those_of_a_property_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Property names its clients itself, got client_names, too"):
        Property(ROWS, client_names=CITIES)


def test_names_change_no_result() -> None:
    """Neither the cohorts, two of three clients a round, nor the random order of the rule, nor the batches."""
    ends = []
    for names in (None, ["a", "b", "c"], ["c", "b", "a"]):
        data = GivenData(torch.tensor(UPDATES, dtype=torch.float64), participation=2, client_names=names)
        orchestrator = FederatedOrchestrator(Linear(2))
        trainer(GradientHarmonization(order="random"), rounds=5).fit(orchestrator, datamodule=data)
        ends.append(orchestrator.params.tolist())
    assert ends[0] == ends[1] == ends[2]
    assert ends[0] != [0.0, 0.0]
