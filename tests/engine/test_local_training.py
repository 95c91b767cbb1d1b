"""LocalRun against lightning.Trainer: the same module on the same batches ends in bit-identical weights and buffers."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from toy import Capture, Net, Same, alone, as_client, trainer

from fl_lightning import ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun, Server


class Scheduled(Net):
    def configure_optimizers(self) -> Any:
        adam = torch.optim.Adam(self.parameters(), lr=0.05)
        by_step = torch.optim.lr_scheduler.ExponentialLR(adam, 0.9)
        by_epoch = torch.optim.lr_scheduler.StepLR(adam, 1, 0.5)
        return [adam], [{"scheduler": by_step, "interval": "step", "frequency": 2}, by_epoch]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]


class EveryStep(Net):
    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class NormDropout(Net):
    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)]

    def on_train_start(self) -> None:
        torch.manual_seed(7)


class LBFGS(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)


class Manual(Net):
    """Two optimizers that take turns, one schedule, gradients clipped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        first, second = self.optimizers()  # type: ignore[misc]
        optimizer = first if batch_idx % 2 else second
        self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        self.clip_gradients(optimizer, 0.1, "norm")
        optimizer.step()
        self.untoggle_optimizer(optimizer)
        self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]
        return {"loss": loss, "size": len(batch[1])} if batch_idx else None

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.net[0].parameters(), lr=0.5, momentum=0.9)
        second = torch.optim.Adam(self.net[2].parameters(), lr=0.01)
        return [first, second], [torch.optim.lr_scheduler.ExponentialLR(first, 0.9)]


class ManualWithoutLoss(Manual):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx)
        return {"size": len(batch[1])}


class ReturnsDict(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.loss(batch), "size": len(batch[1])}


class NoIndex(Net):
    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return self.loss(batch)


class WarmUp(Net):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 * (batch_idx + 1) / 5
        if batch_idx == 3:
            optimizer_closure()
        else:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)


class SkipsSome(Net):
    skipped: tuple[int, ...] = (1, 4)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx in self.skipped else self.loss(batch)


class StopsEarly(Scheduled):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1 if batch_idx == 3 else None


class OwnHooks(Scheduled):
    """Overrides what turns a loss into a step."""

    def backward(self, loss: Tensor) -> None:
        (2 * loss).backward()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for parameter in self.net[0].parameters():
            if parameter.grad is not None:
                parameter.grad *= 3

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any, gradient_clip_algorithm: Any) -> None:  # type: ignore[override]
        self.clip_gradients(optimizer, gradient_clip_val=0.2, gradient_clip_algorithm="value")

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step()
        scheduler.step()


class ManualOwnHooks(Manual):
    backward = OwnHooks.backward
    on_before_optimizer_step = OwnHooks.on_before_optimizer_step


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
        self.net[2].weight = self.net[0].weight  # type: ignore[union-attr, assignment]


class Frozen(Net):
    """One layer frozen, one that no batch reaches, which weight decay must leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.net[0].requires_grad_(False)


class Projects(Net):
    """Replaces a parameter's storage, as p.data = … does."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for parameter in self.parameters():
            parameter.data = parameter.data.clamp(-0.3, 0.3)


def assert_same(make: Callable[[], Net], module: Net, client: Any, capture: Capture) -> None:
    trained = [p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]
    start = torch.cat([p.detach().reshape(-1) for p in make().parameters() if p.requires_grad])
    end = torch.cat(trained)
    assert not torch.equal(end, start)
    assert float((capture.params[0] - end).abs().max()) == 0.0
    for name, buffer in module.named_buffers():
        assert torch.equal(capture.buffers[0][name], buffer)
    assert client.seen == module.seen


ALL = [Net, Scheduled, EveryStep, NormDropout, LBFGS, ReturnsDict, NoIndex, WarmUp, SkipsSome, StopsEarly]
ALL += [OwnHooks, Tied, Frozen, Manual, ManualWithoutLoss, ManualOwnHooks, Projects]


@pytest.mark.parametrize("make", ALL)
def test_ends_where_the_trainer_does(make: Callable[[], Net]) -> None:
    assert_same(make, alone(make, 3), *as_client(make, 3))


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_gradient_clipping(algorithm: Any) -> None:
    settings: Any = {"gradient_clip_val": 0.05, "gradient_clip_algorithm": algorithm}
    module = alone(Net, **settings)
    assert_same(Net, module, *as_client(Net, **settings))
    assert not torch.equal(module.net[0].weight, alone(Net).net[0].weight)


@pytest.mark.parametrize("accumulate", [2, 3, 7])
@pytest.mark.parametrize("make", [Net, EveryStep, NormDropout, SkipsSome, OwnHooks])
def test_accumulation(make: Callable[[], Net], accumulate: int) -> None:
    """Five batches: groups of 2, 2, 1; of 3, 2; and one of 5 that never fills up."""
    settings: Any = {"accumulate_grad_batches": accumulate}
    client, capture = as_client(make, **settings)
    assert_same(make, alone(make, **settings), client, capture)


