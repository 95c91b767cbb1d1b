"""Modules for batches of many kinds: dicts, sentences, graphs, time series, lists of images."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from toy import Net


class TwoTasks(LightningModule):
    """Batches are dicts with a dict in them; two heads, weighed by learned numbers, parameters without a shape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.colours, self.shapes = nn.Embedding(3, 2), nn.EmbeddingBag(2, 2)
        self.heads = nn.ModuleDict({"class": nn.Linear(6, 3), "price": nn.Linear(6, 1)})
        self.doubts = nn.ParameterDict({"class": nn.Parameter(torch.zeros(())), "price": nn.Parameter(torch.zeros(()))})

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        kinds, targets = batch["categories"], batch["targets"]
        x = torch.cat([batch["numbers"], self.colours(kinds["colour"]), self.shapes(kinds["shape"][:, None])], 1)
        losses = {
            "class": F.cross_entropy(self.heads["class"](x), targets["class"]),
            "price": F.mse_loss(self.heads["price"](x)[:, 0], targets["price"].float()),
        }
        return sum(loss * (-self.doubts[n]).exp() + self.doubts[n] for n, loss in losses.items())  # type: ignore

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class WordBag(Net):
    """An embedding with a padding word, which gets no gradient, and a largest norm, kept up in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.net = nn.Embedding(11, 4, padding_idx=0, max_norm=1.0), nn.Sequential(nn.Linear(4, 3))

    def loss(self, batch: Any) -> Tensor:
        return super().loss([self.words(batch[0]).mean(1), batch[1]])


class Strings(WordBag):
    """Batches hold strings, which ``training_step`` cuts into words."""

    def loss(self, batch: Any) -> Tensor:
        words = [[sum(map(ord, word)) % 11 for word in text.split()] for text in batch[0]]
        return super().loss([torch.tensor(words), batch[1]])


class SentenceBatches(WordBag):
    """Batches are objects of a class of their own: sentences of different lengths, packed for a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 4, batch_first=True, bidirectional=True)
        self.net = nn.Sequential(nn.Linear(8, 3))

    def loss(self, batch: Any) -> Tensor:
        words = self.words(batch.words) * batch.mask[..., None]
        packed = nn.utils.rnn.pack_padded_sequence(words, batch.lengths, batch_first=True, enforce_sorted=False)
        return F.cross_entropy(self.net(self.gru(packed)[1].transpose(0, 1).flatten(1)), batch.labels)


class FindsBoxes(LightningModule):
    """Batches are lists of images of different sizes with lists of dicts; some images have no box."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.box, self.kind = nn.Linear(4, 4), nn.Linear(4, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, targets = batch
        seen = torch.cat([self.body(image[None]) for image in images])
        kinds = torch.tensor([target["scene"] for target in targets])
        boxes = [(box - t["boxes"]).abs().sum() for box, t in zip(self.box(seen), targets, strict=True)]
        losses = {"kind": F.cross_entropy(self.kind(seen), kinds), "box": torch.stack(boxes).mean()}
        return {"loss": sum(losses.values()), **{name: loss.detach() for name, loss in losses.items()}}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True)


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


class GraphNetwork(LightningModule):
    """Sums over neighbours: the graph is a part of the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        nodes, edges, labels = batch
        hidden = F.relu(edges @ self.first(nodes))
        return F.cross_entropy((edges @ self.second(hidden)).mean(1), labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Recurrent(LightningModule):
    """An LSTM that keeps its hidden state from batch to batch in an attribute, and drops the state every epoch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.lstm, self.head, self.hidden = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 2), None

    def on_train_epoch_start(self) -> None:
        self.hidden = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        hidden = None if self.hidden is None else tuple(h[:, : len(x)].contiguous() for h in self.hidden)
        out, hidden = self.lstm(x, hidden)
        self.hidden = tuple(h.detach() for h in hidden)  # type: ignore[assignment]
        return F.mse_loss(self.head(out[:, -1]), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class LanguageModel(LightningModule):
    """A small transformer with a causal mask that is no part of checkpoints; embedding and head share their weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5), persistent=False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        given, wanted = batch[0][:, :-1], batch[0][:, 1:]
        hidden = self.layer(self.words(given) + self.places.weight[:5], src_mask=self.mask, is_causal=True)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), wanted.flatten())

    def configure_optimizers(self) -> Any:
        decay = {"params": [p for p in self.parameters() if p.ndim > 1], "weight_decay": 0.1}
        return torch.optim.AdamW([decay, {"params": [p for p in self.parameters() if p.ndim < 2]}], lr=0.01)
