"""Networks of many kinds under a plain ``training_step``."""

import random
from typing import Any

import numpy as np
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint
from toy import Net


class Classifier(Net):
    """The plain case: nothing is unusual."""


class Convolutions(Net):
    """Images, group normalisation, pooling."""

    def __init__(self) -> None:
        super().__init__()
        body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.net = nn.Sequential(body, nn.Flatten(), nn.Linear(16, 3))


class NormDropout(Net):
    """Batch normalisation and dropout: buffers, and random numbers in the forward pass."""

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)]


class Tied(Net):
    """Two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
        self.net[2].weight = self.net[0].weight  # type: ignore[union-attr, assignment]


class Pruned(Net):
    """Half of the weights are pruned: the weight is no parameter, but made of one and a mask in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        prune.l1_unstructured(self.net[0], "weight", 0.5)


class VisionTransformer(Net):
    """A small ViT of timm, with dropped paths."""

    def __init__(self) -> None:
        super().__init__()
        self.net = timm.models.VisionTransformer(  # type: ignore[assignment]
            img_size=8, patch_size=4, in_chans=1, num_classes=3, embed_dim=8, depth=2, num_heads=2, drop_path_rate=0.2
        )


class StochasticDepth(Net):
    """Drops layers by the generators of torch, NumPy and Python."""

    def loss(self, batch: Any) -> Tensor:
        draws = float(torch.rand(())), np.random.rand(), random.random()
        x = batch[0] * (draws[0] > 0.2) * (1 + draws[1])
        return super().loss([x, batch[1]]) * (0.5 + draws[2])


class StraightThrough(torch.autograd.Function):
    """The sign forwards, the identity backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class Binarised(Net):
    """An autograd function of its own."""

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.net[2](StraightThrough.apply(self.net[0](batch[0]))), batch[1])


class SpectralNorm(Net):
    """A parametrisation whose buffers move in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        spectral_norm(self.net[0])  # type: ignore[arg-type]


class WeightNorm(Net):
    """A parametrisation of two parameters."""

    def __init__(self) -> None:
        super().__init__()
        weight_norm(self.net[0])  # type: ignore[arg-type]


class Checkpointed(Net):
    """Computes activations with dropout again in the backward pass."""

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(checkpoint(self._net, batch[0], use_reentrant=False), batch[1])

    def _net(self, x: Tensor) -> Tensor:
        return self.net(F.dropout(x, 0.2))


class Experts(Net):
    """Each example takes one of three experts: an expert may see no gradient at all, and Adam then leaves it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.net = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 3) for _ in range(3))  # type: ignore

    def loss(self, batch: Any) -> Tensor:
        shares = self.gate(batch[0]).softmax(1)
        best, which = shares.max(1)
        losses = []
        for k in which.unique().tolist():
            x, y = batch[0][which == k], batch[1][which == k]
            logits = self.net[k](x) * best[which == k, None]
            losses.append(F.cross_entropy(logits, y, reduction="sum"))
        return torch.stack(losses).sum() / len(which)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)
