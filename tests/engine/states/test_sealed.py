"""A rule's state is set in server hooks alone: a client hook runs on one device, and a change there is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.totals import CLIENTS, Totals, files, train
from lib.toy import SEEN, trainer
from torch import Tensor

from fl_lightning import ClientFailure, ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun

CHANGES = {
    "rule.state['seen'] = one": "sets self.state['seen']",
    "rule.state['seen/3'] = one": "sets self.state['seen/3']",
    "rule.state.update(seen=one)": "sets self.state['seen']",
    "rule.state |= {'seen': one}": "sets entries of self.state",
    "del rule.state['all']": "deletes self.state['all']",
    "rule.state.clear()": "deletes self.state[",
    "rule.state = {**rule.state, 'seen': one}": "replaces self.state",
    "rule.state['all'].add_(1)": "changes self.state['all'] in place",
    "rule.state['all'][:1] += 1": "changes self.state['all'] in place",
}


class AtEnd(Totals):
    """Does something at the end of a client, from the second round on."""

    def __init__(self, deed: Callable[[FederatedCallback], Any]) -> None:
        self.deed = deed

    def on_client_end(self, orchestrator: Any, run: LocalRun) -> None:
        if run.round > 1:
            self.deed(self)


@pytest.mark.parametrize(
    ("change", "states"),
    [*((change, "memory") for change in CHANGES), *((change, "disk") for change in [*CHANGES][1::6])],
)
def test_every_change_in_a_client_hook_is_refused(change: str, states: str, tmp_path: Path) -> None:
    """By a policy that leaves out clients that raise, too. The state is as the server hooks of round 1 left it."""
    rule = AtEnd(lambda rule: exec(change, {"rule": rule, "one": torch.ones(1)}))
    with pytest.raises(ConfigurationError, match=f"^{re.escape(f'AtEnd {CHANGES[change]}')}") as raised:
        train(tmp_path, 2, rule=rule, states=states, participation=CLIENTS, policy="skip")
    assert "\n" not in str(raised.value)
    assert "in on_before_client_step or on_client_end, while" in str(raised.value)
    assert "send the tensor by run.send(name, tensor)" in str(raised.value)
    assert set(rule.state) == {"all", *(f"sum/{client}" for client in range(CLIENTS))}
    rule.state["all"] = torch.ones(1)  # afterwards, the state can be changed as before


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


class InClosure(FederatedCallback):
    def closure(self, run: LocalRun, closure: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
        def counted() -> Tensor | None:
            self.state["calls"] = torch.ones(1)
            return closure()

        return counted


class InLoss(FederatedCallback):
    """Serves groups, as far as anybody knows."""

    stacks = True

    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Tensor) -> Tensor:
        self.state["loss"] = loss.detach()
        return loss


@pytest.mark.parametrize(("rule", "hook", "together"), [(InClosure(), "closure", 1), (InLoss(), "loss", 6)])
def test_the_hook_is_named(rule: FederatedCallback, hook: str, together: int) -> None:
    """The error ends the run: clients of a group are not trained one by one after it."""
    orchestrator = FederatedOrchestrator(TinyClassifier(), clients_at_once=together)
    with pytest.raises(ConfigurationError, match=rf"^{type(rule).__name__} sets self.state.* in {hook}, while"):
        trainer(rule).fit(orchestrator, datamodule=TinyData(batch_size=4))
    assert SEEN[orchestrator].group_size == together
