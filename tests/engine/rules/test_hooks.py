"""What a hook returns and writes is checked where it comes back: a forgotten ``return`` does no harm in silence.

Each rule has one fault; the message names rule, hook, what was expected and what came. The tiny classifier has 23
parameters in float64 and three buffers, and its data six clients.
"""

from typing import Any

import numpy as np
import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import GivenData, Linear, trainer
from lightning.pytorch import Callback

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator, Monitor
from fl_lightning.callbacks import PersonalEvaluation
from fl_lightning.engine.module.failures import RuleError

FLAT, SIX = r"a tensor \(23,\) of float64 on cpu", r"a tensor \(6,\) of float64 on cpu"
LOSS = "a loss, one floating-point number with a gradient"
MODEL = f"{FLAT} and 3 buffers"


def fit(hook: str, act: Any, rounds: int = 1, at_once: int = 1, **more: Any) -> FederatedOrchestrator:
    """A fit under a rule with one hook."""
    rule = type("Own", (FederatedCallback,), {hook: act, "stacks": True, **more})()
    orchestrator = FederatedOrchestrator(TinyClassifier(), clients_at_once=at_once)
    trainer(rule, rounds=rounds).fit(orchestrator, datamodule=TinyData(batch_size=4))
    return orchestrator


def forgets(self: Any, *args: Any) -> None:
    """End without return."""


def forgets_the_loss(self: Any, run: Any, closure: Any) -> Any:
    def call() -> None:
        closure()

    return call


def zeros(self: Any, orchestrator: Any, run: Any, update: Any) -> None:
    update.zero_()


CASES = [
    ("loss", forgets, LOSS, "None: is a return missing"),
    ("loss", lambda self, run, batch, outputs, loss: loss.detach(), LOSS, r"a tensor \(\) of float64 on cpu: correct"),
    ("loss", lambda self, run, batch, outputs, loss: loss.expand(2), LOSS, r"a tensor \(2,\) of float64"),
    ("closure", forgets, "a function that returns the loss", "None: is a return missing"),
    ("closure", forgets_the_loss, "a function that returns the loss", "None of it"),
    ("upload", zeros, FLAT, "None: is a return missing"),
    ("upload", lambda self, server, run, update: update.float(), FLAT, r"a tensor \(23,\) of float32 on cpu"),
    ("upload", lambda self, server, run, update: update[:3], FLAT, r"a tensor \(3,\) of float64 on cpu"),
    ("aggregate", forgets, rf"a Cohort \(weights: {SIX}; mixing: .*\)", "None: is a return missing"),
    ("aggregate", lambda self, server, cohort: cohort.weights, "a Cohort .*", r"a tensor \(6,\)"),
    ("aggregate", lambda self, server, c: c.replace(weights=c.weights.float()), f"a Cohort .*{SIX}.*", ".*float32"),
    (
        "aggregate",
        lambda self, server, c: c.replace(mixing=c.mixing[:3]),
        "a Cohort .*",
        r".*mixing: a tensor \(3, 6\)",
    ),
    ("aggregate", lambda self, server, c: c.plus(c.anchor[:2]), "a Cohort .*", r".*added: a tensor \(2,\)"),
    ("reduce", forgets, FLAT, "None: is a return missing"),
    ("reduce", lambda self, server, cohort: cohort.deltas, FLAT, r"a tensor \(6, 23\)"),
    ("update", forgets, FLAT, "None: is a return missing"),
    ("update", lambda self, server, cohort, update: update.tolist(), FLAT, "list"),
    ("start", forgets, MODEL, "None: is a return missing"),
    ("start", lambda self, server, client, params, buffers: params, MODEL, rf"{FLAT}: correct"),
    ("start", lambda self, server, client, params, buffers: (params, buffers[1:]), MODEL, rf"{FLAT} and 2 buffers"),
    ("on_before_client_step", lambda self, run: 2 * run.grads, r"nothing \(it acts in place\)", FLAT),
    ("refine", lambda self, server, cohort: server.params + 1, r"nothing \(it acts in place\)", FLAT),
]


