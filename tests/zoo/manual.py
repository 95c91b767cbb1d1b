"""Modules with manual optimization: several optimizers, toggles, closures, accumulation."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from toy import Net


class Manual(Net):
    """Steps its optimizer itself, clips its gradients and steps its schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        self.clip_gradients(optimizer, 0.1, "norm")
        optimizer.step()
        self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]
        self.seen.append(optimizer.param_groups[0]["lr"])
        return loss

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        return [sgd], [torch.optim.lr_scheduler.ExponentialLR(sgd, 0.9)]


class AccumulatesItself(Manual):
    """Steps after every second batch and after the last, and steps its schedule at the end of the epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        self.manual_backward(self.loss(batch) / 2)
        if batch_idx % 2 or self.trainer.is_last_batch:
            optimizer.step()
            optimizer.zero_grad()

    def on_train_epoch_end(self) -> None:
        self.lr_schedulers().step()  # type: ignore[union-attr, call-arg]
        self.seen.append(self.lr_schedulers().get_last_lr())  # type: ignore[union-attr]


class TakesClosures(Manual):
    """Gives its optimizer a closure, which LBFGS calls several times."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(batch)
            self.manual_backward(loss)
            return loss

        optimizer.step(closure=closure)

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class Sharpness(Manual):
    """SAM, coded inside the module: two backward passes a step, the plain optimizer by ``use_pl_optimizer=False``."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.manual_backward(self.loss(batch))
        pushes = [0.05 * p.grad.sign() for p in self.parameters() if p.grad is not None]
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        with self._moved(pushes):
            self.manual_backward(self.loss(batch))
        optimizer.step()
        optimizer.zero_grad()

    @contextmanager
    def _moved(self, pushes: list[Tensor]) -> Iterator[None]:
        torch._foreach_add_([p.data for p in self.parameters()], pushes)
        yield
        torch._foreach_sub_([p.data for p in self.parameters()], pushes)


class SparseAndDense(Manual):
    """An embedding with sparse gradients under SparseAdam, the rest under Adam."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.net = nn.Embedding(11, 4, sparse=True), nn.Sequential(nn.Linear(4, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().loss([self.words(batch[0]).mean(1), batch[1]])
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        sparse = torch.optim.SparseAdam(list(self.words.parameters()), lr=0.05)
        return sparse, torch.optim.Adam(self.net.parameters(), lr=0.05)


class TruncatedBackpropagation(LightningModule):
    """Several optimizer steps inside one ``training_step``, along a time series."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.automatic_optimization = False
        self.cell, self.head = nn.GRUCell(2, 4), nn.Linear(4, 2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        state = torch.zeros(len(batch[0]), 4)
        for chunk in torch.cat([batch[0], batch[1][:, None]], 1).split(2, dim=1):
            state = self.cell(chunk[:, 0], state.detach())
            optimizer.zero_grad()
            self.manual_backward(F.mse_loss(self.head(state), chunk[:, 1]))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.RMSprop(self.parameters(), lr=0.01)


class GAN(LightningModule):
    """Two optimizers, a generator's and a discriminator's, and ``toggle_optimizer``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(), nn.Linear(6, 1))

    def judged(self, x: Tensor, real: bool) -> Tensor:
        logits = self.discriminator(x)
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        g, d = self.optimizers()  # type: ignore[misc]
        noise = torch.randn(len(batch[0]), 2)
        self.toggle_optimizer(g)
        loss = self.judged(self.generator(noise), real=True)
        self.step(g, loss)
        self.untoggle_optimizer(g)
        self.toggle_optimizer(d)
        self.step(d, self.judged(batch[0], real=True) + self.judged(self.generator(noise).detach(), real=False))
        self.untoggle_optimizer(d)
        self.log("loss/generator", loss, on_step=False, on_epoch=True, prog_bar=True)

    def step(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self) -> Any:
        g = torch.optim.Adam(self.generator.parameters(), lr=0.02, betas=(0.5, 0.9))
        return [g, torch.optim.Adam(self.discriminator.parameters(), lr=0.02, betas=(0.5, 0.9))], []


