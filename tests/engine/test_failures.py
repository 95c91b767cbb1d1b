"""Whose failure an error is: a client's, which is left out, or a rule's or the module's, which stops the run."""

import logging
import warnings
from typing import Any

import pytest
import torch
from rules import TinyClassifier, TinyData
from toy import Net, Quadratic, ToyData, trainer

from fl_lightning import ClientFailure, ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun, Monitor
from fl_lightning.engine.module.failures import RuleError


class AtStart(FederatedCallback):
    def on_client_start(self, orchestrator: Any, run: LocalRun) -> None:
        if run.client == 3:
            run.undefined_name  # type: ignore[attr-defined]  # noqa: B018


class Loss(FederatedCallback):
    def loss(self, run: LocalRun, batch: Any, outputs: Any, loss: Any) -> Any:
        return loss if run.client != 3 else run.undefined_name  # type: ignore[attr-defined]


class MakesClosure(FederatedCallback):
    def closure(self, run: LocalRun, closure: Any) -> Any:
        return closure if run.client != 3 else run.undefined_name  # type: ignore[attr-defined]


class Closure(FederatedCallback):
    def closure(self, run: LocalRun, closure: Any) -> Any:
        def again() -> Any:
            return closure() if run.client != 3 else run.undefined_name  # type: ignore[attr-defined]

        return again


class BeforeStep(FederatedCallback):
    def on_before_client_step(self, run: LocalRun) -> None:
        if run.client == 3:
            run.undefined_name  # type: ignore[attr-defined]  # noqa: B018


class AfterStep(FederatedCallback):
    def on_after_client_step(self, run: LocalRun) -> None:
        if run.client == 3:
            run.undefined_name  # type: ignore[attr-defined]  # noqa: B018


class AtEnd(Monitor):
    def on_client_end(self, orchestrator: Any, run: LocalRun) -> None:
        if run.client == 3:
            run.undefined_name  # type: ignore[attr-defined]  # noqa: B018


HOOKS: dict[type[FederatedCallback], str] = {
    AtStart: "on_client_start",
    Loss: "loss",
    MakesClosure: "closure",
    Closure: "closure",
    BeforeStep: "on_before_client_step",
    AfterStep: "on_after_client_step",
    AtEnd: "on_client_end",
}


@pytest.mark.parametrize("make", HOOKS)
def test_an_error_in_a_hook_stops_the_run_and_names_hook_and_client(make: type[FederatedCallback]) -> None:
    """Whatever ``on_bad_update`` says, which is about clients."""
    message = f"round 1: {make.__name__}.{HOOKS[make]} raises AttributeError on client 3: .*undefined_name"
    with pytest.raises(RuleError, match=message):
        trainer(make()).fit(FederatedOrchestrator(TinyClassifier()), datamodule=TinyData(batch_size=4))


def test_an_error_in_a_hook_of_a_group_names_the_client() -> None:
    class Stacks(AtStart):
        stacks = True

    with pytest.raises(RuleError, match=r"Stacks.on_client_start raises AttributeError on client 3"):
        trainer(Stacks()).fit(
            FederatedOrchestrator(TinyClassifier(), clients_at_once=6), datamodule=TinyData(batch_size=4)
        )


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
        return [torch.nn.Linear(8, 1 << 13), torch.nn.Linear(1 << 13, 8)]


@pytest.mark.parametrize(
    ("make", "settings", "line"),
    [
        (TinyClassifier, {}, "6 clients train at once"),
        (TinyClassifier, {"precision": "64-true"}, "clients train one after another, since precision is 64-true"),
        (
            lambda: Large().double(),
            {},
            r"clients train one after another, since Large has 139,339 trainable parameters",
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
