"""FedNTD: the term by hand, and the global model as the teacher."""

import math

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import Capture, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedNTD
from fl_lightning.callbacks.client.fedntd import not_true_distillation


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_other_classes_alone(temperature: float) -> None:
    """1 : 1 against 3 : 1 (or its root): ½ ln (½ / p) + ½ ln (½ / (1 - p)), times τ²; the own class says nothing."""
    p = 3 ** (1 / temperature) / (1 + 3 ** (1 / temperature))
    expected = temperature**2 * (math.log(0.5 / p) + math.log(0.5 / (1 - p))) / 2
    logits, teacher = torch.tensor([[math.log(3), 0.0, 5.0]]), torch.tensor([[0.0, 0.0, 9.0]])
    assert float(not_true_distillation(logits, teacher, torch.tensor([2]), temperature)) == pytest.approx(expected)


def losses(rule: FedNTD, steps: int) -> list[list[float]]:
    orchestrator, capture = FederatedOrchestrator(TinyClassifier(), local_steps=steps, on_bad_update="raise"), Capture()
    trainer(rule, capture, rounds=2).fit(orchestrator, datamodule=TinyData(batch_size=20))
    return [cohort.losses.tolist() for cohort in capture.cohorts]


def test_the_teacher_is_what_the_client_starts_from() -> None:
    """In evaluation mode, so that it differs from the student by its BatchNorm at once; by nothing if β is 0."""
    plain, distilled = losses(FedNTD(beta=0.0), 1), losses(FedNTD(beta=2.0), 1)
    assert all(more > less for more, less in zip(distilled[0], plain[0], strict=True))


@pytest.mark.parametrize("arguments", [(-1.0, 1.0), (1.0, 0.0)])
def test_arguments(arguments: tuple[float, float]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        FedNTD(*arguments)
