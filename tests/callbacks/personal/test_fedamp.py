"""FedAMP by hand, and its cloud models beside PFLlib's."""

from math import e

import pytest
import torch
from lib.hand_made import serve
from lib.toy import close
from lib.two_numbers import served

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import FedAMP

QUARTER = 0.25 * 13 * e  # α with which a model at the squared distance 13 enters by 1/4, where σ = 13


def test_cloud_models_are_pfllibs() -> None:
    """PFLlib, ``serveramp.py``, of models (1, 2), (2, 1.5) and (-1, 0.5) with alphaK = 0.7 and sigma = 2."""
    rule = FedAMP(0.7, 2.0)
    server, _ = serve([[1.0, 2.0], [2.0, 1.5], [-1.0, 0.5]], rule)
    clouds = [rule.start(server, client, server.params, [])[0] for client in range(3)]
    expected = [
        [1.1565856464452613, 1.8832623598568876],
        [1.8055836556693137, 1.5913124685411433],
        [-0.9621693021145751, 0.5254251716019688],
    ]
    assert close(torch.stack(clouds), expected)


def test_two_clients_by_hand() -> None:
    """Models (1, 1) and (3, -2) after round 1; round 2 starts from (1.5, 0.25) and (2.5, -1.25), and adds as much."""
    assert served(FedAMP(QUARTER, 13.0, lam=0.0))[1] == [[1.0, 1.0], [3.0, -2.0]]
    model, own = served(FedAMP(QUARTER, 13.0, lam=0.0), rounds=2)
    assert model == [4.0, -1.0]
    assert close(torch.tensor(own), [[2.5, 1.25], [5.5, -3.25]], 1e-6)


def test_the_pull_is_to_the_cloud_model() -> None:
    """λ/α = 1/2, two steps: 1 + 1 - 1/2 · 1 = 1.5."""
    assert served(FedAMP(2.0, 1.0, lam=1.0), steps=2)[1] == [[1.5, 1.5], [4.5, -3.0]]


def test_clients_that_are_away_keep_their_last_models() -> None:
    """Client 2 is new in round 2, when client 0 is away: cloud models of all three are made of all three."""
    rule = FedAMP(0.1, 5.0)
    server, _ = serve([[1.0, 2.0], [2.0, 1.5], [-1.0, 0.5]], rule, cohorts=[[0, 1], [1, 2]])
    assert rule.state["clients"].tolist() == [0, 1, 2]
    assert close(rule.state["model/0"], [1.0, 2.0])
    assert close(rule.state["model/2"] - server.params, torch.tensor([-1.0, 0.5]) - torch.tensor([0.5, 1.0]))
    assert close(rule.state["weights"].sum(1), [1.0, 1.0, 1.0])


@pytest.mark.parametrize("arguments", [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, -1.0)])
def test_arguments(arguments: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        FedAMP(*arguments)
