"""compile_clients: groups of clients end where uncompiled ones end, but for rounding; and what is not compiled."""

import warnings
from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import SEEN, Capture, close, trainer
from torch import Tensor, nn

from fl_lightning import Cohort, ConfigurationError, FederatedCallback, FederatedOrchestrator, Server
from fl_lightning.callbacks import FedProx


class Weighs(TinyClassifier):
    """A loss with weights in an attribute and in a dict, which a callback changes; it logs both losses."""

    def __init__(self) -> None:
        super().__init__()
        self.beta, self.hyper = 1.0, {"decay": 0.0}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = super().training_step(batch, batch_idx)
        penalty = sum(each.square().sum() for each in self.net.parameters())
        self.log("train/own", outputs["loss"])
        self.log("train/penalty", penalty)
        return {**outputs, "loss": self.beta * outputs["loss"] + self.hyper["decay"] * penalty}


class Anneals(FederatedCallback):
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        module: Any = orchestrator.client
        module.beta, module.hyper["decay"] = 1 / (1 + cohort.round), 0.01 * cohort.round


def run(make: Any, *rules: Any, compiled: bool, rounds: int = 3) -> tuple[Tensor, list[Any]]:
    orchestrator = FederatedOrchestrator(make(), clients_at_once=6, compile_clients=compiled, on_bad_update="raise")
    watched = Capture()
    trainer(*(rule() for rule in rules), watched, rounds=rounds).fit(orchestrator, datamodule=TinyData(batch_size=4))
    assert SEEN[orchestrator].at_once
    assert SEEN[orchestrator].compiled == compiled
    return orchestrator.params.clone(), [cohort.metrics for cohort in watched.cohorts]


@pytest.mark.slow
@pytest.mark.parametrize("rules", [(Anneals,), (Anneals, lambda: FedProx(0.1))], ids=["plain", "FedProx"])
def test_compiled_clients_end_where_others_end(rules: Any) -> None:
    """Numbers in attributes and dicts that change between rounds count; a second run ends at the same bits."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="compile_clients")
        (plain, logged), *others = (run(Weighs, *rules, compiled=compiled) for compiled in (False, True, True))
    assert all(close(params, plain) for params, _ in others)
    assert torch.equal(others[0][0], others[1][0])
    for metrics in others[0][1]:
        assert metrics == pytest.approx(logged.pop(0))


class Plain(Weighs):
    """Without BatchNorm, so that clients of different sizes share one call a step."""

    def __init__(self) -> None:
        super().__init__()
        self.net[0] = nn.Tanh()


@pytest.mark.slow
def test_compiled_clients_of_different_sizes_end_where_others_end() -> None:
    """The rows of clients that are done go on in a compiled step, and count nothing."""
    (plain, logged), (compiled, other) = (run(Plain, compiled=compiled) for compiled in (False, True))
    assert close(compiled, plain)
    for one, two in zip(logged, other, strict=True):
        assert one == pytest.approx(two)


class Drops(TinyClassifier):
    """With dropout."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step([nn.functional.dropout(batch[0], 0.5), batch[1]], batch_idx)


@pytest.mark.slow
def test_compiled_steps_draw_the_numbers_that_others_draw() -> None:
    (plain, _), (compiled, _) = (run(Drops, compiled=compiled, rounds=1) for compiled in (False, True))
    assert close(compiled, plain)


def test_where_the_compiler_fails_steps_run_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(function: Any, **_: Any) -> Any:
        def fails(*_: Any) -> Any:
            raise RuntimeError("no C++ compiler\nfound")

        return fails

    plain, _ = run(TinyClassifier, compiled=False)
    monkeypatch.setattr(torch, "compile", compile)
    orchestrator = FederatedOrchestrator(TinyClassifier(), clients_at_once=6, compile_clients=True)
    with pytest.warns(UserWarning, match=r"compile_clients: steps run uncompiled, since no C\+\+ compiler found"):
        trainer(rounds=3).fit(orchestrator, datamodule=TinyData(batch_size=4))
    assert torch.equal(orchestrator.params, plain)


def test_compilation_needs_clients_at_once() -> None:
    with pytest.raises(ConfigurationError, match="compile_clients compiles clients that train at once"):
        FederatedOrchestrator(TinyClassifier(), compile_clients=True)
