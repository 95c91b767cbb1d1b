"""How a LightningModule trains on any client: looked up once a fit, so that a step costs little."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import (
    _configure_optimizers,
    _configure_schedulers_automatic_opt,
    _configure_schedulers_manual_opt,
    _validate_multiple_optimizers_support,
)
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.optim import Optimizer

from fl_lightning.callback import FederatedCallback
from fl_lightning.errors import ConfigurationError
from fl_lightning.params import FlatParameters

if TYPE_CHECKING:
    from fl_lightning.orchestrator import FederatedOrchestrator

HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
    "backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "configure_gradient_clipping",
    "lr_scheduler_step",
)


@dataclass(frozen=True)
class LocalSettings:
    """What every client does in a round.

    Attributes:
        epochs: passes over the client's data, or None for a fixed number of steps.
        steps: batches per round, or None; the data are begun again as often as needed.
        accumulate: batches whose gradients make one optimizer step.
        clip: largest gradient norm or value, or None.
        clip_algorithm: "norm" or "value".
    """

    epochs: int | None = 1
    steps: int | None = None
    accumulate: int = 1
    clip: float | None = None
    clip_algorithm: Literal["norm", "value"] = "norm"


class LocalTraining:
    """The module's hooks, the callbacks' hooks and the settings that every client's training goes by."""

    def __init__(self, orchestrator: FederatedOrchestrator, flat: FlatParameters, settings: LocalSettings) -> None:
        module = orchestrator.client
        self.orchestrator, self.module, self.flat, self.settings = orchestrator, module, flat, settings
        self.hooks = {name: getattr(module, name) for name in HOOKS if is_overridden(name, module, LightningModule)}
        self.precision = orchestrator.trainer.precision_plugin
        self.takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
            raise ConfigurationError(
                f"{type(module).__name__}.training_step takes a dataloader_iter: on clients it must take batches"
            )
        if getattr(self.precision, "scaler", None) is not None and not module.automatic_optimization:
            raise ConfigurationError(
                f"{type(module).__name__} steps its optimizers itself, which loses the loss scale of precision="
                "16-mixed: use bf16-mixed, or automatic optimization"
            )
        callbacks = orchestrator.rules
        self.losses = [c.loss for c in callbacks if overrides(c, "loss")]
        self.closures = [c.closure for c in callbacks if overrides(c, "closure")]
        self.before_step = [c.on_before_client_step for c in callbacks if overrides(c, "on_before_client_step")]

    def call(self, hook: str, *args: Any) -> Any:
        """Call a hook of the module, if it defines it."""
        return self.hooks[hook](*args) if hook in self.hooks else None


def overrides(callback: FederatedCallback, hook: str) -> bool:
    """Whether a callback defines a hook of its own."""
    return getattr(type(callback), hook) is not getattr(FederatedCallback, hook)


def make_optimizers(module: LightningModule) -> tuple[list[Optimizer], list[LRSchedulerConfig]]:
    """What the module's ``configure_optimizers`` returns, in any of the forms that Lightning takes.

    Raises:
        ConfigurationError: it returns no optimizer, or a schedule that waits for a metric.
    """
    name, made = type(module).__name__, module.configure_optimizers()
    if isinstance(made, Optimizer):
        return [made], []
    if made is None:
        raise ConfigurationError(f"{name}.configure_optimizers must return an optimizer, got None")
    optimizers, schedules, monitor = _configure_optimizers(made)  # type: ignore[arg-type]  # the forms it checks
    configs = (
        _configure_schedulers_automatic_opt(schedules, monitor)
        if module.automatic_optimization
        else _configure_schedulers_manual_opt(schedules)
    )
    _validate_multiple_optimizers_support(optimizers, module)
    if any(config.reduce_on_plateau for config in configs):
        raise ConfigurationError(
            f"{name}.configure_optimizers returns ReduceLROnPlateau, but a client has nothing to monitor within a "
            "round: use a scheduler that goes by steps or epochs"
        )
    return optimizers, configs


def with_last(batches: Iterable[Any], limit: int | None) -> Iterator[tuple[Any, bool]]:
    """Each batch with whether it is the last one, at most ``limit`` of them."""
    waiting: list[Any] = []
    for count, batch in enumerate(batches):
        if count == limit:
            break
        if waiting:
            yield waiting.pop(), False
        waiting.append(batch)
    if waiting:
        yield waiting.pop(), True
