"""What holds for every network: shapes, gradients, seeds, and a short name of its own in YAML."""

import copy
from collections.abc import Callable

import jsonargparse
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fl_lightning.cli  # noqa: F401  # with it, all that a short name could mean
from fl_lightning.models import (
    CifarAlexNet,
    CifarResNet,
    FedLAWLeNet,
    LeNet,
    LogisticRegression,
    MultilayerPerceptron,
    PooledCNN,
    SimpleCNN,
    TimmNetwork,
    TwoLayerCNN,
    TwoNN,
    WithGroupNorm,
    WithProjection,
)

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "logistic regression": (lambda: LogisticRegression(7), GREY),
    "2NN": (lambda: TwoNN(7), GREY),
    "2NN on 8×8": (lambda: TwoNN(7, in_features=64), (1, 8, 8)),
    "perceptron": (lambda: MultilayerPerceptron(7, 3072, (5, 4, 3)), COLOUR),
    "pooled CNN": (lambda: PooledCNN(7), GREY),
    "pooled CNN, three convolutions": (lambda: PooledCNN(7, 3, 33, (2, 3, 4), (6, 5), padding=1), (3, 33, 33)),
    "LeNet": (lambda: LeNet(7), COLOUR),
    "LeNet on grey": (lambda: LeNet(7, 1, 28), GREY),
    "FedLAW's LeNet": (lambda: FedLAWLeNet(7), GREY),
    "FedLAW's LeNet on 32×32": (lambda: FedLAWLeNet(7, 3, 32), COLOUR),
    "two-layer CNN": (lambda: TwoLayerCNN(7), COLOUR),
    "two-layer CNN on grey": (lambda: TwoLayerCNN(7, 1, 28), GREY),
    "two-layer CNN, smallest": (lambda: TwoLayerCNN(7, image_size=10), (3, 10, 10)),
    "simple CNN": (lambda: SimpleCNN(7), COLOUR),
    "AlexNet": (lambda: CifarAlexNet(7), COLOUR),
    "ResNet8": (lambda: CifarResNet(8, 7), (3, 16, 16)),
    "wide ResNet8 on grey": (lambda: CifarResNet(8, 7, in_channels=1, width=2), GREY),
    "resnet10t": (lambda: TimmNetwork("resnet10t", 7, 1), (1, 32, 32)),
    "mobilenetv2_050": (lambda: TimmNetwork("mobilenetv2_050", 7), COLOUR),
    "mobilenetv2_050 with GroupNorm": (lambda: WithGroupNorm(TimmNetwork("mobilenetv2_050", 7)), COLOUR),
    "ResNet8 with GroupNorm and projection": (lambda: WithProjection(WithGroupNorm(CifarResNet(8, 7)), 5, 4), COLOUR),
}
every = pytest.mark.parametrize("name", NETWORKS)


def made(name: str) -> nn.Module:
    torch.manual_seed(3)
    return NETWORKS[name][0]()


@every
def test_output_is_one_row_of_logits_per_image(name: str) -> None:
    with torch.no_grad():
        logits = made(name).eval()(torch.randn(3, *NETWORKS[name][1]))
    assert logits.shape == (3, 7)
    assert logits.isfinite().all()


@every
def test_gradient_reaches_every_parameter(name: str) -> None:
    """In timm the last norm of a residual branch starts at zero, which blocks the branch: here it starts elsewhere."""
    network = made(name)
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    F.cross_entropy(network(torch.randn(8, *NETWORKS[name][1])), torch.arange(8) % 7).backward()
    for part, parameter in network.named_parameters():
        assert parameter.grad is not None, part
        assert parameter.grad.isfinite().all(), part
        assert parameter.grad.any(), part


@every
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    first, second, other = made(name), made(name), NETWORKS[name][0]()
    for (part, one), two in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(one, two), part
    assert not all(torch.equal(one, two) for one, two in zip(first.parameters(), other.parameters(), strict=True))
    assert copy.deepcopy(first).state_dict().keys() == first.state_dict().keys()


OWN = [CifarAlexNet, CifarResNet, FedLAWLeNet, LeNet, LogisticRegression, MultilayerPerceptron, PooledCNN, SimpleCNN]


@pytest.mark.parametrize("network", [*OWN, TimmNetwork, TwoLayerCNN, TwoNN, WithGroupNorm, WithProjection])
def test_short_name_means_this_class(network: type[nn.Module]) -> None:
    """There is an MLP and an AlexNet in torchvision: a name of two classes is refused on the command line."""
    name = network.__name__
    needed = ["--network.name=resnet10t"] if name == "TimmNetwork" else ["--network.network=CifarResNet"]
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--network", type=nn.Module)
    parsed = parser.parse_args([f"--network={name}", *(needed if name.startswith(("Timm", "With")) else [])])
    assert parsed.network.class_path == f"fl_lightning.models.{name}"
