"""Default arguments: whatever is made with them can be pickled and copied, before a fit and after."""

import copy
import pickle
from collections import OrderedDict
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.toy import Quadratic, ToyData, trainer
from torch import nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.arguments import Kind, as_text, kind_of, picklable_defaults
from fl_lightning.callbacks import ConflictMonitor, Scaffold
from fl_lightning.datamodules import Digits, Dirichlet
from fl_lightning.models import ImageClassifier


@picklable_defaults
class Maker:
    def __init__(self, make: Any = lambda: 3, number: int = 2) -> None:
        self.made, self.number = make, number


def test_lambdas_are_found_by_their_names() -> None:
    again = pickle.loads(pickle.dumps(Maker()))
    assert (again.made(), again.number) == (3, 2)
    assert [name for name in vars(Maker) if name.startswith("_default_")] == ["_default_make"]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_trains_on_as_the_original(again: Any) -> None:
    """Before a fit and after it, with its data and its callbacks."""
    original = FederatedOrchestrator(Quadratic()), ToyData(), [Scaffold(), ConflictMonitor()]
    for _ in range(2):
        copied = again(original)
        for orchestrator, data, callbacks in (original, copied):
            trainer(*callbacks, rounds=2).fit(orchestrator, datamodule=data)
        assert torch.equal(copied[0].client.w, original[0].client.w)


def test_shipped_modules_and_data() -> None:
    made = ImageClassifier(nn.Linear(64, 10)), Digits(num_clients=4, partition=Dirichlet(1.0))
    module, data = pickle.loads(pickle.dumps(made))
    assert data.num_clients == 4
    assert module.configure_optimizers().param_groups[0]["lr"] == 0.01


class Size(IntEnum):
    SMALL = 1


SETTINGS = [  # a value, its kind, and its text
    (None, Kind.PLAIN, "None"),
    (0.5, Kind.PLAIN, "0.5"),
    (np.float32(0.5), Kind.PLAIN, "np.float32(0.5)"),
    (Size.SMALL, Kind.PLAIN, "<Size.SMALL: 1>"),
    (torch.float64, Kind.PLAIN, "torch.float64"),
    ("a/b", Kind.PLAIN, "a path"),
    (Path("a"), Kind.PATH, "a path"),
    (np.array(["b", "a"]), Kind.ARRAY, "['b', 'a']"),
    (OrderedDict(a=1), Kind.MAPPING, "{a: 1}"),
    ((1, "b"), Kind.LIST, "[1, 'b']"),
    ({"b", "a"}, Kind.SET, "['a', 'b']"),
    (partial(max, 1, key=abs), Kind.PARTIAL, "max([1], {key: abs})"),
    (nn.Linear, Kind.NAMED, "Linear"),
    (len, Kind.NAMED, "len"),
    (torch, Kind.MODULE, "torch"),
    (Maker(number=3), Kind.OBJECT, "Maker(number=3)"),
    (torch.device("cpu"), Kind.OBJECT, "device()"),
]


@pytest.mark.parametrize(("value", "kind", "text"), SETTINGS, ids=[text for *_, text in SETTINGS])
def test_a_setting_is_written_by_its_kind(value: Any, kind: Kind, text: str) -> None:
    assert (kind_of(value), as_text(value)) == (kind, text)


def test_a_tensor_is_told_by_its_shape_and_its_numbers() -> None:
    first = as_text(torch.tensor([1.0, 2.0]))
    assert first.startswith("(2,) torch.float32 ")
    assert kind_of(torch.ones(1)) is Kind.ARRAY
    assert as_text(np.array([1.0, 2.0], np.float32)) == first
    assert as_text(torch.tensor([1.0, 2.5])) != first
