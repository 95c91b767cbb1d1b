"""A client's settings, hooks, its optimizers: as ``Trainer.fit`` has them. test_any_module.py compares modules
of all kinds; here are accumulation and clipping, counts of steps, the order of hooks, and what is refused.
"""

import gc
import re
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lib.toy import Net, Same, trainer
from lightning.pytorch import LightningModule
from zoo.manual import AccumulatesItself, Manual
from zoo.networks import FrozenBackbone, NormDropout, Tied
from zoo.optimizers import LeavesEarly, OwnHooks, ReadsTrainer, SkipsBatches, TwoSchedules, WarmUp
from zoo.runs import alone, as_client, differences, ends_where_the_trainer_does, state_of
from zoo.table import Row

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun, Server

CLIP: Any = {"gradient_clip_val": 0.05}


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_gradient_clipping(algorithm: str) -> None:
    _, ends = ends_where_the_trainer_does(Row(Net), {**CLIP, "gradient_clip_algorithm": algorithm})
    assert differences(ends.states[0], state_of(alone(Row(Net))[0]))


@pytest.mark.parametrize("accumulate", [2, 7])
@pytest.mark.parametrize("make", [Net, TwoSchedules, NormDropout, SkipsBatches, OwnHooks, ReadsTrainer])
def test_accumulation(make: type[Net], accumulate: int) -> None:
    """Three batches: groups of 2 and 1; and one of 3 that never fills up."""
    ends_where_the_trainer_does(Row(make), {"accumulate_grad_batches": accumulate})


STEPS = [(Net, 1, 6), (Net, 2, 4), (Net, 7, 2), (SkipsBatches, 1, 4), (SkipsBatches, 2, 2), (WarmUp, 1, 4)]
STEPS += [(LeavesEarly, 1, 4), (AccumulatesItself, 1, 4)]


@pytest.mark.parametrize(("make", "accumulate", "steps"), STEPS)
def test_counts_the_steps_taken(make: type[Net], accumulate: int, steps: int) -> None:
    """Two epochs of three batches. SkipsBatches returns None for the third: of the groups (0, 1), (2) the last has no
    gradient. WarmUp does not step on batch 1; LeavesEarly ends its epochs before batch 2.
    """
    ends = as_client(Row(make), settings={"accumulate_grad_batches": accumulate})[1]
    assert ends.runs[0].num_steps == steps


def recorder(base: type[Net]) -> type[Net]:
    """``base`` with every on_train_*, on_before_* and on_after_* hook overridden to record its name."""

    def record(name: str) -> Callable[..., None]:
        def hook(self: Net, *args: Any) -> None:
            self.seen.append((name, args[-1] if "batch" in name else None))

        return hook

    prefixes = "on_train_", "on_before_zero", "on_before_backward", "on_before_optimizer", "on_after_backward"
    names = [name for name in dir(LightningModule) if name.startswith(prefixes)]
    assert len(names) == 10
    return type(f"Recorded{base.__name__}", (base,), {name: record(name) for name in names})


@pytest.mark.parametrize(
    ("base", "accumulate"),
    [(Net, 1), (Net, 2), (TwoSchedules, 1), (SkipsBatches, 1), (SkipsBatches, 2), (Manual, 1), (WarmUp, 1)],
)
def test_hooks_run_in_the_same_order(base: type[Net], accumulate: int) -> None:
    ends_where_the_trainer_does(Row(recorder(base)), {"accumulate_grad_batches": accumulate})


def test_hooks_of_manual_optimization_run_in_the_same_order() -> None:
    ends_where_the_trainer_does(Row(recorder(Manual)))


def test_frozen_unused_and_tied_parameters() -> None:
    """Of FrozenBackbone, net (40 + 27) and unused (6) make the vector; no gradient reaches unused, so that even weight
    decay leaves it alone. Tied: 16 + 4 + 4 + 15, the shared 16 once.
    """
    (client, ends, _), start = as_client(Row(FrozenBackbone)), FrozenBackbone()
    assert ends.params[0].shape == (40 + 27 + 6,)
    for name in ("backbone.0.weight", "unused.weight", "unused.bias"):
        assert torch.equal(client.get_parameter(name), start.get_parameter(name))
    client, ends, _ = as_client(Row(Tied))
    assert ends.params[0].shape == (16 + 4 + 4 + 15,)
    assert client.net[0].weight is client.net[2].weight


