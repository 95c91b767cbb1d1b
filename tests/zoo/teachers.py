"""Modules whose state lies outside of the trainable parameters: teachers, flags, extra state, attributes."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from toy import Net


class Distilled(Net):
    """A frozen copy of the network, which stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = deepcopy(self.net).requires_grad_(False).eval()

    def loss(self, batch: Any) -> Tensor:
        taught = F.kl_div(self.net(batch[0]).log_softmax(1), self.teacher(batch[0]).softmax(1), reduction="batchmean")
        return super().loss(batch) + taught


class MomentumTeacher(Distilled):
    """BYOL: a frozen copy that follows the network in a hook."""

    momentum = 0.9

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                slow.mul_(self.momentum).add_(fast, alpha=1 - self.momentum)


class MeanTeacher(MomentumTeacher):
    """A teacher with batch normalisation and dropout in training mode, moved before the gradients are cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher.train()

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)]

    def on_before_zero_grad(self, optimizer: Any) -> None:
        for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            slow.data = self.momentum * slow.data + (1 - self.momentum) * fast.data  # a new storage, as BYOL codes do

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        pass


class Queue(MomentumTeacher):
    """MoCo: a momentum encoder, a buffer of keys and a whole number that points into the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(12, 3), dim=1))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def loss(self, batch: Any) -> Tensor:
        query = F.normalize(self.net(batch[0]), dim=1)
        key = F.normalize(self.teacher(batch[0] + 0.1 * torch.randn_like(batch[0])), dim=1)
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ self.keys.clone().T], 1) / 0.2  # type: ignore
        place = int(self.place)  # type: ignore[arg-type]
        self.keys[(place + torch.arange(len(key))) % 12] = key  # type: ignore[operator, index]
        self.place[0] = (place + len(key)) % 12  # type: ignore[index]
        return F.cross_entropy(logits, torch.zeros(len(key), dtype=torch.long))


class Centred(MomentumTeacher):
    """DINO: a teacher, a centre in a buffer, a temperature by epoch, no gradient for the head in the first epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1, 3))

    def loss(self, batch: Any) -> Tensor:
        seen = self.teacher(batch[0])
        target = ((seen - self.centre) / (0.1 + 0.1 * self.current_epoch)).softmax(1)  # type: ignore[operator]
        self.centre = self.centre * 0.9 + seen.mean(0, keepdim=True) * 0.1  # type: ignore[has-type, operator]
        return -(target * (self.net(batch[0]) / 0.2).log_softmax(1)).sum(1).mean()

    def on_after_backward(self) -> None:
        if self.current_epoch == 0:
            for parameter in self.net[2].parameters():
                parameter.grad = None


class TargetNetwork(Distilled):
    """DQN: a frozen copy that is overwritten every third step, counted by a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))

    def loss(self, batch: Any) -> Tensor:
        with torch.no_grad():
            value = 1 + 0.9 * self.teacher(batch[0].flip(0)).amax(1)
        return F.smooth_l1_loss(self.net(batch[0]).gather(1, batch[1][:, None])[:, 0], value)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps += 1
        if self.steps % 3 == 0:
            self.teacher.load_state_dict(self.net.state_dict())


class AveragedWeights(Net):
    """torch's AveragedModel: a trainable copy without a gradient, and a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.average.update_parameters(self.net)


class NewTeacher(Distilled):
    """Puts another module in the teacher's place at the start of each epoch."""

    def on_train_epoch_start(self) -> None:
        self.teacher = deepcopy(self.net).requires_grad_(False).eval()


class MemoryBank(Net):
    """A buffer with a feature for each class, read and written in ``training_step``."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.randn(3, 3))

    def loss(self, batch: Any) -> Tensor:
        features = self.net(batch[0])
        logits = features @ self.bank.clone().T  # type: ignore[operator]
        for y, feature in zip(batch[1].tolist(), features.detach(), strict=True):
            self.bank[y] = 0.5 * self.bank[y] + 0.5 * feature  # type: ignore[index, operator]
        return F.cross_entropy(logits, batch[1])


class UnfreezesAtEpoch(Net):
    """The first layer learns from the second epoch on; the optimizer holds all parameters from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.net[0].requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.net[0].requires_grad_(True)


class UnfreezesAtStep(UnfreezesAtEpoch):
    """The first layer learns from the second batch of an epoch on, in a parameter group that is added then."""

    def on_train_epoch_start(self) -> None:
        pass

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1 and not self.net[0].weight.requires_grad:  # type: ignore[union-attr]
            self.net[0].requires_grad_(True)
            self.optimizers().add_param_group({"params": list(self.net[0].parameters()), "lr": 0.01})  # type: ignore

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net[2].parameters(), lr=0.1, momentum=0.9)


class FreezesAtStep(Net):
    """The first layer stops learning at the second batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.net[0].requires_grad_(False)


class FreezesStatistics(Net):
    """Puts a normalisation into evaluation mode from the second batch on, and leaves it there."""

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.ReLU()]

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.net[1].eval()


class ReplacesParameter(Net):
    """Puts a new ``nn.Parameter`` in the place of one; the optimizer keeps the old one."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.net[2].weight = nn.Parameter(self.net[2].weight.detach().clamp(-0.2, 0.2))  # type: ignore[union-attr]


class ReplacesStorage(Net):
    """Gives parameters another storage, as ``p.data = …`` does."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for parameter in self.parameters():
            parameter.data = parameter.data.clamp(-0.3, 0.3)


class ExtraState(Net):
    """Keeps a number in its extra state, which each step changes and the loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.warmth = 1.0

    def get_extra_state(self) -> Any:
        return {"warmth": self.warmth}

    def set_extra_state(self, state: Any) -> None:
        self.warmth = state["warmth"]

    def loss(self, batch: Any) -> Tensor:
        self.warmth *= 0.9
        return super().loss(batch) * self.warmth


class ExtraTensor(Net):
    """Keeps a tensor in its extra state, which each step changes and the loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(4)

    def get_extra_state(self) -> Any:
        return self.mean

    def set_extra_state(self, state: Any) -> None:
        self.mean = state

    def loss(self, batch: Any) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * batch[0].mean(0)
        return super().loss([batch[0] - self.mean, batch[1]])


class CountsSteps(Net):
    """Counts its steps in an attribute, for a warm-up, and begins again when a training starts."""

    def on_train_start(self) -> None:
        self.count = 0

    def loss(self, batch: Any) -> Tensor:
        self.count += 1
        return super().loss(batch) * min(1, self.count / 3)


class CountsForEver(CountsSteps):
    """Counts its steps in an attribute that nothing sets back."""

    count = 0

    def on_train_start(self) -> None:
        pass
