"""Default arguments: whatever is made with them can be pickled and copied, before a fit and after."""

import copy
import pickle
from typing import Any

import pytest
import torch
from lib.toy import Quadratic, ToyData, trainer
from torch import nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.arguments import picklable_defaults
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
