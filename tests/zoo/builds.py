"""Parameters made in unusual places and ways: late, tied, frozen, adapted, compiled, in another format."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from toy import Net


class ConfiguresModel(LightningModule):
    """Has no parameter before ``configure_model``."""

    def __init__(self) -> None:
        super().__init__()
        self.net: Any = None

    def configure_model(self) -> None:
        if self.net is None:
            torch.manual_seed(1)
            self.net = nn.Linear(4, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


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


class LazyToTheEnd(Net):
    """A layer that takes its shape from the first batch of the training."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 3))


class CompiledPart(Net):
    """A network in ``torch.compile``."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.compile(self.net, backend="eager")  # type: ignore[assignment]


def compiled(module: Any) -> Any:
    """A whole LightningModule in ``torch.compile``."""
    return torch.compile(module, backend="eager")


class HiddenParameters(Net):
    """Trains layers of a plain list, which no ``state_dict`` shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def loss(self, batch: Any) -> Tensor:
        return super().loss([batch[0] + nn.Sequential(*self.layers)(batch[0]), batch[1]])

    def configure_optimizers(self) -> Any:
        hidden = [parameter for layer in self.layers for parameter in layer.parameters()]
        return torch.optim.SGD([*self.parameters(), *hidden], lr=0.1)


class ComplexWeights(Net):
    """A parameter of complex numbers beside real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def loss(self, batch: Any) -> Tensor:
        return super().loss([(batch[0] * self.turn).abs(), batch[1]])


class TiedByData(Net):
    """Two parameters of one memory: ``decoder.weight.data = encoder.weight.data.T``, as old autoencoders tie them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 3))
        self.net[2].weight.data = self.net[0].weight.data.T  # type: ignore[union-attr]


class ChannelsLast(Net):
    """Weights in another memory format."""

    def __init__(self) -> None:
        super().__init__()
        body = [nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        self.net = nn.Sequential(*body, nn.Flatten(), nn.Linear(8, 3))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Transposed(Net):
    """A weight whose columns lie together in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.net[0].weight = nn.Parameter(torch.randn(4, 8).T)  # type: ignore[union-attr]


class EvaluationMode(Net):
    """A network in evaluation mode from the start, as pretrained ones are, with dropout and a validation set."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5)]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch))


class Adapted(nn.Module):
    """A frozen linear layer plus the product of two small matrices."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, layer.in_features) / 4)
        self.up = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


class LowRank(Net):
    """LoRA: adapters train, all the rest is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(Adapted(nn.Linear(4, 8)), nn.Tanh(), Adapted(nn.Linear(8, 3)))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.05)


class AdaptersSaved(LowRank):
    """Checkpoints hold the trainable parameters alone, and are loaded without ``strict``."""

    strict_loading = False

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        kept = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        checkpoint["state_dict"] = {name: v for name, v in checkpoint["state_dict"].items() if name in kept}


class HalfTable(Net):
    """A frozen table in bfloat16 and frozen whole numbers, as quantised backbones have."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 4).bfloat16(), requires_grad=False)
        self.codes = nn.Parameter(torch.tensor([2, 0, 1], dtype=torch.int8), requires_grad=False)

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return super().loss([x + self.table[self.codes.long()[y]].float(), y])


class FrozenBackbone(Net):
    """A layer that is frozen, with a normalisation in evaluation mode, and one that no batch reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).requires_grad_(False).eval()
        self.unused = nn.Linear(2, 2)

    def loss(self, batch: Any) -> Tensor:
        return super().loss([self.backbone(batch[0]), batch[1]])
