"""Optimizers, schedules, hooks between a loss and its step, and modules that ask the Trainer."""

from typing import Any

import torch
from lib.toy import Net
from lightning.pytorch import Trainer
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn
from torch.optim import lr_scheduler as lrs

from zoo import data


class Watched(Net):
    """Writes down, after each batch, what hooks get, and what the Trainer says of optimizers and schedules."""

    asks_rates = True  # of the schedules

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert not any(isinstance(value, Tensor) and value.requires_grad for value in outputs.values())
        rates = [group["lr"] for optimizer in self.trainer.optimizers for group in optimizer.param_groups]
        last = [config.scheduler.get_last_lr() for config in self.trainer.lr_scheduler_configs if self.asks_rates]
        self.seen.append((batch_idx, {name: float(value) for name, value in outputs.items()}, rates, last))

    def sgd(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Adam(Watched):
    """An optimizer with state."""

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.parameters(), lr=0.05, amsgrad=True)]


class Groups(Watched):
    """Two parameter groups, of which one is smaller, one without decay; the schedule has a factor for each."""

    def configure_optimizers(self) -> Any:
        first, second = self.net[0].parameters(), self.net[2].parameters()
        adam = torch.optim.AdamW([{"params": first, "lr": 0.01}, {"params": second, "weight_decay": 0}], lr=0.1)
        return [adam], [lrs.LambdaLR(adam, [lambda epoch: 0.5**epoch, lambda epoch: 1 / (1 + epoch)])]


class LBFGS(Net):
    """An optimizer that calls its closure several times."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)


@data.on(data=data.tokens)
class Sparse(Net):
    """Nothing but an embedding with sparse gradients, under SparseAdam."""

    def build(self) -> None:
        self.net = nn.EmbeddingBag(11, 3, sparse=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SparseAdam(list(self.parameters()), lr=0.05)


class TwoSchedules(Watched):
    """One schedule by every second step, one by epoch."""

    def configure_optimizers(self) -> Any:
        sgd = self.sgd()
        by_step = {"scheduler": lrs.ExponentialLR(sgd, 0.9), "interval": "step", "frequency": 2}
        return [sgd], [by_step, lrs.StepLR(sgd, 1, 0.5)]


class TimmSchedule(Watched):
    """A schedule that is no torch schedule, stepped in ``lr_scheduler_step`` with ``current_epoch``."""

    asks_rates = False

    def configure_optimizers(self) -> Any:
        sgd = self.sgd()
        return [sgd], [{"scheduler": CosineLRScheduler(sgd, t_initial=3, warmup_t=1), "interval": "epoch"}]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step(epoch=self.current_epoch + 1)


class WarmUp(Watched):
    """An ``optimizer_step`` that warms up by ``self.trainer.global_step``, and steps on even batches only."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        self.seen.append(epoch)
        optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 5)
        if batch_idx % 2 == 0:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        else:
            optimizer_closure()


class ReadsTrainer(Watched):
    """Writes down what ``self.trainer`` says, wherever it may ask, and sizes its schedule and its loss by it."""

    def look(self, where: str, *names: str) -> None:
        values = tuple(getattr(self.trainer, name) for name in names)
        self.seen.append((where, *values, self.current_epoch, self.global_step, len(self.trainer.optimizers)))

    def configure_optimizers(self) -> Any:
        if not self.seen:  # the Trainer asks once; the orchestrator also before the first round
            self.look("configure", "max_epochs", "estimated_stepping_batches")
        sgd = self.sgd()
        cycle = lrs.OneCycleLR(sgd, 0.2, total_steps=int(self.trainer.estimated_stepping_batches))
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

    def on_train_start(self) -> None:
        assert isinstance(self.trainer, Trainer)
        self.look("start", "max_epochs", "num_training_batches", "accumulate_grad_batches")

    def on_train_epoch_start(self) -> None:
        self.look("epoch start")

    def loss(self, batch: Any) -> Tensor:
        self.look("step", "is_last_batch")
        return super().loss(batch) / len(self.trainer.train_dataloader) * 0.9**self.global_step

    def on_train_epoch_end(self) -> None:
        self.look("epoch end")

    def on_train_end(self) -> None:
        self.look("end")


class StopsItself(ReadsTrainer):
    """Sets ``self.trainer.should_stop`` at the second batch of its second epoch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.trainer.should_stop = (self.current_epoch, batch_idx) == (1, 1)


class ByDevices(Net):
    """Asks for the number of devices and its own number, and gathers the batches of all, as contrastive modules do."""

    def loss(self, batch: Any) -> Tensor:
        x = self.all_gather(batch[0])
        return super().loss(batch) / (1 + self.global_rank) + self.net(x.reshape(-1, 4)).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05 * self.trainer.world_size)


class OwnHooks(Watched):
    """Overrides all that makes a step of a loss, with noise on each gradient."""

    def backward(self, loss: Tensor) -> None:
        (2 * loss).backward()

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad += 0.01 * torch.randn_like(parameter)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for parameter in self.net[0].parameters():
            parameter.grad *= 3

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any, gradient_clip_algorithm: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="value")

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)


class HookedGradients(Net):
    """Tensor hooks and module hooks, registered once."""

    def build(self) -> None:
        self.net[0].weight.register_hook(lambda grad: grad.clamp(-0.05, 0.05))
        self.net[1].register_forward_hook(lambda module, inputs, output: 1.1 * output)


class SkipsBatches(Watched):
    """A ``training_step`` that returns None for every third batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 2 else self.loss(batch)


class ReturnsMore(Watched):
    """A ``training_step`` without an index that returns a dict, which the next hook reads."""

    def training_step(self, batch: Any) -> Any:
        return {"loss": self.loss(batch), "size": len(batch[0])}


class LeavesEarly(TwoSchedules):
    """Ends its epochs before the third batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1 if batch_idx == 2 else None
