"""WithGroupNorm: the normalisation by hand, what stays, and what it refuses."""

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fl_lightning import ConfigurationError
from fl_lightning.models import CifarResNet, TimmNetwork, TwoNN, WithGroupNorm


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def groups(network: nn.Module) -> list[int]:
    return [part.num_groups for part in network.modules() if isinstance(part, nn.GroupNorm)]


def test_by_hand() -> None:
    """Two channels in one group: 1, 3, 5, 7 have mean 4 and variance 5, with eps 4 a deviation of 3: -1, -1/3, 1/3, 1.
    Times weight (1, 2) plus bias (0, 1).
    """
    norm = nn.BatchNorm2d(2, eps=4.0)
    norm.weight.data, norm.bias.data = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])
    network = WithGroupNorm(nn.Sequential(norm), groups=1)
    images = torch.tensor([[[[1.0, 3.0]], [[5.0, 7.0]]], [[[0.0, 0.0]], [[9.0, 9.0]]]])
    assert torch.allclose(network(images)[0], torch.tensor([[[-1.0, -1 / 3]], [[5 / 3, 3.0]]]))
    assert torch.equal(network(images[:1]), network(images)[:1])  # whatever else is in the batch


@pytest.mark.parametrize(
    ("channels", "most", "chosen"), [(64, 32, 32), (24, 32, 24), (48, 32, 24), (37, 32, 1), (6, 4, 3)]
)
def test_largest_divisor(channels: int, most: int, chosen: int) -> None:
    assert groups(WithGroupNorm(nn.Sequential(nn.BatchNorm2d(channels)), most)) == [chosen]


@pytest.mark.parametrize(
    "name", ["mobilenetv2_100", "resnet18", pytest.param("densenet121", marks=pytest.mark.slow), "CifarResNet"]
)
def test_every_batch_norm_goes(name: str) -> None:
    """As many GroupNorms as there were BatchNorms, the same parameters, and no buffers."""
    with torch.device("meta"):
        network = CifarResNet() if name == "CifarResNet" else TimmNetwork(name)
        parameters = {id(parameter) for parameter in network.parameters()}
        before = sum(isinstance(part, _BatchNorm) for part in network.modules())
        made = WithGroupNorm(network)
    assert len(groups(made)) == before > 0
    assert not any(isinstance(part, _BatchNorm) for part in made.modules())
    assert {id(parameter) for parameter in made.parameters()} == parameters
    assert not [*made.buffers()]
    assert made(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, 10)


def test_activation_that_the_norm_carries_stays() -> None:
    """The first norm in MobileNetV2's first block ends in ReLU6, the second in nothing."""
    block = WithGroupNorm(TimmNetwork("mobilenetv2_100")).network.network.blocks[0][0]
    large = 100 * torch.randn(1, 32, 8, 8)
    assert (block.bn1(large).min(), block.bn1(10 * block.bn1.weight[0] * large).max() <= 6) == (0, True)
    assert block.bn2(torch.randn(1, 16, 8, 8)).min() < 0


def test_a_norm_in_two_places_and_without_affine() -> None:
    shared = nn.BatchNorm2d(4)
    made = WithGroupNorm(nn.Sequential(shared, nn.ReLU(), shared, nn.BatchNorm1d(8, affine=False).eval()), 2)
    assert groups(made) == [2, 2, 2]
    assert size(made) == 8
    assert [part.training for part in made.modules() if isinstance(part, nn.GroupNorm)] == [True, True, False]


def test_refuses_a_network_without_batch_norm() -> None:
    with pytest.raises(ConfigurationError, match="network must have BatchNorm layers, got TwoNN, which has none"):
        WithGroupNorm(TwoNN())


@pytest.mark.parametrize("number", [0])
def test_refuses_no_groups(number: int) -> None:
    with pytest.raises(ConfigurationError, match=f"groups must be at least 1, got {number}"):
        WithGroupNorm(CifarResNet(8), number)