class Plateau(Net):
    """No loss is good enough for this schedule: it divides the rate by 10 after ``patience`` + 1 epochs."""

    patience = 1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("train/loss", 1e9)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, patience=self.patience, threshold=-1e12, min_lr=0)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": schedule, "monitor": "train/loss"}}


class Patient(Plateau):
    patience = 2


def test_a_plateau_that_a_client_never_reaches() -> None:
    """A patience of 2 outlasts 2 local epochs, so that the Trainer changes no rate, either."""
    with pytest.warns(
        UserWarning, match=r"ReduceLROnPlateau of Patient changes no learning rate: its patience of 2 .*2 epochs"
    ):
        ends_where_the_trainer_does(Row(Patient))
    with pytest.raises(ConfigurationError, match=r"patience of 2.* 5 epochs .*a patience of at least 5"):
        as_client(Row(Patient), 5)


class Steps(Net):
    """A rate that falls by a schedule of the module's own, as Lightning steps it."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = config

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=0.1)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(sgd, 1), **self.config}}


@pytest.mark.parametrize(
    ("config", "work", "told"),
    [
        ({}, {"local_epochs": 1}, "StepLR .* no learning rate: it begins anew .* one step after each epoch, .* has 1;"),
        (
            {"frequency": 2},
            {"local_epochs": 1.5},
            "one step after 2 epochs, and a client's round has 1.5; .*_scheduler",
        ),
        ({}, {"local_epochs": 1.5}, None),
        ({"frequency": 2}, {"local_epochs": 3}, None),
        ({"interval": "step"}, {"local_epochs": 1}, None),
        ({}, {"local_steps": 1}, None),
    ],
)
def test_a_schedule_that_goes_by_epochs_in_a_round_of_one(config: Any, work: Any, told: str | None) -> None:
    """Said once, not in each of three rounds."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(rounds=3).fit(FederatedOrchestrator(Steps(**config), **work), datamodule=Same())
    said = [str(warning.message) for warning in caught if "no learning rate" in str(warning.message)]
    assert len(said) == (told is not None)
    assert told is None or re.search(told, said[0])


class NoOptimizer(Net):
    def configure_optimizers(self) -> Any:
        return None


class TwoAutomatic(Net):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.net[0], self.net[2])]


class Detached(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.loss(batch).detach()}


class Uncounted(Net):
    mean_over = "pixels"


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (Plateau, {}, "Plateau.configure_optimizers returns ReduceLROnPlateau with a patience of 1"),
        (NoOptimizer, {}, "NoOptimizer.configure_optimizers must return an optimizer, got None"),
        (TwoAutomatic, {}, "TwoAutomatic.configure_optimizers returns 2 optimizers: automatic optimization takes one"),
        (Detached, {}, "Detached.training_step must return a loss that depends on the parameters"),
        (lambda: Net().half(), {}, r"Net must have .* float32 or float64, got \['torch.float16'\]"),
        (Manual, CLIP, "Manual"),
        (Manual, {"accumulate_grad_batches": 2}, "Manual"),
        (Uncounted, {"accumulate_grad_batches": 2}, "Uncounted.mean_over names 'pixels', but training_step returns no"),
    ],
    ids=["plateau", "none", "two", "detached", "half", "manual clipping", "manual accumulation", "uncounted"],
)
def test_refused_by_name(make: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        as_client(Row(make), settings=settings)


class Leftovers(FederatedCallback):
    """Notes how many runs and optimizers of earlier rounds are still in memory when a client starts."""

    def __init__(self) -> None:
        self.references: list[weakref.ref[Any]] = []
        self.alive: list[int] = []

    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        self.alive.append(sum(reference() is not None for reference in self.references))
        self.references += [weakref.ref(each) for each in (run, *run.optimizers)]


@pytest.mark.parametrize("make", [Net, TwoSchedules, WarmUp, Manual])
def test_a_client_leaves_nothing_to_the_garbage_collector(make: Callable[[], Net]) -> None:
    """An optimizer's momentum is as large as the model: it must go with its client, not when Python next looks."""
    leftovers, orchestrator = Leftovers(), FederatedOrchestrator(make(), on_bad_update="raise")
    gc.disable()
    try:
        trainer(leftovers, rounds=3).fit(orchestrator, datamodule=Same())
    finally:
        gc.enable()
    assert leftovers.alive == [0, 0, 0]
