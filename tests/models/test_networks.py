"""What holds for every network: shapes, gradients, seeds, and a short name of its own in YAML."""

import copy
from collections.abc import Callable

import jsonargparse
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import nn

import fl_lightning.cli  # noqa: F401  # with it, all that a short name could mean
from fl_lightning import models
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
    "perceptron": (lambda: MultilayerPerceptron(7, 3072, (5, 4, 3)), COLOUR),
    "pooled CNN": (lambda: PooledCNN(7), GREY),
    "pooled CNN, three convolutions": (lambda: PooledCNN(7, 3, 33, (2, 3, 4), (6, 5), padding=1), (3, 33, 33)),
    "LeNet": (lambda: LeNet(7), COLOUR),
    "FedLAW's LeNet": (lambda: FedLAWLeNet(7), GREY),
    "two-layer CNN, smallest": (lambda: TwoLayerCNN(7, image_size=10), (3, 10, 10)),
    "two-layer CNN on grey": (lambda: TwoLayerCNN(7, 1, 28), GREY),
    "simple CNN": (lambda: SimpleCNN(7), COLOUR),
    "AlexNet": (lambda: CifarAlexNet(7), COLOUR),
    "wide ResNet8 on grey": (lambda: CifarResNet(8, 7, in_channels=1, width=2), GREY),
    "resnet10t": (lambda: TimmNetwork("resnet10t", 7, 1), (1, 32, 32)),
    "mobilenetv2_050 with GroupNorm": (lambda: WithGroupNorm(TimmNetwork("mobilenetv2_050", 7)), COLOUR),
    "ResNet8 with GroupNorm and projection": (lambda: WithProjection(WithGroupNorm(CifarResNet(8, 7)), 5, 4), COLOUR),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_shape_gradients_and_seed(name: str) -> None:
    """A row of logits for each image, a gradient for each parameter, and weights that depend on the seed alone.

    In timm the last norm of a residual branch starts at zero, which blocks the branch: here it starts elsewhere.
    """
    make, shape = NETWORKS[name]
    torch.manual_seed(3)
    network = make()
    torch.manual_seed(3)
    again, other = make(), make()
    for (part, one), two in zip(network.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two), part
    assert not all(torch.equal(one, two) for one, two in zip(network.parameters(), other.parameters(), strict=True))
    assert copy.deepcopy(network).state_dict().keys() == network.state_dict().keys()
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    logits = network(torch.randn(8, *shape))
    assert logits.shape == (8, 7)
    F.cross_entropy(logits, torch.arange(8) % 7).backward()
    for part, parameter in network.named_parameters():
        assert parameter.grad is not None, part
        assert parameter.grad.isfinite().all(), part
        assert parameter.grad.any(), part


OWN = [getattr(models, name) for name in models.__all__]


@pytest.mark.parametrize("network", [network for network in OWN if not issubclass(network, LightningModule)])
def test_short_name_means_this_class(network: type[nn.Module]) -> None:
    """There is an MLP and an AlexNet in torchvision: a name of two classes is refused on the command line."""
    name = network.__name__
    needed = {"TimmNetwork": ["--network.name=resnet10t"], "TextTransformer": ["--network.model=gpt2"]}
    needed |= {wrapper: ["--network.network=CifarResNet"] for wrapper in ("WithGroupNorm", "WithProjection")}
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--network", type=nn.Module)
    parsed = parser.parse_args([f"--network={name}", *needed.get(name, [])])
    assert parsed.network.class_path == f"fl_lightning.models.{name}"
