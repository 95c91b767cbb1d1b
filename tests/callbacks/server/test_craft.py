"""CRAFT, by hand in its docstring, and beside its authors' code."""

import torch
from lib.hand_made import apply, serve
from lib.toy import close
from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning.callbacks import CRAFT
from fl_lightning.callbacks.server.craft import nearest_aligned

UPDATES = [[2.0, 0.0, 1.0, 1.0, -1.0], [-1.0, 1.0, 0.0, 2.0, 0.5], [0.5, -3.0, 1.0, -1.0, 1.0]]


class TwoLayers(LightningModule):
    """Three parameters in the first layer, two in the second, all of them 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 1).double(), nn.Linear(1, 1).double()
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


def test_the_models_are_those_of_the_authors_code() -> None:
    """github.com/tum-pbs/CRAFT, ``fed/craft.py`` with server_lr 0.1 and ρ = (1, 2, 1)/4, in double precision.

    Of its four rounds, the second has two clients of three, and the third has one, whose update is followed.
    """
    cohorts = [[0, 1, 2], [0, 2], [1], [0, 1, 2]]
    models = [
        [-0.0525043084, 0.0182063697, 0.1609103163, 0.0412310563, 0.0412310563],
        [-0.0543466386, 0.0030359658, 0.2763983755, 0.1119417344, 0.1119417344],
        [-0.1543466386, 0.1030359658, 0.2763983755, 0.3119417344, 0.1619417344],
        [-0.2068509470, 0.1212423355, 0.4373086918, 0.3531727906, 0.2031727906],
    ]
    for rounds in range(1, 5):
        server, _ = serve(UPDATES, CRAFT(), samples=[1, 2, 1], cohorts=cohorts[:rounds], client=TwoLayers())
        assert close(server.params, models[rounds - 1], 1e-8), rounds


def test_the_products_with_unit_updates_are_the_shares() -> None:
    """In round 1 the direction is the shortest; here it has the products 1/4, 1/2 and 1/4 in five dimensions."""
    updates = torch.tensor(UPDATES).double()
    step, _ = apply(UPDATES, CRAFT(lr=1.0), samples=[1, 2, 1])
    assert close(updates @ step / updates.norm(dim=1), [0.25, 0.5, 0.25])


def test_zero_updates_do_not_count() -> None:
    assert close(apply([[0.0, 0.0]] * 2, CRAFT())[0], [0.0, 0.0])
    three = apply([[2.0, 0.0], [0.0, 0.0], [1.0, 1.0]], CRAFT())[0]
    assert close(three, apply([[2.0, 0.0], [1.0, 1.0]], CRAFT())[0])


def test_shares_of_zero_are_equal_ones() -> None:
    gram = torch.eye(2).double()
    zero = torch.zeros(2).double()
    coefficients, kept = nearest_aligned(gram, zero, zero, zero[0])
    assert close(coefficients, [0.5, 0.5])
    assert kept == 0