@pytest.mark.parametrize(("hook", "act", "expected", "got"), CASES)
def test_a_result_of_another_kind_is_refused(hook: str, act: Any, expected: str, got: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Own.{hook} must return {expected}, got {got}"):
        fit(hook, act)


@pytest.mark.parametrize("hook", ["loss", "closure"])
def test_a_group_of_clients_goes_through_the_same_check(hook: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Own.{hook} must return .*, got None"):
        fit(hook, forgets, at_once=6)


def test_weights_as_updates_arrive() -> None:
    with pytest.raises(ConfigurationError, match=rf"^Own.stream_weights must return {SIX}, got None"):
        fit("stream_weights", forgets, aggregate=lambda self, server, cohort: cohort, streams=True)


def test_the_model_that_serves_a_client() -> None:
    rule = type("Own", (FederatedCallback,), {"personal": forgets})()
    data = type("HoldsOut", (TinyData,), {"held_out_batches": lambda self, client: self.proxy_dataloader()})
    module = type("Validates", (TinyClassifier,), {"validation_step": lambda self, batch: self.log("x", 1.0)})()
    with pytest.raises(ConfigurationError, match=rf"^Own.personal must return {MODEL}, got None"):
        trainer(rule, PersonalEvaluation()).fit(FederatedOrchestrator(module), datamodule=data(batch_size=4))


def test_a_batch_without_a_loss_is_no_fault_of_a_closure() -> None:
    """``training_step`` may return None: the client's other batches train it."""

    class EverySecond(TinyClassifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) if batch_idx % 2 == 0 else None

    rule = type("Own", (FederatedCallback,), {"closure": lambda self, run, closure: lambda: closure()})()
    orchestrator = FederatedOrchestrator(EverySecond(), on_bad_update="raise")
    trainer(rule).fit(orchestrator, datamodule=TinyData(batch_size=4))
    assert int(orchestrator.rounds_done) == 1


def writes(name: str) -> Any:
    """A server hook that doubles a tensor of the cohort in place, and gives back its last argument."""

    def act(self: Any, server: Any, cohort: Any, *update: Any) -> Any:
        with torch.no_grad():
            {"params": lambda: server.params, "parameter": lambda: server.flat.parameters[0]}.get(
                name, lambda: getattr(cohort, name)
            )().mul_(2)
        return update[0] if update else cohort

    return act


@pytest.mark.parametrize(
    ("hook", "name", "told"),
    [
        *(
            ("aggregate", name, f"cohort.{name}")
            for name in ("anchor", "weights", "mixing", "gram", "deltas", "losses")
        ),
        ("update", "weights", "cohort.weights"),
        *(
            (hook, name, "orchestrator.params")
            for hook in ("aggregate", "update", "on_round_end")
            for name in ("params", "parameter")
        ),
    ],
)
def test_what_others_read_is_not_written(hook: str, name: str, told: str) -> None:
    """In the second round, when the client's weights are no longer zero."""
    with pytest.raises(
        ConfigurationError, match=rf"^Own.{hook} must leave {told} as it is, but writes to it: change a"
    ):
        fit(hook, writes(name), rounds=2)


@pytest.mark.parametrize("hook", ["on_client_start", "on_client_end"])
def test_a_monitor_does_not_write_to_a_clients_model(hook: str) -> None:
    """As a rule may."""

    def doubles(self: Any, server: Any, run: Any) -> None:
        run.params.mul_(2)

    fit(hook, doubles)
    own = type("Own", (Monitor,), {hook: doubles})()
    with pytest.raises(ConfigurationError, match=rf"^Own.{hook} must leave run.params as it is, but writes to it"):
        trainer(own, rounds=2).fit(FederatedOrchestrator(TinyClassifier()), datamodule=TinyData(batch_size=4))


def test_no_callback_changes_the_model_between_two_clients() -> None:
    """Between two rounds it may, as those that average models do."""

    class Adds(Callback):
        def __init__(self, hook: str) -> None:
            setattr(self, hook, self.add)

        def add(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            with torch.no_grad():
                next(pl_module.client.parameters()).add_(1)

    def run(hook: str) -> FederatedOrchestrator:
        orchestrator = FederatedOrchestrator(TinyClassifier())
        trainer(Adds(hook), rounds=2).fit(orchestrator, datamodule=TinyData(batch_size=4))
        return orchestrator

    assert run("on_train_epoch_start").rounds_done == 2
    with pytest.raises(ConfigurationError, match=r"^round 1: the global model has changed before client 1 begins"):
        run("on_train_batch_end")


@pytest.mark.parametrize("at_once", [1, 6])
@pytest.mark.parametrize("hook", ["on_before_client_step", "on_after_client_step", "on_client_end"])
def test_the_model_that_a_client_starts_from_is_not_written(hook: str, at_once: int) -> None:
    """The anchor is that of all clients of the round: the next client would start elsewhere."""

    def touches(self: Any, *args: Any) -> None:
        args[-1].anchor.add_(1)

    with pytest.raises(ConfigurationError, match=rf"^Own.{hook} must leave run.anchor as it is"):
        fit(hook, touches, at_once=at_once)


def test_evaluations_elsewhere_are_no_writes() -> None:
    """``orchestrator.at`` puts the model back."""

    def looks(self: Any, server: Any, cohort: Any) -> Any:
        with server.at(cohort.anchor + 1):
            server.params.norm()
        return cohort

    assert fit("aggregate", looks).rounds_done == 1


def test_a_start_at_the_live_parameters_is_a_start_at_the_global_model() -> None:
    """Clients move from 0 to (-1, 2) and to (3, 0), whose mean is (1, 1); else ``run.anchor`` would move along."""
    rule = type("Own", (FederatedCallback,), {"start": lambda self, o, client, params, buffers: (o.params, buffers)})()
    rows = torch.tensor([[1.0, -2.0], [-3.0, 0.0]], dtype=torch.float64)
    orchestrator = FederatedOrchestrator(Linear(2, 1.0))
    trainer(rule).fit(orchestrator, datamodule=GivenData(rows))
    np.testing.assert_allclose(orchestrator.params.numpy(), -rows.numpy().mean(0))


def test_an_error_in_start_is_the_rules() -> None:
    def fails(self: Any, server: Any, client: int, params: Any, buffers: Any) -> Any:
        raise KeyError("gone")

    fails.__name__ = "start"
    with pytest.raises(RuleError, match=r"^round 1: Own.start raises KeyError on client 0: 'gone'"):
        fit("start", fails)


def test_an_error_in_a_second_training_is_the_rules() -> None:
    def fails(again: Any) -> None:
        raise KeyError("gone")

    def again(self: Any, server: Any, run: Any) -> None:
        server.train_again(run, run.anchor, fails)

    with pytest.raises(RuleError, match=r"^round 1: test_an_error.*fails raises KeyError on client 0"):
        fit("on_client_end", again)
