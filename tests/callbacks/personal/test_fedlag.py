"""FedLAG: which layers become the clients' own, beside the authors' code, and what then stays with them."""

import pytest
import torch
from lib.hand_made import serve
from lib.two_numbers import served
from lightning.pytorch import LightningModule
from torch import nn

from fl_lightning import ConfigurationError
from fl_lightning.callbacks import FedLAG
from fl_lightning.callbacks.personal.fedlag import conflict_counts

DRAWN = torch.randn(5, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
SIZES = [4, 2, 2, 1]


class FourLayers(LightningModule):
    """Parameters of 4, 2, 2 and 1 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2).double(), nn.Linear(2, 1).double()


@pytest.mark.parametrize(("threshold", "counts"), [(0.0, [4, 6, 3, 4]), (-0.5, [2, 5, 2, 4])])
def test_the_scores_are_those_of_the_authors_code(threshold: float, counts: list[int]) -> None:
    """github.com/khanhkhanhlele/FedLAG, ``pair_cos`` of ``serverbase.py`` and the count in ``serverlag.py``."""
    layers = [part @ part.T for part in torch.split(DRAWN, SIZES, dim=1)]
    assert conflict_counts(layers, threshold).tolist() == counts
    rule = FedLAG(2, 2, threshold)
    serve(DRAWN, rule, rounds=2, client=FourLayers())
    assert rule.state["counts"].tolist() == [2 * count for count in counts]
    assert rule.state["own"].tolist() == sorted(range(4), key=lambda layer: (-counts[layer], layer))[:2]


def test_the_layer_in_conflict_becomes_the_clients_own() -> None:
    """The first numbers go by 1 and 3, the second by 1 and -2: the latter conflict, and stay from round 2 on.

    The global model is (2, -1/2) after the first round, from which each client's own number begins.
    """
    assert served(FedLAG(1, 1), rounds=1) == ([2.0, -0.5], [[2.0, -0.5], [2.0, -0.5]])
    assert served(FedLAG(1, 1), rounds=2) == ([4.0, -0.5], [[4.0, 0.5], [4.0, -2.5]])
    assert served(FedLAG(1, 1), rounds=3) == ([6.0, -0.5], [[6.0, 1.5], [6.0, -4.5]])
    assert served(FedLAG(3, 1), rounds=3)[0] == [6.0, -1.5]


def test_a_module_with_too_few_parameters_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"FedLAG with layers=2 needs a module with more parameters.*, got 2$"):
        served(FedLAG(1, 2))
    with pytest.raises(ConfigurationError, match=r"threshold must be in \[-1, 1\], got 2.0"):
        FedLAG(threshold=2.0)
