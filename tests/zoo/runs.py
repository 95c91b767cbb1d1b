"""The ways in which the table's rows are trained, and what they end with, to the bit."""

from collections.abc import Callable, Iterator
from functools import cache, wraps
from math import ceil
from pathlib import Path
from typing import Any

import torch
from lib.toy import Capture, trainer
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn

from fl_lightning import FederatedOrchestrator, LocalRun
from fl_lightning.seeding import derive, generator, seed_globals
from zoo.data import ZooData
from zoo.table import Row

EPOCHS, ROUNDS = 2, 2
FAILING = 1  # the client that raises; it has two batches


def state_of(module: nn.Module) -> dict[str, Any]:
    """All that a module holds: parameters, frozen ones too, buffers, saved, not saved or None, flags, modes, extra
    state.
    """
    module = getattr(module, "_orig_mod", module)
    state: dict[str, Any] = {}
    for name, parameter in module.named_parameters():
        state[name] = parameter.detach().clone()
        state[f"{name}, trainable"] = parameter.requires_grad
    for name, buffer in module.named_buffers():
        state[name] = buffer.to_dense().clone()
    for name, part in module.named_modules():
        state |= {f"{name}.{own}".lstrip("."): None for own, buffer in part._buffers.items() if buffer is None}
        state[f"{name}, mode"] = part.training
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            state[f"{name}, extra state"] = repr(part.get_extra_state())
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


class Ends(Capture):
    """Keeps what each client of the last round ends with."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, dict[str, Any]] = {}

    def on_client_end(self, orchestrator: Any, run: LocalRun) -> None:
        super().on_client_end(orchestrator, run)
        self.states[run.client] = state_of(run.module)


def alone(row: Row, epochs: int = EPOCHS, **flags: Any) -> tuple[Any, dict[str, Any]]:
    """The module trained by ``Trainer.fit`` on the largest client's data, and what it logged."""
    module, data = row.wrap(row.module()), row.datamodule([max(row.sizes)])
    plain, inner = trainer(SeedsAsAClient(), rounds=epochs, **flags), getattr(module, "_orig_mod", module)
    validates = type(inner).validation_step is not LightningModule.validation_step
    plain.fit(module, train_dataloaders=Epochs(data), val_dataloaders=data.val_dataloader() if validates else None)
    return inner, dict(plain.callback_metrics)


def as_client(row: Row, epochs: int = EPOCHS, settings: Any = None, **flags: Any) -> tuple[Any, Ends, dict[str, Any]]:
    """The module, trained by one client with its settings; what the client ended with; what was logged."""
    ends, module = Ends(), row.wrap(row.module())
    orchestrator = FederatedOrchestrator(
        module, local_epochs=epochs, on_bad_update="raise", on_hidden_state="off", **(settings or {})
    )
    federated = trainer(ends, **flags)
    federated.fit(orchestrator, datamodule=row.datamodule([max(row.sizes)]))
    return getattr(module, "_orig_mod", module), ends, dict(federated.callback_metrics)


def ends_where_the_trainer_does(
    row: Row, settings: Any = None, make_flags: Callable[[], Any] = dict
) -> tuple[Any, Ends]:
    """Assert that a client ends in the bits of ``Trainer.fit``, to which the same settings are flags.

    So do the rates and counts that a module writes down in ``seen``; the training moves something.

    Returns:
        The module after the round, and what its client ended with.
    """
    module, _ = alone(row, **(settings or {}), **make_flags())
    client, ends, _ = as_client(row, settings=settings, **make_flags())
    assert not differences(state_of(module), ends.states[0])
    assert getattr(client, "seen", None) == getattr(module, "seen", None)
    assert differences(state_of(module), state_of(row.wrap(row.module())))
    return client, ends


def federated(
    row: Row,
    *callbacks: Callback,
    make: Callable[[], Any] | None = None,
    rounds: int = ROUNDS,
    bad: Any = "raise",
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
    orchestrator = FederatedOrchestrator(module, local_epochs=EPOCHS, on_bad_update=bad)
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
    assert ends.clients == ROUNDS * list(range(len(row.sizes)))
    return state, ends


def failing(module: Any) -> Any:
    """A subclass whose client FAILING raises at its second batch: at the end of a ``training_step``, or, with manual
    optimization, in its middle, before an optimizer's step.
    """

    class HalfWay(module):  # type: ignore[misc]
        def come_nearer(self) -> None:
            run = self.trainer.run
            run.left = getattr(run, "left", 2) - 1
            if run.client == FAILING and not run.left:
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
