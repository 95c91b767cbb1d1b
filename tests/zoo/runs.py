"""The ways in which the table's rows are trained, and what they end with, to the bit."""

from collections.abc import Callable, Iterator
from functools import cache, wraps
from math import ceil
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from toy import trainer

from fl_lightning import FederatedCallback, FederatedOrchestrator, LocalRun
from fl_lightning.seeding import derive, generator, seed_globals
from zoo.data import ZooData
from zoo.table import Row

EPOCHS, ROUNDS = 2, 2
FAILING = 1  # the client that raises; it has two batches


def state_of(module: nn.Module) -> dict[str, Any]:
    """All that a module holds: parameters, frozen ones too, buffers, saved or not, flags, modes, extra state."""
    module = getattr(module, "_orig_mod", module)
    state: dict[str, Any] = {}
    for name, parameter in module.named_parameters():
        state[name] = parameter.detach().clone()
        state[f"{name}, trainable"] = parameter.requires_grad
    for name, buffer in module.named_buffers():
        state[name] = buffer.to_dense() if buffer.is_sparse else buffer.clone()
    for name, part in module.named_modules():
        state[f"{name}, mode"] = part.training
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            state[f"{name}, extra state"] = part.get_extra_state()
    return state


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names under which two states differ by a bit."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
        return type(a) is type(b) and repr(a) == repr(b)

    return [name for name in {**one, **other} if not same(one.get(name, "missing"), other.get(name, "missing"))]


class Epochs:
    """A client's batches as a loader of ``Trainer.fit``: another order in each epoch."""

    def __init__(self, data: ZooData) -> None:
        self.data, self.epoch = data, 0

    def __len__(self) -> int:
        return ceil(self.data.client_num_samples(0) / self.data.batch_size)

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        yield from self.data.client_batches(0, generator(0, "batches", 1, 0, self.epoch - 1))


class SeedsAsAClient(Callback):
    """Gives the plain training the random numbers of client 0 in round 1."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        seed_globals(derive(0, "client", 1, 0), torch.device("cpu"))


class Ends(FederatedCallback):
    """Keeps what each client of the last round ends with."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, Any]] = {}
        self.runs: dict[int, LocalRun] = {}

    def on_client_end(self, orchestrator: Any, run: LocalRun) -> None:
        self.states[run.client], self.runs[run.client] = state_of(run.module), run


def validation(module: Any, data: ZooData) -> Any:
    """The validation set, for a module that validates."""
    module = getattr(module, "_orig_mod", module)
    return data.val_dataloader() if type(module).validation_step is not LightningModule.validation_step else None


def alone(row: Row, epochs: int, **flags: Any) -> tuple[Any, dict[str, Any]]:
    """The module trained by ``Trainer.fit``, and what it logged."""
    module, data = row.wrap(row.module()), row.datamodule([max(row.sizes)])
    plain = trainer(SeedsAsAClient(), rounds=epochs, **flags)
    plain.fit(module, train_dataloaders=Epochs(data), val_dataloaders=validation(module, data))
    return getattr(module, "_orig_mod", module), dict(plain.callback_metrics)


def as_client(row: Row, epochs: int, **flags: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The module, trained by one client; what the client ended with; what was logged."""
    ends, module = Ends(), row.wrap(row.module())
    orchestrator = FederatedOrchestrator(module, local_epochs=epochs, on_bad_update="raise")
    federated = trainer(ends, **flags)
    federated.fit(orchestrator, datamodule=row.datamodule([max(row.sizes)]))
    return getattr(module, "_orig_mod", module), ends.states[0], dict(federated.callback_metrics)


def federated(
    row: Row,
    *callbacks: Callback,
    make: Callable[[], Any] | None = None,
    rounds: int = ROUNDS,
    bad: str = "raise",
    start: Path | None = None,
    end: Path | None = None,
    data: dict[str, Any] | None = None,
    **flags: Any,
) -> dict[str, Any]:
    """Train the row's clients.

    Args:
        row: the row.
        callbacks: of the Trainer.
        make: makes the module; the row's own by default.
        rounds: number of rounds.
        bad: ``on_bad_update``.
        start: the checkpoint to go on from.
        end: where to write a checkpoint.
        data: settings of the data.
        flags: of the Trainer.

    Returns:
        What the global module holds, and what was logged last.
    """
    module = row.wrap((make or row.module)())
    orchestrator = FederatedOrchestrator(module, local_epochs=EPOCHS, on_bad_update=bad)  # type: ignore[arg-type]
    run = trainer(*callbacks, rounds=rounds, **flags)
    run.fit(orchestrator, datamodule=row.datamodule(**(data or {})), ckpt_path=start)
    if end:
        run.save_checkpoint(end)
    return state_of(module) | {f"logged {name}": float(value) for name, value in run.callback_metrics.items()}


@cache
def in_order(row: Row) -> tuple[dict[str, Any], Ends]:
    """The run that the others are compared to: clients by id, one device, no stop; all clients train to the end."""
    ends = Ends()
    state = federated(row, ends)
    assert list(ends.states) == list(range(len(row.sizes)))
    assert {run.round for run in ends.runs.values()} == {ROUNDS}
    return state, ends


def failing(module: Any) -> Any:
    """A subclass that raises when ``half_way`` reaches zero: at the end of a ``training_step``, or, with manual
    optimization, in its middle, before an optimizer's step.
    """

    class HalfWay(module):  # type: ignore[misc]
        half_way = 0

        def come_nearer(self) -> None:
            self.half_way -= 1
            if self.half_way == 0:
                raise RuntimeError("half-way")

        @wraps(module.training_step)
        def training_step(self, *args: Any) -> Any:
            outputs = super().training_step(*args)
            if self.automatic_optimization:
                self.come_nearer()
            return outputs

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            super().on_before_optimizer_step(optimizer)
            if not self.automatic_optimization:
                self.come_nearer()

    return HalfWay


class Fails(FederatedCallback):
    """One client raises at its second batch."""

    def on_client_start(self, orchestrator: Any, run: LocalRun) -> None:
        run.module.half_way = 2 if run.client == FAILING else 0
