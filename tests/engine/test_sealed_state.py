"""A rule's state is set in server hooks alone: a client hook runs on one device, and a change there is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rules import TinyClassifier, TinyData
from torch import Tensor
from totals import CLIENTS, Totals, files, train
from toy import SEEN, trainer

from fl_lightning import ClientFailure, ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun

Deed = Callable[[FederatedCallback], Any]


def sets(rule: FederatedCallback) -> None:
    rule.state["seen"] = torch.ones(1)


def updates(rule: FederatedCallback) -> None:
    rule.state.update(seen=torch.ones(1))


def adds_entries(rule: FederatedCallback) -> None:
    rule.state |= {"seen": torch.ones(1)}


def sets_a_clients(rule: FederatedCallback) -> None:
    rule.state["seen/3"] = torch.ones(1)


def deletes(rule: FederatedCallback) -> None:
    del rule.state["all"]


def empties(rule: FederatedCallback) -> None:
    rule.state.clear()


def replaces(rule: FederatedCallback) -> None:
    rule.state = {**rule.state, "seen": torch.ones(1)}


def adds_in_place(rule: FederatedCallback) -> None:
    rule.state["all"].add_(1)


def adds_to_a_view(rule: FederatedCallback) -> None:
    rule.state["all"][:1] += 1


CHANGES = {
    sets: "sets self.state['seen']",
    updates: "sets self.state['seen']",
    adds_entries: "sets entries of self.state",
    sets_a_clients: "sets self.state['seen/3']",
    deletes: "deletes self.state['all']",
    empties: "deletes self.state[",
    replaces: "replaces self.state",
    adds_in_place: "changes self.state['all'] in place",
    adds_to_a_view: "changes self.state['all'] in place",
}


class AtEnd(Totals):
    """Changes its state at the end of a client, from the second round on."""

    def __init__(self, deed: Deed) -> None:
        self.deed = deed

    def on_client_end(self, orchestrator: Any, run: LocalRun) -> None:
        if run.round > 1:
            self.deed(self)


class InLoss(FederatedCallback):
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        self.state["loss"] = loss.detach()
        return loss


class InClosure(FederatedCallback):
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        def counted() -> Tensor | None:
            self.state["calls"] = torch.ones(1)
            return closure()

        return counted


class BeforeStep(FederatedCallback):
    def on_before_client_step(self, run: LocalRun) -> None:
        self.state["gradient"] = run.grads.clone()


class AtStart(FederatedCallback):
    def on_client_start(self, orchestrator: Any, run: LocalRun) -> None:
        self.state["client"] = torch.tensor(run.client)


HOOKS = {InLoss: "loss", InClosure: "closure", BeforeStep: "on_before_client_step", AtStart: "on_client_start"}


@pytest.mark.parametrize("states", ["memory", "disk"])
@pytest.mark.parametrize("deed", CHANGES, ids=lambda deed: deed.__name__)
def test_every_change_in_a_client_hook_is_refused(deed: Deed, states: str, tmp_path: Path) -> None:
    """By a policy that leaves out clients that raise, too. The state is as the server hooks of round 1 left it."""
    rule = AtEnd(deed)
    words = f"AtEnd {CHANGES[deed]}"
    with pytest.raises(ConfigurationError, match=f"^{re.escape(words)}") as raised:
        train(tmp_path, 2, rule=rule, states=states, participation=CLIENTS, policy="skip")
    assert "\n" not in str(raised.value)
    assert "in on_before_client_step or on_client_end, while" in str(raised.value)
    assert "run.send(name, tensor)" in str(raised.value)
    assert "cohort.results[k].vectors[name]" in str(raised.value)
    assert set(rule.state) == {"all", *(f"sum/{client}" for client in range(CLIENTS))}
    rule.state["all"] = torch.ones(1)  # afterwards, the state can be changed as before


@pytest.mark.parametrize("make", HOOKS)
def test_every_client_hook_is_named(make: type[FederatedCallback], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{make.__name__} sets self.state.* in {HOOKS[make]}, while"):
        train(tmp_path, 1, rule=make(), states="memory", policy="skip")


def test_a_change_by_a_client_that_then_fails_is_refused(tmp_path: Path) -> None:
    """The client is left out; the change in place would stay."""

    def fails(rule: FederatedCallback) -> None:
        rule.state["all"].add_(1)
        raise ClientFailure("the client fails")

    with pytest.raises(ConfigurationError, match=r"changes self.state\['all'\] in place"):
        train(tmp_path, 2, rule=AtEnd(fails), participation=CLIENTS, policy="skip")


def test_a_checkpoint_that_is_saved_while_a_client_trains_holds_the_state(tmp_path: Path) -> None:
    """As a scheduler's signal saves it."""
    saved: list[dict[str, Any]] = []
    train(tmp_path, 2, rule=AtEnd(lambda rule: saved.append(rule.state_dict())), participation=1)
    assert saved[0]["numbers"].tolist() == [1]
    assert len(files(tmp_path, "AtEnd")) == 2


class AtOnce(AtStart):
    """Serves groups, as far as anybody knows."""

    stacks = True


class InLossAtOnce(InLoss):
    stacks = True


@pytest.mark.parametrize("make", [AtOnce, InLossAtOnce])
def test_clients_at_once(make: type[FederatedCallback]) -> None:
    """The error ends the run: the clients are not trained one by one after it."""
    orchestrator = FederatedOrchestrator(TinyClassifier(), clients_at_once=6)
    hook = "loss" if issubclass(make, InLoss) else "on_client_start"
    with pytest.raises(ConfigurationError, match=rf"^{make.__name__} sets self.state.* in {hook}, while"):
        trainer(make(), rounds=1).fit(orchestrator, datamodule=TinyData(batch_size=4))
    assert SEEN[orchestrator].group_size == 6
