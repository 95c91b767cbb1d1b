"""Which values of a metric are better: a module's word, then that of a torchmetrics object, and never a name."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, MeanMetric, Metric, MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryF1Score
from torchmetrics.text import Perplexity

from fl_lightning import ConfigurationError
from fl_lightning.better import better_in, better_of
from fl_lightning.models import CausalLM, Detector, ImageClassifier


class Says(nn.Module):
    """A module that says something of three metrics, in the ways in which users write it."""

    lower_is_better = ("val/bce",)
    higher_is_better: Any = "val/f1"


class Renamed(BinaryF1Score):
    """Computes what its parent computes."""


class Inverse(BinaryF1Score):
    """Computes something else."""

    def compute(self) -> Tensor:
        return 1 / super().compute()


class Own(Metric):
    """A metric of a user's, which says that lower values are better."""

    higher_is_better = False

    def update(self, value: Tensor) -> None: ...

    def compute(self) -> Tensor:
        return torch.zeros(())


@pytest.mark.parametrize(
    ("name", "value", "better"),
    [
        ("val/bce", None, "lower"),
        ("val/f1", None, "higher"),
        ("val/loss", 0.5, None),
        ("val/mae", None, None),
        ("val/top1", torch.tensor(0.5), None),
        ("val/loss", BinaryAccuracy(), "higher"),
        ("val/top1", MeanAbsoluteError(), "lower"),
        ("val/bce", BinaryAccuracy(), "lower"),
        ("val/x", Perplexity(), "lower"),
        ("val/x", Renamed(), "higher"),
        ("val/x", Inverse(), None),
        ("val/x", 1 - BinaryF1Score(), None),
        ("val/x", MeanMetric(), None),
        ("val/x", Own(), "lower"),
    ],
)
def test_the_modules_word_stands_before_the_objects(name: str, value: Any, better: str | None) -> None:
    assert better_of(Says(), name, value) == better


@pytest.mark.parametrize("other", [True, None, 3, torch.ones(2)])
def test_an_attribute_that_lists_no_names_is_for_something_else(other: Any) -> None:
    module = nn.Module()
    module.lower_is_better = other
    assert better_of(module, "val/bce") is None


def test_a_name_stands_on_one_side() -> None:
    with pytest.raises(ConfigurationError, match=r"^a, c cannot be in lower_is_better and in higher_is_better: leave"):
        better_in(["c", "a", "b"], ["a", "c", "d"])


@pytest.mark.parametrize("cls", [ImageClassifier, CausalLM, Detector])
def test_shipped_modules_name_all_that_they_log(cls: type) -> None:
    """Beside the objects that they log: MeanMetric does not say it, and what the others say is the same."""
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    module.num_classes, module.vocabulary = 3, 5
    if cls is Detector:
        names = {f"{stage}/{name}" for stage in ("val", "test") for name in ("map50", "loss")}
        assert {*cls.lower_is_better, *cls.higher_is_better} == names  # type: ignore[attr-defined]
        return
    collections: list[MetricCollection] = [module._metrics(f"{stage}/") for stage in ("val", "test")]
    logged = {name: metric for collection in collections for name, metric in collection.items()}
    assert {*cls.lower_is_better, *cls.higher_is_better} == set(logged)  # type: ignore[attr-defined]
    for name, metric in logged.items():
        assert better_of(nn.Module(), name, metric) in (None, better_of(module, name)), name
