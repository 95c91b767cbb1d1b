"""FedDisco by hand on clients of two classes."""

from typing import Any

import pytest
import torch
from lib.hand_made import serve
from lib.toy import GivenData, close
from torch import Tensor

from fl_lightning import ConfigurationError, FederatedCallback
from fl_lightning.callbacks import CoordinateMedian, FedAvg, FedDisco, PCGrad
from fl_lightning.engine.checks import check_chain

UPDATES = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()


class Classes(GivenData):
    """Client 0 has one example of each class, client 1 has six of one: 0 and 1/√2 from even shares; n is 8."""

    def class_counts(self) -> Tensor:
        return torch.tensor([[1, 1], [6, 0]])


@pytest.mark.parametrize(
    ("a", "b", "weights"),
    [
        (0.0, 0.0, (0.25, 0.75)),
        (0.5**0.5, 0.0, (0.25, 0.25)),  # 3/4 - 1/2
        (2.0, 0.0, (0.25, 0.0)),
        (0.5**0.5, 0.25, (0.5, 0.5)),
    ],
)
def test_weights(a: float, b: float, weights: Any) -> None:
    server, _ = serve(UPDATES, FedDisco(a, b), samples=[2, 6], data=Classes)
    assert close(server.params, [weight / sum(weights) for weight in weights])


class Skewed(GivenData):
    """One class each: both are 1/√2 from even."""

    def class_counts(self) -> Tensor:
        return torch.tensor([[2, 0], [6, 0]])


def test_if_nobody_counts_all_do_as_in_fedavg() -> None:
    server, _ = serve(UPDATES, FedDisco(2.0, 0.1), samples=[2, 6], data=Skewed)
    assert close(server.params, [0.25, 0.75])


@pytest.mark.parametrize("chain", [(FedDisco(), PCGrad()), (FedDisco(), FedAvg()), (CoordinateMedian(), FedDisco())])
def test_a_chain_that_would_undo_the_weights_is_refused(chain: tuple[FederatedCallback, FederatedCallback]) -> None:
    with pytest.raises(ConfigurationError, match="do not go together"):
        check_chain(chain)


def test_weights_follow_what_corrects_the_updates() -> None:
    check_chain((PCGrad(), FedDisco()))


def test_arguments() -> None:
    with pytest.raises(ConfigurationError, match="a must be"):
        FedDisco(-1.0)
