"""DetectionMonitor: what a detector finds on a few images."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from fl_lightning import ConfigurationError, FederatedOrchestrator, Monitor, check_at_least, log_figure, save_arrays
from fl_lightning.models import Detector
from fl_lightning.runs.pictures import BOX, draw_boxes


def tabulate(found: Sequence[dict[str, Tensor]], targets: Tensor) -> Tensor:
    """List the detections and the true objects of some images in one table.

    Args:
        found: for each image ``boxes`` (D, 4), ``scores`` (D,) and ``labels`` (D,).
        targets: (n, M, 5) class, x1, y1, x2, y2; rows of class -1 are left out.

    Returns:
        (m, 7) number of the image, class, score, x1, y1, x2, y2; the score of a true object is nan.
    """
    rows = []
    for number, (detections, objects) in enumerate(zip(found, targets, strict=True)):
        for score, label, box in zip(detections["scores"], detections["labels"], detections["boxes"], strict=True):
            rows.append([number, float(label), float(score), *box.tolist()])
        for label, *box in objects[objects[:, 0] >= 0].tolist():
            rows.append([number, label, torch.nan, *box])
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, len(BOX))


class DetectionMonitor(Monitor):
    """Saves what a detector finds on the first validation images, beside the true objects.

    ``arrays/detections_<round>.npz`` in the run folder holds ``images`` (n, 3, S, S), uint8, and ``boxes`` (m, 7): a
    row for each detection and each true object, of the image's number, class, score (nan for a true object), x1, y1,
    x2, y2 in pixels. Loggers that take pictures get the detections of a score of at least 0.25 as
    ``detections/images``. The images are those of the first validation batch. The monitor changes nothing.

    Args:
        images: n, the number of images, at most a batch.
        every: number of rounds from one saving to the next; the last round that ``trainer.max_epochs`` allows is saved,
            too. 0 for the last round alone. A round without a validation saves nothing.

    Raises:
        ConfigurationError: an argument is outside its range, or the client module is no :class:`Detector`.
    """

    streams = True

    def __init__(self, images: int = 4, every: int = 0) -> None:
        check_at_least(1, images=images)
        check_at_least(0, every=every)
        self.images, self.every = images, every

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        client = pl_module.client
        if not isinstance(client, Detector):
            raise ConfigurationError(
                f"DetectionMonitor draws what a Detector finds, got {type(client).__name__}: leave it out"
            )

    @override
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        assert isinstance(pl_module, FederatedOrchestrator)
        if batch_idx or dataloader_idx or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        round = pl_module.rounds_done
        if round == trainer.max_epochs or (self.every and round % self.every == 0):
            shown = [part[: self.images] for part in batch]
            self._save(pl_module, shown, round)

    def _save(self, orchestrator: FederatedOrchestrator, batch: Sequence[Tensor], round: int) -> None:
        images, targets = batch
        boxes = tabulate(orchestrator.client.predict_step(batch, 0), targets).numpy()
        pixels = (255 * images).round().to(torch.uint8).cpu().numpy()
        save_arrays(orchestrator, f"detections_{round}", images=pixels, boxes=boxes)
        log_figure(orchestrator, "detections/images", lambda: draw_boxes(pixels, boxes), round)