@pytest.mark.parametrize(
    ("make", "accumulate", "steps"),
    [(Net, 1, 10), (Net, 2, 6), (Net, 7, 2), (SkipsSome, 1, 6), (SkipsSome, 2, 4), (WarmUp, 1, 8), (StopsEarly, 1, 6)],
)
def test_counts_the_steps_taken(make: Callable[[], Net], accumulate: int, steps: int) -> None:
    """Two epochs of five batches. SkipsSome returns None for batches 1 and 4: of the groups (0, 1), (2, 3), (4) only
    the last has no gradient. WarmUp does not step on batch 3; StopsEarly ends its epochs before batch 3.
    """
    assert as_client(make, accumulate_grad_batches=accumulate)[1].runs[0].num_steps == steps


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
    ("base", "accumulate"), [(Net, 1), (Net, 2), (EveryStep, 1), (SkipsSome, 1), (SkipsSome, 2), (Manual, 1)]
)
def test_hooks_run_in_the_same_order(base: type[Net], accumulate: int) -> None:
    make = recorder(base)
    settings: Any = {"accumulate_grad_batches": accumulate}
    assert_same(make, alone(make, **settings), *as_client(make, **settings))


@pytest.mark.parametrize("base", [Net, ReturnsDict, SkipsSome, Manual])
def test_batch_end_sees_the_outputs_that_the_trainer_shows(base: type[Net]) -> None:
    """Always a dict: {"loss": …} for a tensor, {} for None, without a graph."""

    class Watches(base):  # type: ignore[valid-type, misc]
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.seen.append({name: float(value) for name, value in outputs.items()})
            assert not any(isinstance(value, Tensor) and value.requires_grad for value in outputs.values())

    assert_same(Watches, alone(Watches), *as_client(Watches))


def test_frozen_unused_and_tied_parameters() -> None:
    """Frozen: net.0 (40) stays outside the vector of net.2 (27) and unused (6), which no gradient reaches, so that even
    weight decay leaves it alone. Tied: 16 + 4 + 4 + 15, the shared 16 once.
    """
    (client, capture), start = as_client(Frozen), Frozen()
    assert capture.params[0].shape == (27 + 6,)
    for name in ("net.0.weight", "net.0.bias", "unused.weight", "unused.bias"):
        assert torch.equal(client.get_parameter(name), start.get_parameter(name))
    client, capture = as_client(Tied)
    assert capture.params[0].shape == (16 + 4 + 4 + 15,)
    assert client.net[0].weight is client.net[2].weight


class Plateau(Net):
    """No loss is good enough for this schedule: it divides the rate by 10 after ``patience`` + 1 steps."""

    patience = 1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("train/loss", 1e9)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, patience=self.patience, threshold=-1e12, min_lr=0)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": schedule, "monitor": "train/loss"}}


class Patient(Plateau):
    patience = 3


def test_a_plateau_that_a_client_never_reaches() -> None:
    """A patience of 3 outlasts 3 local epochs, so that the Trainer changes no rate, either; it does in the fifth."""
    with pytest.warns(
        UserWarning, match=r"ReduceLROnPlateau of Patient changes no learning rate: its patience of 3 .*3 epochs"
    ):
        trained = as_client(Patient, 3)
    assert_same(Patient, alone(Patient, 3), *trained)
    with pytest.raises(ConfigurationError, match=r"patience of 3.* 5 epochs .*a patience of at least 5"):
        as_client(Patient, 5)


class NoOptimizer(Net):
    def configure_optimizers(self) -> Any:
        return None


class TwoAutomatic(Net):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.net[0], self.net[2])]


class Detached(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": self.loss(batch).detach()}


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (Plateau, {}, "Plateau.configure_optimizers returns ReduceLROnPlateau with a patience of 1"),
        (NoOptimizer, {}, "NoOptimizer.configure_optimizers must return an optimizer, got None"),
        (TwoAutomatic, {}, "TwoAutomatic"),
        (Detached, {}, "Detached.training_step must return a loss that depends on the parameters"),
        (lambda: Net().half(), {}, r"Net must have .* float32 or float64, got \['torch.float16'\]"),
        (lambda: Net().bfloat16(), {}, r"Net must have .* float32 or float64, got \['torch.bfloat16'\]"),
        (Manual, {"gradient_clip_val": 1.0}, "Manual"),
        (Manual, {"accumulate_grad_batches": 2}, "Manual"),
    ],
    ids=["plateau", "none", "two", "detached", "half", "bfloat16", "manual clipping", "manual accumulation"],
)
def test_refused_by_name(make: Callable[[], Net], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        as_client(make, **settings)


class Leftovers(FederatedCallback):
    """Notes how many runs and optimizers of earlier rounds are still in memory when a client starts."""

    def __init__(self) -> None:
        self.references: list[weakref.ref[Any]] = []
        self.alive: list[int] = []

    def on_client_start(self, orchestrator: Server, run: LocalRun) -> None:
        self.alive.append(sum(reference() is not None for reference in self.references))
        self.references += [weakref.ref(each) for each in (run, *run.optimizers)]


@pytest.mark.parametrize("make", [Net, Scheduled, WarmUp, Manual, ManualOwnHooks])
def test_a_client_leaves_nothing_to_the_garbage_collector(make: Callable[[], Net]) -> None:
    """An optimizer's momentum is as large as the model: it must go with its client, not when Python next looks."""
    leftovers, orchestrator = Leftovers(), FederatedOrchestrator(make(), on_bad_update="raise")
    gc.disable()
    try:
        trainer(leftovers, rounds=3).fit(orchestrator, datamodule=Same())
    finally:
        gc.enable()
    assert leftovers.alive == [0, 0, 0]
