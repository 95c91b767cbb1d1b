"""Modules whose state lies outside of the trainable parameters: teachers, flags, extra state, attributes."""

from copy import deepcopy
from typing import Any

import torch
from lib.toy import Net
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class MomentumTeacher(Net):
    """BYOL: a frozen copy that follows the network in a hook."""

    def build(self) -> None:
        self.teacher = deepcopy(self.net).requires_grad_(False).eval()

    def loss(self, batch: Any) -> Tensor:
        taught = F.kl_div(self.net(batch[0]).log_softmax(1), self.teacher(batch[0]).softmax(1), reduction="batchmean")
        return super().loss(batch) + taught

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.1)


class MeanTeacher(MomentumTeacher):
    """A teacher with batch normalisation and dropout in training mode, moved before the gradients are cleared."""

    def build(self) -> None:
        super().build()
        self.teacher.train()

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)]

    def on_before_zero_grad(self, optimizer: Any) -> None:
        for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            slow.data = 0.9 * slow.data + 0.1 * fast.data  # a new storage, as BYOL codes do

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        pass


class NewTeacher(MomentumTeacher):
    """Puts another module in the teacher's place at the start of each epoch."""

    def on_train_epoch_start(self) -> None:
        self.build()


class AveragedWeights(Net):
    """torch's AveragedModel: a trainable copy without a gradient, and a buffer that counts."""

    def build(self) -> None:
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.average.update_parameters(self.net)


class UnfreezesAtEpoch(Net):
    """The first layer learns from the second epoch on; the optimizer holds all parameters from the start."""

    def build(self) -> None:
        self.net[0].requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.net[0].requires_grad_(True)


class UnfreezesAtStep(UnfreezesAtEpoch):
    """The first layer learns from the second batch of an epoch on, in a parameter group that is added then."""

    def on_train_epoch_start(self) -> None:
        pass

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1 and not self.net[0].weight.requires_grad:
            self.net[0].requires_grad_(True)
            self.optimizers().add_param_group({"params": list(self.net[0].parameters()), "lr": 0.01})

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net[2].parameters(), lr=0.1, momentum=0.9)


class FreezesAtStep(Net):
    """At the second batch, the first layer stops learning, and a normalisation goes into evaluation mode."""

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.ReLU()]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.net[0].requires_grad_(False)
            self.net[1].eval()


class ReplacesParameter(Net):
    """Puts a new ``nn.Parameter`` in the place of one; the optimizer keeps the old one."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.net[2].weight = nn.Parameter(self.net[2].weight.detach().clamp(-0.2, 0.2))


class ReplacesStorage(Net):
    """Gives parameters another storage, as ``p.data = …`` does."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for parameter in self.parameters():
            parameter.data = parameter.data.clamp(-0.3, 0.3)


class ExtraState(Net):
    """Keeps a number and a tensor where only extra state reaches; each step changes them, and the loss uses them."""

    def build(self) -> None:
        extra = {"warmth": 1.0, "mean": torch.zeros(4)}
        self.extra = lambda: extra

    def get_extra_state(self) -> Any:
        return self.extra()

    def set_extra_state(self, state: Any) -> None:
        self.extra().update(state)

    def loss(self, batch: Any) -> Tensor:
        extra = self.extra()
        extra["warmth"] *= 0.9
        extra["mean"].lerp_(batch[0].mean(0), 0.1)
        return super().loss([batch[0] - extra["mean"], batch[1]]) * extra["warmth"]


class CountsForEver(Net):
    """Counts its steps in an attribute that nothing sets back."""

    count = 0

    def loss(self, batch: Any) -> Tensor:
        self.count += 1
        return super().loss(batch) * min(1, self.count / 3)
