"""Whose failure an error is: a client's, which is left out, or a rule's or the module's, which stops the run."""

import logging
import warnings
from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import Net, Quadratic, ToyData, trainer

from fl_lightning import ClientFailure, ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun, Monitor
from fl_lightning.engine.module.failures import RuleError

HOOKS = ["on_client_start", "loss", "closure", "on_before_client_step", "on_after_client_step", "on_client_end"]


def rule_with(hook: str, base: type[FederatedCallback] = FederatedCallback) -> FederatedCallback:
    """A rule whose hook raises on client 3."""

    def fails(self: Any, *args: Any) -> Any:
        run = next(each for each in args if isinstance(each, LocalRun))
        return args[-1] if run.client != 3 else run.undefined_name  # type: ignore[attr-defined]

    fails.__name__ = hook
    return type("Own", (base,), {hook: fails, "stacks": True})()


class Closure(FederatedCallback):
    """Raises when its closure is called."""

    def closure(self, run: LocalRun, closure: Any) -> Any:
        return lambda: closure() if run.client != 3 else run.undefined_name  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("rule", "hook"),
    [*((rule_with(hook), hook) for hook in HOOKS), (Closure(), "closure"), (rule_with("on_client_end", Monitor), "on")],
)
def test_an_error_in_a_hook_stops_the_run_and_names_hook_and_client(rule: FederatedCallback, hook: str) -> None:
    """Whatever ``on_bad_update`` says, which is about clients."""
    message = rf"round 1: {type(rule).__name__}.{hook}\w* raises AttributeError on client 3: .*undefined_name"
    with pytest.raises(RuleError, match=message):
        trainer(rule).fit(FederatedOrchestrator(TinyClassifier()), datamodule=TinyData(batch_size=4))


def test_an_error_in_a_hook_of_a_group_names_the_client() -> None:
    orchestrator = FederatedOrchestrator(TinyClassifier(), clients_at_once=6)
    with pytest.raises(RuleError, match=r"Own.on_client_start raises AttributeError on client 3"):
        trainer(rule_with("on_client_start")).fit(orchestrator, datamodule=TinyData(batch_size=4))


class Twice(FederatedCallback):
    """Evaluates each batch twice."""

    def closure(self, run: LocalRun, closure: Any) -> Any:
        def again() -> Any:
            closure()
            return closure()

        return again


class Breaks(TinyClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if len(batch[0]) < 4:
            raise ValueError("a small batch")
        return super().training_step(batch, batch_idx)


def test_an_error_of_the_module_inside_a_rules_closure_is_the_clients() -> None:
    with pytest.warns(UserWarning, match=r"client \d is left out: ValueError: a small batch"):
        trainer(Twice()).fit(FederatedOrchestrator(Breaks()), datamodule=TinyData(batch_size=4))


class OnPurpose(FederatedCallback):
    def on_client_end(self, orchestrator: Any, run: LocalRun) -> None:
        if run.client == 0:
            raise ClientFailure("lost its connection")


def test_a_hook_lets_a_client_fail_on_purpose() -> None:
    with pytest.warns(UserWarning, match=r"round 1: client 0 is left out: ClientFailure: lost its connection"):
        trainer(OnPurpose()).fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())


class AllFail(Quadratic):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise ValueError("no such column")


def test_an_error_that_every_client_raises_is_one_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(
            RuntimeError, match=r"client 0 is left out: ValueError: no such column.*; so is every other"
        ):
            trainer().fit(FederatedOrchestrator(AllFail()), datamodule=ToyData())
    assert not [each for each in caught if "left out" in str(each.message)]


class NoOptimizer(Quadratic):
    def configure_optimizers(self) -> Any:
        return []


def test_no_optimizer_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"NoOptimizer.configure_optimizers must return an optimizer, got none"
    ):
        trainer().fit(FederatedOrchestrator(NoOptimizer()), datamodule=ToyData())


class Large(Net):
    def between(self) -> list[Any]:
        return [torch.nn.Linear(8, 1 << 16), torch.nn.Linear(1 << 16, 8)]


@pytest.mark.parametrize(
    ("make", "settings", "line"),
    [
        (TinyClassifier, {}, "6 clients train at once"),
        (TinyClassifier, {"precision": "64-true"}, "clients train one after another, since precision is 64-true"),
        (
            lambda: Large().double(),
            {},
            r"clients train one after another, since Large has 1,114,187 trainable parameters",
        ),
    ],
    ids=["at once", "64-true", "large"],
)
def test_auto_says_which_way_it_takes(make: Any, settings: Any, line: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        orchestrator = FederatedOrchestrator(make(), clients_at_once="auto")
        trainer(**settings).fit(orchestrator, datamodule=TinyData(batch_size=4))
    said = [record.getMessage() for record in caplog.records if "clients_at_once" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"clients_at_once: {line}")
