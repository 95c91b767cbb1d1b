"""Modules for batches of many kinds: dicts, sentences, named tuples, lists of images."""

from typing import Any

import torch
from lib.toy import Net
from torch import Tensor, nn
from torch.nn import functional as F

from zoo import data


@data.on(data=data.unlabelled)
class Variational(Net):
    """A TensorDataset without labels; draws in the forward pass, and returns a dict with parts of the loss."""

    def build(self) -> None:
        self.net, self.decoder = nn.Linear(4, 4), nn.Linear(2, 4)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        mean, log_variance = self.net(batch[0]).chunk(2, 1)
        code = torch.distributions.Normal(mean, (log_variance / 2).exp()).rsample()
        far = (mean**2 + log_variance.exp() - log_variance - 1).sum(1).mean() / 2
        match = F.mse_loss(self.decoder(code), batch[0])
        return {"loss": match + 0.1 * far, "match": match.detach(), "far": far.detach()}


@data.on(data=data.bare)
class BareBatches(Net):
    """A batch is a tensor, in no list."""

    def loss(self, batch: Any) -> Tensor:
        return super().loss([batch, batch.argmax(1) % 3])


@data.on(data=data.pairs)
class ImageText(Net):
    """CLIP: two towers, a learned temperature that a hook clamps in place, batches of named tuples."""

    def build(self) -> None:
        self.net = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def loss(self, batch: Any) -> Tensor:
        a, b = (F.normalize(tower(x), dim=1) for tower, x in zip(self.net, batch.views, strict=True))
        return F.cross_entropy(self.scale.exp() * a @ b.T, torch.arange(len(a)))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.scale.data.clamp_(0.95, 1.01)


@data.on(data=data.tables)
class TwoTasks(Net):
    """Batches are dicts with a dict in them; two heads, weighed by learned numbers, parameters without a shape."""

    def build(self) -> None:
        self.colours, self.shapes = nn.Embedding(3, 2), nn.EmbeddingBag(2, 2)
        self.net = nn.ModuleDict({"class": nn.Linear(6, 3), "price": nn.Linear(6, 1)})
        self.doubts = nn.ParameterDict({"class": nn.Parameter(torch.zeros(())), "price": nn.Parameter(torch.zeros(()))})

    def loss(self, batch: Any) -> Tensor:
        kinds, targets = batch["categories"], batch["targets"]
        x = torch.cat([batch["numbers"], self.colours(kinds["colour"]), self.shapes(kinds["shape"][:, None])], 1)
        losses = {
            "class": F.cross_entropy(self.net["class"](x), targets["class"]),
            "price": F.mse_loss(self.net["price"](x)[:, 0], targets["price"].float()),
        }
        return sum(loss * (-self.doubts[n]).exp() + self.doubts[n] for n, loss in losses.items())


@data.on(data=data.tokens)
class WordBag(Net):
    """An embedding with a padding word, which gets no gradient, and a largest norm, kept up in the forward pass."""

    def build(self) -> None:
        self.words, self.net = nn.Embedding(11, 4, padding_idx=0, max_norm=1.0), nn.Linear(4, 3)

    def loss(self, batch: Any) -> Tensor:
        return super().loss([self.words(batch[0]).mean(1), batch[1]])


@data.on(data=data.texts)
class Strings(WordBag):
    """Batches hold strings, which the module cuts into words."""

    def loss(self, batch: Any) -> Tensor:
        words = [[sum(map(ord, word)) % 11 for word in text.split()] for text in batch[0]]
        return super().loss([torch.tensor(words), batch[1]])


@data.on(data=data.sentences, collate=data.padded)
class SentenceBatches(WordBag):
    """Batches are objects of a class of their own: sentences of different lengths, packed for a GRU."""

    def build(self) -> None:
        super().build()
        self.gru = nn.GRU(4, 4, batch_first=True)

    def loss(self, batch: Any) -> Tensor:
        words = self.words(batch.words) * batch.mask[..., None]
        packed = nn.utils.rnn.pack_padded_sequence(words, batch.lengths, batch_first=True, enforce_sorted=False)
        return F.cross_entropy(self.net(self.gru(packed)[1][0]), batch.labels)


@data.on(data=data.scenes, collate=data.listed)
class FindsBoxes(Net):
    """Batches are lists of images of different sizes with lists of dicts; some images have no box."""

    def build(self) -> None:
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.box, self.net = nn.Linear(4, 4), nn.Linear(4, 3)

    def loss(self, batch: Any) -> Tensor:
        images, targets = batch
        seen = torch.cat([self.body(image[None]) for image in images])
        boxes = [(box - t["boxes"]).abs().sum() for box, t in zip(self.box(seen), targets, strict=True)]
        kinds = torch.tensor([target["scene"] for target in targets])
        return F.cross_entropy(self.net(seen), kinds) + torch.stack(boxes).mean()


@data.on(data=data.small_bytes)
class Bytes(Net):
    """Inputs are whole numbers of one byte, which the module makes floats."""

    def loss(self, batch: Any) -> Tensor:
        return super().loss([batch[0].float() / 255, batch[1]])


class ChangesBatches(Net):
    """Writes into its batch."""

    def loss(self, batch: Any) -> Tensor:
        batch[0].mul_(0.5)
        batch[1][0] = 0
        return super().loss(batch)


class MovesBatches(Net):
    """Hooks of its own that bring a batch to the device, with augmentation there."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        return x + 0.1 * torch.randn_like(x) if self.training else x, y
