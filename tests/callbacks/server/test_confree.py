"""ConFREE beside its authors' code, and what it is made of."""

import pytest
import torch
from lib.hand_made import apply
from lib.toy import UPDATES, close
from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning.callbacks import CAGrad, ConFREE, FedAvg, PCGrad


class FourLayers(LightningModule):
    """Parameters of 2, 1, 2 and 1 numbers, all of them 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 1).double(), nn.Linear(2, 1).double()
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


# Each client's part of each parameter has length 1, where the released projections need no division.
UNIT = [[0.6, 0.8, 1.0, -1.0, 0.0, 1.0], [-1.0, 0.0, 1.0, 0.8, 0.6, 1.0], [0.8, -0.6, -1.0, -0.28, -0.96, -1.0]]


@pytest.mark.parametrize(
    ("c", "model"),
    [
        (0.0, [0.12799999, -0.02933333, 1e-8, -0.08735999, -0.09951999, 1e-8]),
        (0.5, [0.04987275, -0.02346667, 1e-8, -0.02751245, -0.04783434, 1e-8]),
    ],
)
def test_the_model_is_that_of_the_authors_code(c: float, model: list[float]) -> None:
    """github.com/StuZheng/ConFREE, ``ConFREE.py`` with alpha = c, in double precision, each order ascending."""
    assert close(apply(UNIT, ConFREE(c, "ascending"), client=FourLayers())[0], model, 1e-6)


def test_one_layer_with_no_radius_is_pcgrad() -> None:
    """The updates conflict in each pair; a toy module is one layer."""
    assert close(apply(UPDATES, ConFREE(0.0, "ascending"))[0], apply(UPDATES, PCGrad(order="ascending"))[0])


def test_without_conflict_it_is_cagrad() -> None:
    updates = torch.tensor(UPDATES).abs().tolist()
    assert close(apply(updates, ConFREE(0.5))[0], apply(updates, CAGrad(0.5, rescale=True))[0], 1e-6)


def test_weights_count_in_the_guide() -> None:
    """Of two orthogonal updates, the second client has three times as many examples."""
    updates = [[1.0, 0.0], [0.0, 1.0]]
    assert close(apply(updates, ConFREE(0.0), samples=[1, 3])[0], [0.25, 0.75])
    assert close(apply(updates, FedAvg("uniform"), ConFREE(0.0), samples=[1, 3])[0], [0.5, 0.5])


def test_a_client_whose_layer_does_not_move() -> None:
    """The guide is (0.5, 0) and no step helps the client without an update: the guide divided by 1 + 0.25."""
    assert close(apply([[1.0, 0.0], [0.0, 0.0]], ConFREE())[0], (0.4, 0.0), 1e-15)
