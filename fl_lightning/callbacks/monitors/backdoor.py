"""BackdoorEvaluation: how often the global model takes a trigger for the attackers' class."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import Cohort, ConfigurationError, Metric, Monitor, Server, check_at_least, is_due
from fl_lightning.callbacks.monitors.training import check_logged, check_validation_step, short_names
from fl_lightning.datamodules import Backdoor


class BackdoorEvaluation(Monitor):
    """Evaluates the global model on test images with the trigger of ``data.corruption: Backdoor``.

    Of the test images, those of other classes than the target are stamped, and labelled as the target: what the
    module's ``validation_step`` logs as ``val/top1`` becomes ``backdoor/top1``, the backdoor's rate of success. Without
    ``data.corruption``, this is the rate to compare with. An evaluation takes one forward pass over the test set, on
    every device. The monitor changes nothing.

    Args:
        target: the attackers' class.
        size: side of the square in pixels, at least 1.
        every: number of rounds from one evaluation to the next; the last round that ``trainer.max_epochs`` allows is
            evaluated, too.

    Raises:
        ConfigurationError: ``size`` or ``every`` is less than 1; the module has no ``validation_step``, or one that
            logs nothing; the test set has no uint8 images, or none of another class.
    """

    metrics = (
        Metric(
            "backdoor/top1",
            "Success of the backdoor",
            "Share of stamped test images of other classes that the new global model takes for the attackers' class.",
            percent=True,
            better="lower",
            panel="backdoor: success",
        ),
        Metric(
            "backdoor/top3",
            "Success of the backdoor, top 3",
            "Share of these images for which the attackers' class is among the model's three most likely ones.",
            percent=True,
            better="lower",
            panel="backdoor: success",
        ),
        Metric(
            "backdoor/loss",
            "Loss of the backdoor",
            "Mean loss of the new global model on stamped test images that are labelled as the attackers' class.",
            better="higher",
            panel="backdoor: loss",
        ),
    )

    needs_one_machine = "stamps test images at the server"
    streams = True

    def __init__(self, target: int, size: int = 3, every: int = 1) -> None:
        check_at_least(1, every=every)
        self.target, self.size, self.every = target, size, every
        self._backdoor = Backdoor(share=0, target=target, size=size)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_validation_step(self, pl_module)

    @override
    def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
        if not is_due(orchestrator, self.every):
            return
        with orchestrator.server_side("backdoor"):
            logged = orchestrator.evaluate(stamped_batches(orchestrator.data.test_dataloader(), self._backdoor))
        check_logged(self, orchestrator, logged)
        for name, short in short_names(logged).items():
            orchestrator.log_round(f"backdoor/{short}", logged[name])


def stamped_batches(batches: Iterable[Any], backdoor: Backdoor) -> Iterator[list[Tensor]]:
    """Yield batches ``[images, labels]`` without the attackers' class, stamped and labelled as that class."""
    found = False
    for batch in batches:
        images, labels = batch
        others = labels != backdoor.target
        if others.any():
            found = True
            yield [backdoor.stamp(images[others]), torch.full_like(labels[others], backdoor.target)]
    if not found:
        raise ConfigurationError(
            f"BackdoorEvaluation needs test images of other classes than {backdoor.target}, got none: choose another"
        )
