"""DetectionMonitor beside a detector of drawn shapes, and its table by hand."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.toy import Quadratic, ToyData, trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import DetectionMonitor
from fl_lightning.callbacks.monitors.detections import tabulate
from fl_lightning.datamodules import Shapes
from fl_lightning.models import Detector, YOLOv8


def shapes() -> Shapes:
    return Shapes(num_clients=2, train_examples=8, test_examples=6, batch_size=4, image_size=32, eval_batch_size=4)


def detector() -> Detector:
    torch.manual_seed(0)
    return Detector(YOLOv8(3, width=2), num_classes=3, optimizer=partial(torch.optim.SGD, lr=0.01))


def measured(folder: Path, *callbacks: Any, **settings: Any) -> dict[str, dict[str, Any]]:
    """The arrays of three rounds, by file."""
    run = trainer(*callbacks, rounds=3, default_root_dir=folder, **settings)
    run.fit(FederatedOrchestrator(detector()), datamodule=shapes())
    return {path.name: dict(np.load(path)) for path in sorted(folder.rglob("detections_*.npz"))}


def test_a_row_for_each_detection_and_each_object() -> None:
    """The first image has a detection and two objects, the second nothing."""
    box = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    none = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0)}
    found = [{"boxes": box, "scores": torch.tensor([0.5]), "labels": torch.tensor([2])}, none]
    targets = torch.full((2, 3, 5), -1.0)
    targets[0, 0] = torch.tensor([1.0, 5, 6, 7, 8])
    targets[0, 2] = torch.tensor([0.0, 9, 9, 10, 10])
    rows = tabulate(found, targets)
    nan = torch.nan
    expected = [[0, 2, 0.5, 1, 2, 3, 4], [0, 1, nan, 5, 6, 7, 8], [0, 0, nan, 9, 9, 10, 10]]
    assert torch.equal(rows.nan_to_num(-1), torch.tensor(expected, dtype=torch.float64).nan_to_num(-1))
    assert tabulate([none], targets[1:]).shape == (0, 7)


def test_what_the_global_model_finds_after_the_rounds_that_are_due(tmp_path: Path) -> None:
    """Rounds 2 and 3, the last: the first images of the test set, their objects, and what the model itself finds."""
    arrays = measured(tmp_path, DetectionMonitor(images=3, every=2))
    assert list(arrays) == ["detections_2.npz", "detections_3.npz"]
    assert list(measured(tmp_path / "last", DetectionMonitor(images=1))) == ["detections_3.npz"]
    images, boxes = arrays["detections_3.npz"].values()
    data = shapes()
    data.seed = 0
    data.setup("fit")
    pixels, targets = next(iter(data.val_dataloader()))
    assert np.array_equal(images, pixels[:3].numpy())
    true = boxes[np.isnan(boxes[:, 2])]
    objects = targets[:3][targets[:3, :, 0] >= 0]
    assert np.array_equal(true[:, [1, 3, 4, 5, 6]], objects.numpy())
    run = trainer(rounds=3)
    orchestrator = FederatedOrchestrator(detector())
    run.fit(orchestrator, datamodule=shapes())
    orchestrator.client.eval()
    with torch.no_grad():
        found = orchestrator.client.predict_step([pixels[:3] / 255, targets[:3]], 0)
    scores = torch.cat([image["scores"] for image in found]).double().numpy()
    assert len(scores)
    assert boxes[~np.isnan(boxes[:, 2]), 2] == pytest.approx(scores)


def test_a_picture_for_loggers(tmp_path: Path) -> None:
    measured(tmp_path, DetectionMonitor(), logger=TensorBoardLogger(tmp_path, name="", version="tb"))
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [event.step for event in events.Images("detections/images")] == [3]


def test_refuses_what_is_no_detector(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="draws what a Detector finds, got Quadratic: leave it out"):
        trainer(DetectionMonitor()).fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
