"""Detector: trains a network to detect objects, with task-aligned assignment."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.detection import MeanAveragePrecision
from torchvision.ops import (  # type: ignore[import-untyped]  # torchvision ships no types
    batched_nms,
    clip_boxes_to_image,
    complete_box_iou,
    complete_box_iou_loss,
)
from typing_extensions import override

from fl_lightning.arguments import picklable_defaults
from fl_lightning.errors import ConfigurationError
from fl_lightning.models.classifier import check_classes

BOX_GAIN, CLASS_GAIN, DISTRIBUTION_GAIN = 7.5, 0.5, 1.5  # weights of the losses in the published YOLOv8
MIN_SCORE, MAX_OVERLAP, MAX_DETECTIONS = 0.001, 0.7, 100  # limits for detections; COCO counts 100 per image


@dataclass(frozen=True)
class Prediction:
    """Output of a detection network for B images at A anchors, the centres of the cells of its maps.

    Attributes:
        bins: (B, A, 4, R) logits of the distances to the left, top, right and bottom side, in strides.
        logits: (B, A, C) class logits.
        boxes: (B, A, 4) boxes x1, y1, x2, y2 in pixels, from the expected distances.
        centres: (A, 2) x, y of the anchors in pixels.
        strides: (A, 1) distance in pixels between neighbouring anchors of the same map.
    """

    bins: Tensor
    logits: Tensor
    boxes: Tensor
    centres: Tensor
    strides: Tensor


class MAP50(MeanAveragePrecision):
    """Mean average precision at an IoU of 0.5 (COCO's 101 recall points) as one number; -1 if no image has a box."""

    def __init__(self) -> None:
        super().__init__(iou_thresholds=[0.5])

    def compute(self) -> Tensor:  # type: ignore[override]  # one number of the dict, so that Lightning can log it
        """Return mAP50 over all images so far, in [0, 1]; -1 if no image has a box."""
        value: Tensor = super().compute()["map_50"]
        return value


@picklable_defaults
class Detector(LightningModule):
    """Trains a network with the loss of YOLOv8; logs loss and mAP50 as ``val/…`` and ``test/…``.

    Batches are ``[images, targets]``. Images are floats (B, 3, H, W) in [0, 1]. Targets (B, M, 5) hold class, x1, y1,
    x2, y2 in pixels; the rows of images with fewer than M objects are filled up with rows of class -1.

    Args:
        network: module that maps images to one map (B, 4·R + num_classes, H/s, W/s) per stride s, as :class:`YOLOv8`
            does; its attribute ``projection`` (R,) holds the distances of the bins.
        num_classes: C, the number of classes of the data.
        optimizer: function that makes a client's optimizer from the parameters.

    Raises:
        ConfigurationError: the network has no ``projection``, or the network's maps, the data's number of classes or
            the targets do not fit the model.
    """

    lower_is_better = ("val/loss", "test/loss")
    higher_is_better = ("val/map50", "test/map50")

    def __init__(
        self,
        network: nn.Module,
        num_classes: int = 1,
        optimizer: OptimizerCallable = lambda params: torch.optim.SGD(params, lr=0.01),
    ) -> None:
        super().__init__()
        if not isinstance(getattr(network, "projection", None), Tensor):
            raise ConfigurationError(
                f"network must be a detection network whose attribute projection holds the distances of its bins, got "
                f"{type(network).__name__}: use fl_lightning.models.YOLOv8"
            )
        self.network, self.num_classes, self.optimizer = network, num_classes, optimizer
        self.metrics = nn.ModuleDict()
        for stage in ("val", "test"):
            self.metrics.update({f"{stage}/map50": MAP50(), f"{stage}/loss": MeanMetric()})

    @override
    def setup(self, stage: str) -> None:
        check_classes(self.trainer, self.num_classes)

    def forward(self, images: Tensor) -> Prediction:
        """Return the network's prediction for images (B, 3, H, W)."""
        maps: list[Tensor] = self.network(images)
        projection: Tensor = self.network.projection  # type: ignore[assignment]  # see __init__
        num_bins = 4 * len(projection)
        if any(level.shape[1] != num_bins + self.num_classes for level in maps):
            raise ConfigurationError(
                f"{type(self.network).__name__} gives maps of {[level.shape[1] for level in maps]} channels, expected "
                f"{num_bins + self.num_classes}: set model.client.num_classes and the network's "
                "num_classes to the data's number of classes"
            )
        flat = torch.cat([level.flatten(2) for level in maps], 2).transpose(1, 2)
        flat = flat.to(projection.dtype)  # half precision is too coarse for pixels
        bins = flat[..., :num_bins].reshape(*flat.shape[:2], 4, -1)
        logits = flat[..., num_bins:]
        anchors = [_anchors(level, images) for level in maps]
        centres = torch.cat([centres_of_map for centres_of_map, _ in anchors])
        strides = torch.cat([strides_of_map for _, strides_of_map in anchors])
        distances = (bins.softmax(3) * projection).sum(3) * strides  # autocast would round a matrix product
        boxes = torch.cat([centres - distances[..., :2], centres + distances[..., 2:]], 2)
        return Prediction(bins, logits, boxes, centres, strides)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return the loss of one batch."""
        images, targets = batch
        return {"loss": detection_loss(self(images), targets)}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the ``val/…`` metrics."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the ``test/…`` metrics."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int) -> list[dict[str, Tensor]]:
        """Return the detections of each image: ``boxes`` (D, 4) in pixels, ``scores`` (D,), ``labels`` (D,)."""
        images = batch[0] if isinstance(batch, list | tuple) else batch
        return self._detect(images, self(images))

    def _detect(self, images: Tensor, prediction: Prediction) -> list[dict[str, Tensor]]:
        boxes = clip_boxes_to_image(prediction.boxes, images.shape[2:])
        return [suppress(*pair) for pair in zip(boxes, prediction.logits.sigmoid(), strict=True)]

    def _evaluate(self, batch: Any, stage: str) -> None:
        images, targets = batch
        prediction = self(images)
        metrics: Any = {name: self.metrics[f"{stage}/{name}"] for name in ("map50", "loss")}
        metrics["loss"].update(detection_loss(prediction, targets), weight=len(images))
        truth = []
        for rows in targets:
            labels, boxes = _unpad(rows)
            truth.append({"labels": labels, "boxes": boxes})
        metrics["map50"].update(self._detect(images, prediction), truth)
        for name, metric in metrics.items():
            self.log(f"{stage}/{name}", metric, prog_bar=name == "map50", batch_size=len(images))

    @override
    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters())


def detection_loss(prediction: Prediction, targets: Tensor) -> Tensor:
    """Compute classification (BCE), CIoU (Zheng et al., 2020, eq. 10) and distribution focal loss with YOLOv8's gains.

    BCE is summed over all anchors and classes; CIoU and distribution focal loss are summed over the anchors with an
    object, weighted by the class aims of :func:`assign`. All three sums are divided by the total of the aims (at least
    1). The released trainer of YOLOv8 then multiplies the loss by B, the number of images. This function does not: with
    SGD, the same step needs a learning rate B times as large here.

    Args:
        prediction: prediction for B images.
        targets: (B, M, 5) class, x1, y1, x2, y2 in pixels; rows of class -1 are left out.

    Returns:
        Scalar loss.

    Raises:
        ConfigurationError: ``targets`` is not of shape (B, M, 5).
    """
    batch = len(prediction.logits)
    if targets.ndim != 3 or len(targets) != batch or targets.shape[2] != 5:
        raise ConfigurationError(
            f"expected targets ({batch}, M, 5), rows of class, x1, y1, x2, y2 for each image, got "
            f"{tuple(targets.shape)}: see fl_lightning.datamodules.BoxFolder"
        )
    centres = prediction.centres
    assigned = [
        assign(scores, boxes, centres, *_unpad(rows))
        for scores, boxes, rows in zip(prediction.logits.sigmoid(), prediction.boxes, targets, strict=True)
    ]
    aims = torch.stack([aims_of_image for aims_of_image, _ in assigned])
    truth = torch.stack([boxes_of_image for _, boxes_of_image in assigned])
    weights = aims.sum(2)
    positive = weights > 0
    weight = weights[positive]
    total = aims.sum().clamp(min=1)
    by_class = F.binary_cross_entropy_with_logits(prediction.logits, aims, reduction="sum")
    by_box = (weight * complete_box_iou_loss(prediction.boxes[positive], truth[positive])).sum()
    distances = torch.cat([centres - truth[..., :2], truth[..., 2:] - centres], 2) / prediction.strides
    by_distribution = (weight * distribution_loss(prediction.bins[positive], distances[positive])).sum()
    loss: Tensor = (CLASS_GAIN * by_class + BOX_GAIN * by_box + DISTRIBUTION_GAIN * by_distribution) / total
    return loss


@torch.no_grad()
def assign(
    scores: Tensor, boxes: Tensor, centres: Tensor, classes: Tensor, truth: Tensor, top: int = 10
) -> tuple[Tensor, Tensor]:
    """Assign the objects of one image to anchors by task alignment (Feng et al., 2021, TOOD, section 3.2).

    Every object takes the ``top`` anchors inside its box with the largest alignment t = √s · u⁶, where s is the
    predicted score of the object's class and u the overlap of the predicted and the true box. An anchor taken by
    several objects stays with the object of the largest overlap. Class aims are t, scaled for each object so that the
    object's largest aim equals its largest u. As in YOLOv8, u is CIoU, at least 0, and t has √s where TOOD has s.

    Args:
        scores: (A, C) predicted class scores in [0, 1].
        boxes: (A, 4) predicted boxes x1, y1, x2, y2 in pixels.
        centres: (A, 2) x, y of the anchors in pixels.
        classes: (M,) classes of the objects.
        truth: (M, 4) boxes of the objects, in pixels.
        top: number of anchors per object.

    Returns:
        Class aims (A, C), which are above zero only at anchors with an object and for the object's class; and the boxes
        (A, 4) of the assigned objects, which are meaningless for anchors without an object.
    """
    aims = torch.zeros_like(scores)
    if not len(truth):
        return aims, torch.zeros_like(boxes)
    inside = ((centres > truth[:, None, :2]) & (centres < truth[:, None, 2:])).all(2)  # (M, A)
    overlap = complete_box_iou(truth, boxes).clamp(min=0)
    alignment = torch.where(inside, scores.T[classes].sqrt() * overlap**6, 0)
    best = alignment.topk(min(top, len(boxes))).indices
    taken = torch.zeros_like(inside).scatter_(1, best, True) & (alignment > 0)
    owner = torch.where(taken, overlap, -1).argmax(0)  # (A,)
    taken &= F.one_hot(owner, len(truth)).T.bool()
    alignment = alignment * taken
    overlap = torch.where(taken, overlap, 0)
    scale = overlap.amax(1) / alignment.amax(1).clamp(min=torch.finfo(alignment.dtype).tiny)
    aims.scatter_(1, classes[owner, None], (alignment * scale[:, None]).amax(0)[:, None])
    return aims, truth[owner]


def distribution_loss(bins: Tensor, distances: Tensor) -> Tensor:
    """Compute distribution focal loss (Li et al., 2020, eq. 6): cross-entropy to the two bins next to each distance.

    Args:
        bins: (n, 4, R) logits of the bins.
        distances: (n, 4) true distances in strides, cut to [0, R - 1.01] so that each has a bin on both sides.

    Returns:
        (n,) losses, each the mean over the four sides.
    """
    distances = distances.clamp(0, bins.shape[2] - 1.01)
    left = distances.floor()
    near = torch.stack([left, left + 1], 2).long()
    shares = torch.stack([left + 1 - distances, distances - left], 2)
    return -(bins.log_softmax(2).gather(2, near) * shares).sum(2).mean(1)


def suppress(boxes: Tensor, scores: Tensor) -> dict[str, Tensor]:
    """Select the detections of one image, best first: the best class of each anchor, without near duplicates.

    Args:
        boxes: (A, 4) predicted boxes x1, y1, x2, y2 in pixels.
        scores: (A, C) predicted class scores in [0, 1].

    Returns:
        ``boxes`` (D, 4), ``scores`` (D,) above 0.001 and ``labels`` (D,), D at most 100; no two boxes of the same class
        have an IoU above 0.7.
    """
    best, labels = scores.max(1)
    rows = (best > MIN_SCORE).nonzero().flatten()
    rows = rows[batched_nms(boxes[rows], best[rows], labels[rows], MAX_OVERLAP)[:MAX_DETECTIONS]]
    return {"boxes": boxes[rows], "scores": best[rows], "labels": labels[rows]}


def _anchors(level: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return centres (h·w, 2) and strides (h·w, 1) in pixels of the anchors of a map (B, ·, h, w), row by row."""
    height, width = level.shape[2:]
    stride = images.shape[2] / height
    kind: Any = {"dtype": torch.float32, "device": level.device}
    y, x = torch.meshgrid(torch.arange(height, **kind), torch.arange(width, **kind), indexing="ij")
    centres = (torch.stack([x, y], 2).flatten(0, 1) + 0.5) * stride
    return centres, torch.full_like(centres[:, :1], stride)


def _unpad(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return classes (m,) and boxes (m, 4) of one image's targets (M, 5), without the rows of class -1."""
    rows = rows[rows[:, 0] >= 0]
    return rows[:, 0].long(), rows[:, 1:]
