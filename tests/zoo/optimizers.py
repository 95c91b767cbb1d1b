"""Optimizers, schedules, and hooks between a loss and its step."""

from typing import Any

import torch
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn
from torch.optim import lr_scheduler as lrs
from toy import Net


class Watched(Net):
    """Writes down the learning rates it trains with."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append([group["lr"] for group in self.optimizers().param_groups])  # type: ignore[union-attr]

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


class RMSprop(Watched):
    """RMSprop with momentum and centring."""

    def configure_optimizers(self) -> Any:
        return torch.optim.RMSprop(self.parameters(), lr=0.01, momentum=0.5, centered=True)


class LBFGS(Net):
    """An optimizer that calls its closure several times."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)


class Sparse(Net):
    """Nothing but an embedding with sparse gradients, under SparseAdam."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.EmbeddingBag(11, 3, sparse=True)  # type: ignore[assignment]

    def configure_optimizers(self) -> Any:
        return torch.optim.SparseAdam(list(self.parameters()), lr=0.05)


class Lookahead(torch.optim.SGD):
    """An optimizer from elsewhere, with a state that holds parameters: every third step goes half-way back."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["count"] = state.get("count", 0) + 1
            slow = state.setdefault("slow", p.detach().clone())
            if state["count"] % 3 == 0:
                p.data.copy_(slow.lerp_(p.detach(), 0.5))
        return loss


class OwnOptimizer(Net):
    """An optimizer from elsewhere that writes into the parameters."""

    def configure_optimizers(self) -> Any:
        return Lookahead(self.parameters(), lr=0.1, momentum=0.9)


class TwoSchedules(Watched):
    """One schedule by every second step, one by epoch."""

    def configure_optimizers(self) -> Any:
        sgd = self.sgd()
        by_step = {"scheduler": lrs.ExponentialLR(sgd, 0.9), "interval": "step", "frequency": 2}
        return [sgd], [by_step, lrs.StepLR(sgd, 1, 0.5)]


class Sequential(Watched):
    """A warm-up, then a cosine, by step."""

    def configure_optimizers(self) -> Any:
        sgd = self.sgd()
        parts = [lrs.LinearLR(sgd, 0.1, total_iters=2), lrs.CosineAnnealingLR(sgd, 4)]
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": lrs.SequentialLR(sgd, parts, [2]), "interval": "step"}}


class OneCycle(Watched):
    """A schedule as long as ``self.trainer.estimated_stepping_batches``."""

    def configure_optimizers(self) -> Any:
        sgd = self.sgd()
        cycle = lrs.OneCycleLR(sgd, 0.2, total_steps=int(self.trainer.estimated_stepping_batches))
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


class CosineByEpochs(Watched):
    """A schedule as long as ``self.trainer.max_epochs``."""

    def configure_optimizers(self) -> Any:
        sgd = self.sgd()
        return [sgd], [lrs.CosineAnnealingLR(sgd, self.trainer.max_epochs or 0)]


class TimmSchedule(Watched):
    """A schedule that is no torch schedule, stepped in ``lr_scheduler_step`` with ``current_epoch``."""

    def configure_optimizers(self) -> Any:
        sgd = self.sgd()
        return [sgd], [{"scheduler": CosineLRScheduler(sgd, t_initial=3, warmup_t=1), "interval": "epoch"}]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step(epoch=self.current_epoch + 1)


class WarmUp(Watched):
    """A warm-up in ``optimizer_step``, by ``self.trainer.global_step``."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 5)


class SkipsSteps(Watched):
    """An ``optimizer_step`` that steps on even batches only, and has an epoch's number."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        self.seen.append(epoch)
        if batch_idx % 2 == 0:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        else:
            optimizer_closure()


class ByEpoch(Net):
    """A loss that depends on ``self.current_epoch``."""

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) / (1 + self.current_epoch)


class ByStep(Net):
    """A loss that depends on ``self.global_step``, as an annealed weight does."""

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) * 0.9**self.global_step


class ByProgress(Net):
    """A loss that depends on how much of the whole training is done."""

    def loss(self, batch: Any) -> Tensor:
        done = self.trainer.global_step / (self.trainer.max_epochs * self.trainer.num_training_batches)  # type: ignore
        return super().loss(batch) * (1 - done)


class ByLoader(Net):
    """A loss that depends on the length of ``self.trainer.train_dataloader``."""

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) / len(self.trainer.train_dataloader)  # type: ignore[arg-type]


class ReadsTrainer(Watched):
    """Writes down what the Trainer says of optimizers and schedules."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        rates = [group["lr"] for optimizer in self.trainer.optimizers for group in optimizer.param_groups]
        self.seen.append((rates, [config.scheduler.get_last_lr() for config in self.trainer.lr_scheduler_configs]))

    def configure_optimizers(self) -> Any:
        sgd = self.sgd()
        return [sgd], [lrs.ExponentialLR(sgd, 0.5)]


class StopsItself(Net):
    """Sets ``self.trainer.should_stop`` at its second batch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.trainer.should_stop = True


class GathersAll(Net):
    """A loss across the batches of all devices, by ``self.all_gather``, as contrastive modules code it."""

    def loss(self, batch: Any) -> Tensor:
        x = self.all_gather(batch[0])
        return super().loss(batch) + self.net(x.reshape(-1, 4)).square().mean()


class ByDevices(Net):
    """A learning rate in proportion to ``self.trainer.world_size``, and a loss by ``self.global_rank``."""

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) / (1 + self.global_rank)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05 * self.trainer.world_size)


class ClipsItself(Net):
    """An own ``configure_gradient_clipping``."""

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any, gradient_clip_algorithm: Any) -> None:  # type: ignore[override]
        self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="value")


class OwnBackward(Net):
    """An own ``backward``, ``optimizer_zero_grad``, and gradients changed before the step."""

    def backward(self, loss: Tensor) -> None:
        (2 * loss).backward()

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for parameter in self.net[0].parameters():
            assert parameter.grad is not None
            parameter.grad *= 3


class NoisyGradients(Net):
    """Random noise on each gradient, in a hook."""

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad += 0.01 * torch.randn_like(parameter)


class HookedGradients(Net):
    """Tensor hooks and module hooks, registered once."""

    def __init__(self) -> None:
        super().__init__()
        self.net[0].weight.register_hook(lambda grad: grad.clamp(-0.05, 0.05))  # type: ignore[union-attr, operator]
        self.net[1].register_forward_hook(lambda module, inputs, output: 1.1 * output)


class SkipsBatches(Net):
    """A ``training_step`` that returns None for every third batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 2 else self.loss(batch)


class ReturnsMore(Net):
    """A ``training_step`` without an index that returns a dict, which the next hook reads."""

    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return {"loss": self.loss(batch), "size": len(batch[0]), "names": ["a", "b"]}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append((outputs["size"], outputs["names"], float(outputs["loss"])))


class LeavesEarly(TwoSchedules):
    """Ends its epochs before the third batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1 if batch_idx == 2 else None


class MovesBatches(Net):
    """Hooks of its own that bring a batch to the device, with augmentation there."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        return x + 0.1 * torch.randn_like(x) if self.training else x, y
