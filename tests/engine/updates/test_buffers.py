"""Buffers whose mean is not of their kind: unit vectors, and numbers that follow from other tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import Capture, trainer
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.nn.functional import normalize
from torch.nn.utils import spectral_norm as older_spectral_norm
from torch.nn.utils.parametrizations import orthogonal, spectral_norm

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import LocalPart

Make = Callable[[], nn.Module]


class Own(TinyClassifier):
    """Another network, at a rate at which clients drift apart."""

    def __init__(self, make: Make) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = make().double()  # type: ignore[assignment]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def trained(make: Make, *rules: Any, rounds: int = 5, at_once: int = 1) -> Any:
    orchestrator = FederatedOrchestrator(Own(make), clients_at_once=at_once, on_bad_update="raise")
    trainer(*rules, rounds=rounds).fit(orchestrator, datamodule=TinyData(batch_size=4))
    return orchestrator.client.net


def two_layers(norm: Any) -> nn.Module:
    return nn.Sequential(norm(nn.Linear(4, 16)), nn.Tanh(), norm(nn.Linear(16, 3)))


@pytest.mark.parametrize("norm", [spectral_norm, older_spectral_norm], ids=["parametrization", "hook"])
def test_spectral_norms_of_the_global_model_are_one(norm: Any) -> None:
    """In ``eval()``, the weight is divided by u'Wv, which is NumPy's largest singular value where u and v fit it."""
    net = trained(lambda: two_layers(norm)).eval()
    net(torch.zeros(1, 4).double())
    for layer in (net[0], net[2]):
        largest = np.linalg.svd(layer.weight.detach().numpy(), compute_uv=False)[0]
        assert largest == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("map_name", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_weights_stay_orthogonal(map_name: str) -> None:
    """The mean is over the parameters from which torch makes the weight, orthogonal whatever they are."""
    weight = trained(lambda: nn.Sequential(orthogonal(nn.Linear(4, 3), orthogonal_map=map_name)))[0].weight
    np.testing.assert_allclose((weight @ weight.T).detach().numpy(), np.eye(3), atol=1e-6)


class Quantized(nn.Module):
    """A layer whose inputs are rounded to 256 levels between the smallest and the largest seen so far."""

    def __init__(self) -> None:
        super().__init__()
        self.rounded = FakeQuantize(observer=MovingAverageMinMaxObserver, averaging_constant=0.5)
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.rounded(x.float()).double())  # type: ignore[no-any-return]


def test_scale_and_zero_point_are_those_of_the_averaged_range() -> None:
    """256 levels: scale = (high - low) / 255, and the level that stands for 0 is round(-low / scale)."""
    rounded = trained(Quantized, rounds=2).rounded
    low, high = (float(getattr(rounded.activation_post_process, name)) for name in ("min_val", "max_val"))
    scale = (high - low) / 255
    assert float(rounded.scale) == pytest.approx(scale, rel=1e-5)
    assert int(rounded.zero_point) == round(-low / scale)


class Bank(nn.Module):
    """Keeps the directions of its last eight outputs, one in each column, as a queue of keys does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("keys", normalize(torch.randn(3, 8), dim=0))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)
        self.keys: Tensor = normalize(torch.cat([outputs.T.detach(), self.keys], 1)[:, :8], dim=0)
        self.mean: Tensor = outputs.detach().mean(0)
        return outputs


def test_unit_vectors_whose_mean_is_shorter_are_named_once() -> None:
    with pytest.warns(
        UserWarning, match=r"^net.keys holds vectors of unit norm on every client.*LocalPart.*net.keys"
    ) as told:
        net = trained(Bank)
    assert float(net.keys.norm(dim=0).max()) < 1
    assert sum("unit norm" in str(each.message) for each in told) == 1


class Marks(nn.Module):
    """Marks the place of its last largest output by a one: a mean of marks is a share, and no shorter vector."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mark", torch.eye(3)[0])

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)
        self.mark: Tensor = torch.eye(3)[int(outputs.detach().mean(0).argmax())]
        return outputs


def test_what_stays_with_the_clients_and_marks_are_not_named(recwarn: pytest.WarningsRecorder) -> None:
    trained(Bank, LocalPart(["net.keys"]))
    trained(Marks)
    assert not [each for each in recwarn if "unit norm" in str(each.message)]


def test_batch_norm_is_as_it_was() -> None:
    """The mean of the clients' running means, weighted by their 4, 6, … 14 examples."""
    orchestrator, capture = FederatedOrchestrator(TinyClassifier(), on_bad_update="raise"), Capture()
    trainer(capture).fit(orchestrator, datamodule=TinyData(batch_size=4))
    sizes, means = np.arange(4, 16, 2), np.array([each["net.0.running_mean"].numpy() for each in capture.buffers])
    order = np.argsort(capture.clients)
    now = dict(orchestrator.client.named_buffers())["net.0.running_mean"]
    np.testing.assert_allclose(now.numpy(), sizes / sizes.sum() @ means[order], rtol=1e-12)
