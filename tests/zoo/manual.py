"""Modules with manual optimization: several optimizers, toggles, closures, accumulation."""

from typing import Any

import torch
from lib.toy import Net
from torch import Tensor, nn
from torch.nn import functional as F

from zoo import data
from zoo.optimizers import Watched


class Manual(Watched):
    """Steps its optimizer itself, clips its gradients and steps its schedule."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        self.clip_gradients(optimizer, 0.1, "norm")
        optimizer.step()
        self.lr_schedulers().step()
        return loss if batch_idx else None

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
        return {"size": len(batch[0]), "steps": self.global_step}

    def on_train_epoch_end(self) -> None:
        self.lr_schedulers().step()
        self.seen.append(self.lr_schedulers().get_last_lr())


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
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        self.manual_backward(self.loss(batch))
        weights = [p.data for p in self.parameters()]
        pushes = [0.05 * p.grad.sign() for p in self.parameters()]
        optimizer.zero_grad()
        torch._foreach_add_(weights, pushes)
        self.manual_backward(self.loss(batch))
        torch._foreach_sub_(weights, pushes)
        optimizer.step()
        optimizer.zero_grad()


@data.on(data=data.tokens)
class SparseAndDense(Net):
    """An embedding with sparse gradients under SparseAdam, the rest under Adam."""

    automatic_optimization = False

    def build(self) -> None:
        self.words, self.net = nn.Embedding(11, 4, sparse=True), nn.Linear(4, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss([self.words(batch[0]).mean(1), batch[1]])
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        sparse = torch.optim.SparseAdam(list(self.words.parameters()), lr=0.05)
        return sparse, torch.optim.Adam(self.net.parameters(), lr=0.05)


class GAN(Net):
    """Two optimizers with toggles of both kinds; one holds a frozen parameter, too, the other takes a closure."""

    automatic_optimization = False

    def build(self) -> None:
        self.net = self.generator = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(), nn.Linear(6, 1))
        self.generator[0].weight.requires_grad_(False)

    def judged(self, x: Tensor, real: bool) -> Tensor:
        logits = self.discriminator(x)
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        g, d = self.optimizers()
        noise = torch.randn(len(batch[0]), 2)
        self.toggle_optimizer(g)
        loss = self.judged(self.generator(noise), real=True)
        self.step(g, loss)
        self.untoggle_optimizer(g)
        self.log("loss/generator", loss, on_step=False, on_epoch=True, prog_bar=True)

        def evaluate() -> None:
            d.zero_grad()
            fake = self.generator(noise).detach()
            self.manual_backward(self.judged(batch[0], real=True) + self.judged(fake, real=False))

        with d.toggle_model():
            d.step(closure=evaluate)

    def step(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self) -> Any:
        parts = self.generator, self.discriminator
        return [torch.optim.Adam(part.parameters(), lr=0.02, betas=(0.5, 0.9)) for part in parts], []


class Critic(GAN):
    """WGAN-GP: the loss holds a gradient of its own, parts are frozen by hand, weights clipped in a hook; the generator
    has its turn at every second batch, and each optimizer its schedule.
    """

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        g, d = self.optimizers()
        self.generator.requires_grad_(False)
        fake = self.generator(torch.randn(len(batch[0]), 2))
        mixed = torch.lerp(batch[0], fake, torch.rand(len(fake), 1)).requires_grad_()
        (slope,) = torch.autograd.grad(self.discriminator(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        self.step(d, self.discriminator(fake).mean() - self.discriminator(batch[0]).mean() + penalty)
        self.generator.requires_grad_(True)
        if batch_idx % 2:
            self.discriminator.requires_grad_(False)
            self.step(g, -self.discriminator(self.generator(torch.randn(len(batch[0]), 2))).mean())
            self.discriminator.requires_grad_(True)
        for schedule in self.lr_schedulers():
            schedule.step()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for parameter in self.discriminator.parameters():
            parameter.data.clamp_(-0.1, 0.1)

    def configure_optimizers(self) -> Any:
        optimizers = [torch.optim.RMSprop(m.parameters(), lr=0.01) for m in (self.generator, self.discriminator)]
        return [{"optimizer": o, "lr_scheduler": torch.optim.lr_scheduler.StepLR(o, 2)} for o in optimizers]
