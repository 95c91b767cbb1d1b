"""Networks of many kinds, and parameters made in unusual places and ways: late, tied, frozen, adapted, compiled."""

import random
import warnings
from typing import Any

import numpy as np
import torch
from lib.toy import Net
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm

from zoo import data


class Classifier(Net):
    """The plain case: nothing is unusual."""


class NormDropout(Net):
    """Batch normalisation and dropout: buffers, and random numbers in the forward pass."""

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)]


class Tied(Net):
    """Two layers share one weight."""

    def build(self) -> None:
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
        self.net[2].weight = self.net[0].weight


class Scripted(Net):
    """Two layers of TorchScript, whose registries are no dicts; one has buffers."""

    def between(self) -> list[nn.Module]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            return [torch.jit.script(nn.BatchNorm1d(8)), torch.jit.trace(nn.Linear(8, 8), torch.randn(2, 8))]


class Pruned(Net):
    """Half of the weights are pruned: the weight is no parameter, but made of one and a mask in a buffer."""

    def build(self) -> None:
        prune.l1_unstructured(self.net[0], "weight", 0.5)


class SpectralNorm(Net):
    """A parametrisation whose buffers move in each forward pass."""

    def build(self) -> None:
        spectral_norm(self.net[0])


class StochasticDepth(Net):
    """Drops layers by the generators of torch, NumPy and Python."""

    def loss(self, batch: Any) -> Tensor:
        draws = float(torch.rand(())), np.random.rand(), random.random()
        x = batch[0] * (draws[0] > 0.2) * (1 + draws[1])
        return super().loss([x, batch[1]]) * (0.5 + draws[2])


class Experts(Net):
    """Each example takes one of three experts: an expert may see no gradient at all, and Adam then leaves it alone."""

    def build(self) -> None:
        self.gate, self.net = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def loss(self, batch: Any) -> Tensor:
        best, which = self.gate(batch[0]).softmax(1).max(1)
        parts = [(self.net[k], which == k) for k in which.unique().tolist()]
        losses = [
            F.cross_entropy(expert(batch[0][mine]) * best[mine, None], batch[1][mine], reduction="sum")
            for expert, mine in parts
        ]
        return torch.stack(losses).sum() / len(which)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class InnerLoop(Net):
    """MAML: the loss after a step of gradient descent on half of the batch, by ``functional_call``."""

    def loss(self, batch: Any) -> Tensor:
        half, params = len(batch[0]) // 2, dict(self.net.named_parameters())

        def at(weights: Any, part: slice) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(self.net, weights, (batch[0][part],)), batch[1][part])

        grads = torch.autograd.grad(at(params, slice(half)), list(params.values()), create_graph=True)
        moved = {name: p - 0.1 * g for (name, p), g in zip(params.items(), grads, strict=True)}
        return at(moved, slice(half, None))


@data.on(data=data.series)
class Recurrent(Net):
    """An LSTM that keeps its hidden state from batch to batch in an attribute, and drops the state every epoch."""

    def build(self) -> None:
        self.lstm, self.net, self.hidden = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 2), None

    def on_train_epoch_start(self) -> None:
        self.hidden = None

    def loss(self, batch: Any) -> Tensor:
        hidden = self.hidden and tuple(h[:, : len(batch[0])].contiguous() for h in self.hidden)
        out, hidden = self.lstm(batch[0], hidden)
        self.hidden = tuple(h.detach() for h in hidden)
        return F.mse_loss(self.net(out[:, -1]), batch[1])


class ConfiguresModel(Net):
    """Has no parameter before ``configure_model``."""

    def build(self) -> None:
        self.net = None

    def configure_model(self) -> None:
        if self.net is None:
            torch.manual_seed(1)
            self.net = nn.Linear(4, 3)


class BuildsInSetup(ConfiguresModel):
    """Has no parameter before ``setup``; hyper-parameters are saved."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()

    def configure_model(self) -> None:
        pass

    def setup(self, stage: str) -> None:
        super().configure_model()


class Lazy(ConfiguresModel):
    """A layer that takes its shape from a dry run in ``configure_model``."""

    def configure_model(self) -> None:
        if self.net is None:
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 3)).eval()
            self.net(torch.zeros(2, 4))
            self.net.train()


class CompiledPart(Net):
    """A network in ``torch.compile``."""

    def build(self) -> None:
        self.net = torch.compile(self.net, backend="eager")


@data.on(data=data.images)
class ChannelsLast(Net):
    """Weights in another memory format."""

    def build(self) -> None:
        body = [nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        self.net = nn.Sequential(*body, nn.Flatten(), nn.Linear(8, 3))
        self.to(memory_format=torch.channels_last)


class EvaluationMode(NormDropout):
    """A network in evaluation mode from the start, as pretrained ones are, with dropout and a validation set."""

    def build(self) -> None:
        self.eval()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch))


class FrozenBackbone(Net):
    """A layer that is frozen, with a normalisation in evaluation mode, and one that no batch reaches."""

    def build(self) -> None:
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).requires_grad_(False).eval()
        self.unused = nn.Linear(2, 2)

    def loss(self, batch: Any) -> Tensor:
        return super().loss([self.backbone(batch[0]), batch[1]])


class Adapted(Net):
    """LoRA: small matrices train beside a frozen layer; checkpoints hold them alone, and are loaded loosely."""

    strict_loading = False

    def build(self) -> None:
        self.net.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 4) / 4), nn.Parameter(torch.zeros(3, 2))

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.net(batch[0]) + batch[0] @ self.down.T @ self.up.T, batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.05)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        kept = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        checkpoint["state_dict"] = {name: v for name, v in checkpoint["state_dict"].items() if name in kept}


class HalfTable(Net):
    """A frozen table in bfloat16 and frozen whole numbers, as quantised backbones have."""

    def build(self) -> None:
        self.table = nn.Parameter(torch.randn(3, 4).bfloat16(), requires_grad=False)
        self.codes = nn.Parameter(torch.tensor([2, 0, 1], dtype=torch.int8), requires_grad=False)

    def loss(self, batch: Any) -> Tensor:
        return super().loss([batch[0] + self.table[self.codes.long()[batch[1]]].float(), batch[1]])
