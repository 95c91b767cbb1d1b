"""What is refused at the start, each in one line that says what to do instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor

from fl_lightning.errors import ConfigurationError
from fl_lightning.strategy import ClientParallelStrategy

if TYPE_CHECKING:
    from fl_lightning.callback import FederatedCallback
    from fl_lightning.data import FederatedDataModule


def check_trainer(trainer: Trainer) -> None:
    """Refuse Trainer flags that would mean something else where an epoch is a round and a batch is a client."""
    flags: list[tuple[bool, str, str]] = [
        (bool(trainer.gradient_clip_val), "gradient_clip_val", "model.gradient_clip_val, which clips local gradients"),
        (
            trainer.accumulate_grad_batches != 1,
            "accumulate_grad_batches",
            "model.accumulate_grad_batches, which accumulates a client's batches",
        ),
        (
            trainer.overfit_batches > 0,  # type: ignore[attr-defined]  # set outside Trainer.__init__
            "overfit_batches",
            "data.participation: 1, which trains one client a round",
        ),
        (
            _is_not_all(trainer.limit_train_batches) and not trainer.fast_dev_run,  # type: ignore[attr-defined]  # likewise
            "limit_train_batches",
            "data.participation for fewer clients, or model.local_steps for less local work",
        ),
        (_is_not_all(trainer.val_check_interval), "val_check_interval", "trainer.check_val_every_n_epoch, in rounds"),
        (
            trainer.precision in ("16-true", "bf16-true"),
            f"precision={trainer.precision}",
            "bf16-mixed or 16-mixed: the global model and the updates must stay float32",
        ),
        (
            isinstance(trainer.strategy, ParallelStrategy) and not isinstance(trainer.strategy, ClientParallelStrategy),
            f"strategy={type(trainer.strategy).__name__}",
            "strategy: client_parallel, whose devices train different clients (this one would split each client's "
            "batches, and so train another algorithm)",
        ),
        (
            trainer._accelerator_connector._layer_sync is not None,
            "sync_batchnorm",
            "no sync_batchnorm: it would mix the statistics of different clients",
        ),
    ]
    for wrong, flag, instead in flags:
        if wrong:
            raise ConfigurationError(
                f"trainer.{flag} means something else here, where an epoch is a round and a batch is a client: "
                f"use {instead}"
            )


def _is_not_all(limit: float) -> bool:
    return limit != 1.0 or isinstance(limit, int)  # 1.0 is the whole, 1 a single batch


def check_rules(rules: Sequence[FederatedCallback], data: FederatedDataModule) -> None:
    """Refuse a second reducer, and a rule that needs a proxy set where there is none."""
    reducers = [type(rule).__name__ for rule in rules if rule.reduce is not None]
    if len(reducers) > 1:
        raise ConfigurationError(
            f"expected at most one rule that replaces the weighted sum of updates, got {', '.join(reducers)}: keep one"
        )
    needy = [type(rule).__name__ for rule in rules if rule.needs_proxy]
    if needy and data.proxy_dataloader() is None:
        raise ConfigurationError(
            f"{', '.join(needy)} learns on a proxy set, but {type(data).__name__} has none: set data.proxy_per_class, "
            "or define proxy_dataloader()"
        )


def check_state(own: Mapping[str, Tensor], saved: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose tensors are not those of the model."""
    shapes = {name: tuple(value.shape) for name, value in own.items()}
    for name in [*shapes, *saved]:
        expected = shapes.get(name, "no such tensor")
        found = tuple(saved[name].shape) if name in saved else "no such tensor"
        if expected != found:
            raise ConfigurationError(
                f"the checkpoint is of another model: {name} has {found} there and {expected} here; "
                "start with the config the checkpoint was made with (config.yaml beside its folder)"
            )
