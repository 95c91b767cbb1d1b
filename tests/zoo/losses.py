"""Losses of many kinds: regression, autoencoders, self-supervision, gradients inside the loss."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from toy import Net


class Regression(Net):
    """A target that is a number, and Adam."""

    def __init__(self) -> None:
        super().__init__()
        self.net[2] = nn.Linear(8, 1)

    def loss(self, batch: Any) -> Tensor:
        return F.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Autoencoder(Net):
    """No labels: the target is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)
        del self.net

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        (x,) = batch
        return F.mse_loss(self.decoder(self.encoder(x)), x)


class BareBatches(Autoencoder):
    """A batch is a tensor, in no list."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step([batch], batch_idx)


class Variational(Autoencoder):
    """Draws random numbers in the forward pass, and returns a dict with parts of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        mean, log_variance = self.encoder(batch[0]).chunk(2, 1)
        code = torch.distributions.Normal(mean, (log_variance / 2).exp()).rsample()
        far = (mean**2 + log_variance.exp() - log_variance - 1).sum(1).mean() / 2
        match = F.mse_loss(self.decoder(code), batch[0])
        return {"loss": match + 0.1 * far, "match": match.detach(), "far": far.detach()}


class Diffusion(Net):
    """Random times and noise in ``training_step``; the target is the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Linear(8, 4))
        self.register_buffer("kept", torch.linspace(0.99, 0.1, 10))

    def loss(self, batch: Any) -> Tensor:
        time = torch.randint(10, (len(batch[0]),))
        noise, kept = torch.randn_like(batch[0]), self.kept[time, None]  # type: ignore[index]
        noisy = kept.sqrt() * batch[0] + (1 - kept).sqrt() * noise
        return F.mse_loss(self.net(torch.cat([noisy, time[:, None] / 10], 1)), noise)


class TwoViews(Net):
    """SimCLR: two random views of each example, a loss across the batch."""

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.ReLU()]

    def loss(self, batch: Any) -> Tensor:
        views = torch.cat([batch[0] + 0.1 * torch.randn_like(batch[0]) for _ in range(2)])
        z = F.normalize(self.net(views), dim=1)
        size = len(batch[0])
        alike = (z @ z.T / 0.5).fill_diagonal_(float("-inf"))
        return F.cross_entropy(alike, torch.arange(2 * size).roll(size))


class ImageText(LightningModule):
    """CLIP: two towers, a learned temperature that a hook clamps in place, batches of named tuples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        a, b = (F.normalize(tower(x), dim=1) for tower, x in zip((self.one, self.other), batch.views, strict=True))
        logits, own = self.scale.exp() * a @ b.T, torch.arange(len(a))
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.scale.data.clamp_(0.95, 1.01)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class InnerLoop(Net):
    """MAML: the loss after a step of gradient descent on half of the batch, by ``functional_call``."""

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        half, params = len(x) // 2, dict(self.net.named_parameters())

        def at(weights: Any, part: slice) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(self.net, weights, (x[part],)), y[part])

        grads = torch.autograd.grad(at(params, slice(half)), list(params.values()), create_graph=True)
        moved = {name: p - 0.1 * g for (name, p), g in zip(params.items(), grads, strict=True)}
        return at(moved, slice(half, None))


class Derivative(Net):
    """The loss holds the gradient of the output by the input, as physics-informed networks have."""

    def loss(self, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return super().loss(batch) + (slope.norm(dim=1) - 1).square().mean()


class Prototypes(Net):
    """Few-shot episodes: the classes are the means of their support sets."""

    def loss(self, batch: Any) -> Tensor:
        support, queries = batch
        logits = -torch.cdist(self.net(queries), self.net(support).mean(2))
        return F.cross_entropy(logits.flatten(0, 1), torch.arange(3).repeat(len(queries)))


class PolicyGradient(Net):
    """REINFORCE: draws actions; the loss is no loss of the data, and its mean reward is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("baseline", torch.zeros(()))

    def loss(self, batch: Any) -> Tensor:
        policy = torch.distributions.Categorical(logits=self.net(batch[0]))
        actions = policy.sample()
        reward = (actions == batch[1]).float()
        loss = -(policy.log_prob(actions) * (reward - self.baseline)).mean()
        self.baseline = 0.9 * self.baseline + 0.1 * reward.mean()  # type: ignore[has-type]
        return loss
