"""The comparison that guards groups: what it finds, when, and that it changes nothing."""

from typing import Any

import pytest
import torch
from lib.rules import CLIENT_RULES, TinyClassifier, TinyData
from lib.toy import SEEN, trainer
from torch import Tensor, nn

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun
from fl_lightning.callbacks import FedAvg
from fl_lightning.engine.training.in_lockstep import trial
from fl_lightning.engine.training.outcome import Outcome
from fl_lightning.engine.updates.cohort import ClientResult


class Drops(TinyClassifier):
    """With dropout."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step([nn.functional.dropout(batch[0], 0.5), batch[1]], batch_idx)


def fit(make: Any, *rules: Any, rounds: int = 3, **settings: Any) -> FederatedOrchestrator:
    made = FederatedOrchestrator(make(), clients_at_once=6, on_bad_update="raise", **settings)
    trainer(*rules, rounds=rounds).fit(made, datamodule=TinyData(batch_size=4))
    return made


@pytest.mark.parametrize("name", ["none", *(name for name, make in CLIENT_RULES.items() if make().stacks)])
def test_a_comparison_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it fail where a step draws, or a rule keeps tensors for a client."""
    rule = CLIENT_RULES.get(name, FedAvg)
    with_comparison = fit(Drops, rule())
    assert SEEN[with_comparison].at_once
    assert SEEN[with_comparison].tried == 2  # rounds 1, 2, 4, 8, …
    # Clients that draw are not evaluated example by example, as the comparison has found.
    monkeypatch.setattr(trial.Trial, "obstacle", lambda self, pads, later: "draws" if pads else None)
    assert torch.equal(fit(Drops, rule()).params, with_comparison.params)


class Later(TinyClassifier):
    """From round 4 on, the loss is weighted by values of the global model, which a stack reads in place of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = [next(self.net.parameters())]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = super().training_step(batch, batch_idx)
        late = self.trainer.lightning_module.round >= 4  # type: ignore[operator]  # the orchestrator's
        weight = 1 + self.first[0].detach().square().sum() if late else 1.0
        return {**outputs, "loss": outputs["loss"] * weight}


def test_a_difference_after_rounds_at_once_stops_the_run() -> None:
    message = r"^round 4: clients can no longer train at once, since what a client of Later sends differs by .*"
    with pytest.raises(ConfigurationError, match=message + "start again with model.clients_at_once: 1$"):
        fit(Later, rounds=4)


class Fails(FederatedCallback):
    """Every client but one fails on purpose, also in the comparison."""

    stacks = True

    def on_client_end(self, orchestrator: Any, run: LocalRun) -> None:
        if run.client != 2:
            run.params.fill_(float("nan"))


@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_client_that_fails_is_not_the_one_compared() -> None:
    made = FederatedOrchestrator(TinyClassifier(), clients_at_once=6)
    trainer(Fails(), rounds=1).fit(made, datamodule=TinyData(batch_size=4))
    assert SEEN[made].tried == 1
    assert SEEN[made].at_once


def outcome(update: Tensor, steps: int = 1, **vectors: Tensor) -> Outcome:
    return Outcome(update, ClientResult(0, num_samples=1, num_steps=steps, loss=2.0, normalizer=1.0, vectors=vectors))


def test_the_distance_of_outcomes() -> None:
    """Of (3, 4) and (3, 3): 1/5. Of vectors (1) and (2): 1/2. Other steps or names cannot be compared."""
    one, other = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0])
    assert outcome(one).distance(outcome(one)) == 0.0
    assert outcome(one).distance(outcome(other)) == pytest.approx(0.2)
    assert outcome(one, c=torch.ones(1)).distance(outcome(other, c=2 * torch.ones(1))) == pytest.approx(0.5)
    assert outcome(one).distance(outcome(one, steps=2)) == outcome(one).distance(outcome(one, c=one)) == float("inf")
    assert outcome(0 * one).distance(outcome(0 * one)) == 0.0


@pytest.mark.parametrize("values", [torch.tensor([36]), torch.tensor([True]), torch.tensor([1.0, float("nan")])])
def test_integers_are_equal_or_infinitely_apart(values: Tensor) -> None:
    """Rounding changes no count; what is missing in both outcomes is the same."""
    update = torch.ones(1)
    one, same, other = (Outcome(update, sent(buffer)) for buffer in (values, values.clone(), torch.zeros_like(values)))
    assert one.distance(same) == 0.0
    assert one.distance(other) == float("inf")


def sent(buffer: Tensor) -> ClientResult:
    return ClientResult(0, num_samples=1, num_steps=1, loss=2.0, normalizer=1.0, buffers=[buffer])


class Single(TinyClassifier):
    """In float32."""

    def __init__(self) -> None:
        super().__init__()
        self.float()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step([batch[0].float(), batch[1]], batch_idx)


def test_what_a_rounding_error_in_the_start_makes_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every difference has to be measured by that; without the margin, the rounding of float32 is one."""
    monkeypatch.setattr(trial, "SURE", 2.0)
    assert SEEN[fit(Single, rounds=1, local_epochs=3)].at_once
    monkeypatch.setattr(trial, "MARGIN", 0.0)
    with pytest.warns(UserWarning, match="what a client of Single sends differs by"):
        assert not SEEN[fit(Single, rounds=1, local_epochs=3)].at_once