class ClippedCritic(GAN):
    """WGAN: weights clipped in a hook, the generator's turn after every second batch, a schedule for each."""

    def judged(self, x: Tensor, real: bool) -> Tensor:
        return self.discriminator(x).mean() * (-1 if real else 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        g, d = self.optimizers()  # type: ignore[misc]
        fake = self.generator(torch.randn(len(batch[0]), 2))
        self.step(d, self.judged(batch[0], real=True) + self.judged(fake.detach(), real=False))
        if batch_idx % 2:
            self.step(g, self.judged(fake, real=True))
        for schedule in self.lr_schedulers():  # type: ignore[union-attr]
            schedule.step()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for parameter in self.discriminator.parameters():
            parameter.data.clamp_(-0.1, 0.1)

    def configure_optimizers(self) -> Any:
        optimizers = [torch.optim.RMSprop(m.parameters(), lr=0.01) for m in (self.generator, self.discriminator)]
        return [{"optimizer": o, "lr_scheduler": torch.optim.lr_scheduler.StepLR(o, 2)} for o in optimizers]


class PenalisedCritic(GAN):
    """WGAN-GP: the loss holds a gradient of its own; frozen parts between steps by hand, with ``requires_grad_``."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        g, d = self.optimizers()  # type: ignore[misc]
        self.generator.requires_grad_(False)
        fake = self.generator(torch.randn(len(batch[0]), 2))
        mixed = torch.lerp(batch[0], fake, torch.rand(len(fake), 1)).requires_grad_()
        (slope,) = torch.autograd.grad(self.discriminator(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        self.step(d, self.discriminator(fake).mean() - self.discriminator(batch[0]).mean() + penalty)
        self.generator.requires_grad_(True)
        self.discriminator.requires_grad_(False)
        self.step(g, -self.discriminator(self.generator(torch.randn(len(batch[0]), 2))).mean())
        self.discriminator.requires_grad_(True)


class TogglesModel(GAN):
    """``toggle_model`` of Lightning's optimizers, with closures."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        g, d = self.optimizers()  # type: ignore[misc]
        noise = torch.randn(len(batch[0]), 2)

        def for_g() -> None:
            g.zero_grad()
            self.manual_backward(self.judged(self.generator(noise), real=True))

        def for_d() -> None:
            d.zero_grad()
            fake = self.generator(noise).detach()
            self.manual_backward(self.judged(batch[0], real=True) + self.judged(fake, real=False))

        with g.toggle_model():
            g.step(closure=for_g)
        with d.toggle_model():
            d.step(closure=for_d)


class TogglesFrozen(GAN):
    """``toggle_optimizer`` on an optimizer that holds a frozen parameter too."""

    def __init__(self) -> None:
        super().__init__()
        self.generator[0].weight.requires_grad_(False)  # type: ignore[union-attr]


class SharedEncoder(GAN):
    """Two optimizers that share parameters take turns of two batches and one."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.generator = nn.Linear(4, 2), nn.Linear(2, 4)  # type: ignore[assignment]
        self.discriminator = nn.Linear(2, 3)  # type: ignore[assignment]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        g, d = self.optimizers()  # type: ignore[misc]
        code = self.encoder(batch[0])
        if batch_idx % 3 < 2:
            self.step(g, F.mse_loss(self.generator(code), batch[0]))
        else:
            self.step(d, F.cross_entropy(self.discriminator(code), batch[1]))

    def configure_optimizers(self) -> Any:
        both = [[*self.encoder.parameters(), *m.parameters()] for m in (self.generator, self.discriminator)]
        return tuple(torch.optim.SGD(params, lr=0.1, momentum=0.9) for params in both)
