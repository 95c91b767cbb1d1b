"""ManualSteps: trains a client of a module that has several optimizers, or steps its optimizers itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning.engine.rules.run import LocalRun
from fl_lightning.engine.training.steps import Steps
from fl_lightning.lightning_private import wrap_optimizer


class ManualSteps(Steps):
    """Trains on batches with manual optimization: the module takes all steps, inside ``training_step``."""

    @override
    def begin(self, run: LocalRun) -> None:
        super().begin(run)
        watch_steps(run, partial(self.before_step, run))

    @override
    def take(self, run: LocalRun, batch: Any, index: int, stepping: bool) -> Any:
        outputs = self.forward(batch, index)
        run.add_loss(outputs.get("loss") if isinstance(outputs, dict) else outputs)
        return outputs


def watch_steps(run: LocalRun, before: Callable[[Optimizer], None]) -> None:
    """Call a function before each step that the module takes, and count the steps in ``run.global_step``.

    Args:
        run: the client's run, whose ``lightning_optimizers`` are those that the module gets.
        before: called with the optimizer, when the gradients of its step are there.
    """

    def wrap_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        closure = args[1] if len(args) > 1 else kwargs.pop("closure", None)
        if closure is None:
            before(optimizer)
            return None

        def evaluate() -> Any:
            result = closure()  # computes the gradients
            before(optimizer)
            return result

        return (optimizer, evaluate, *args[2:]), kwargs

    def count_step(*_: Any) -> None:
        run.global_step += 1

    for optimizer in run.optimizers:
        optimizer.register_step_pre_hook(wrap_step)
        optimizer.register_step_post_hook(count_step)
    run.lightning_optimizers = [wrap_optimizer(optimizer, run.module, _step) for optimizer in run.optimizers]


def _step(optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
    return optimizer.step(closure, **kwargs)
