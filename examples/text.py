"""Text: ten authors train a language model of single letters, and keep their sentences to themselves.

    python examples/text.py
    python examples/text.py --rounds 30

Shows texts of different length: `collate_fn` pads them to a batch, and `from_loaders` makes a client of each author
named in `partition`. The sentences are drawn from a small grammar; every author has favourite words. Prints the
perplexity of a letter (how many letters the model wavers between), and a sentence that the model writes.
"""

import argparse

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import ConflictMonitor

END = 27  # a text ends with it, and so does every text that the model writes
NOTHING = -100  # the target of padding, which torch's cross entropy leaves out
WORDS = (
    ["a", "the", "my", "some", "every"],
    ["old", "small", "blue", "quiet", "clever", "lazy"],
    ["cat", "server", "client", "round", "river", "moon"],
    ["sees", "likes", "averages", "follows", "forgets"],
)

QUIET = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "enable_progress_bar": False}


def encode(text: str) -> Tensor:
    """Number the letters of a text: a space is 0, a is 1, z is 26."""
    return torch.tensor([" abcdefghijklmnopqrstuvwxyz".index(letter) for letter in text])


def sentences(author: int, count: int) -> list[Tensor]:
    """Draw sentences such as "the old cat sees my river" from an author's own favourite words."""
    draw = np.random.default_rng(author)
    taste = [draw.dirichlet(np.full(len(words), 0.5)) for words in WORDS]

    def say(*kinds: int) -> list[str]:
        return [draw.choice(WORDS[kind], p=taste[kind]) for kind in kinds if kind != 1 or draw.random() < 0.6]

    return [encode(" ".join(say(0, 1, 2, 3, 0, 1, 2))) for _ in range(count)]


def padded(texts: list[Tensor]) -> list[Tensor]:
    """Make a batch of texts of any length: inputs (B, T), which begin with END, and the letters that follow (B, T)."""
    end = torch.tensor([END])
    inputs = [torch.cat([end, text]) for text in texts]
    targets = [torch.cat([text, end]) for text in texts]
    return [pad_sequence(inputs, batch_first=True), pad_sequence(targets, batch_first=True, padding_value=NOTHING)]


class Writer(lightning.LightningModule):
    """A recurrent network that predicts the next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(28, 16)
        self.memory = nn.GRU(16, 64, batch_first=True)
        self.head = nn.Linear(64, 28)

    def forward(self, letters: Tensor) -> Tensor:
        return self.head(self.memory(self.embedding(letters))[0])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=NOTHING)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val/loss", self.training_step(batch, batch_idx), batch_size=int((batch[1] != NOTHING).sum()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)

    @torch.no_grad()
    def write(self) -> str:
        """Write a text of at most 60 letters, letter by letter."""
        letters = [END]
        while len(letters) == 1 or (letters[-1] != END and len(letters) < 60):
            probabilities = self(torch.tensor([letters]))[0, -1].softmax(0)
            letters.append(int(torch.multinomial(probabilities, 1)))
        return "".join(" abcdefghijklmnopqrstuvwxyz"[letter] for letter in letters if letter != END)


def main(rounds: int) -> None:
    """Train, and print the perplexity of a letter before and after, and a text."""
    lightning.seed_everything(1, verbose=False)
    authors = [author for author in range(10) for _ in range(100)]
    texts = [text for author in range(10) for text in sentences(author, 120)]
    train = [text for number, text in enumerate(texts) if number % 120 < 100]
    held_out = [text for number, text in enumerate(texts) if number % 120 >= 100]
    data = FederatedDataModule.from_loaders(
        train, val=held_out, partition=authors, batch_size=20, collate_fn=padded, participation=5
    )
    orchestrator = FederatedOrchestrator(Writer(), gradient_clip_val=1.0)
    trainer = lightning.Trainer(
        max_epochs=rounds,
        accelerator="cpu",
        callbacks=[ConflictMonitor()],
        **QUIET,
    )
    before = trainer.validate(orchestrator, datamodule=data, verbose=False)[0]["val/loss"]
    trainer.fit(orchestrator, datamodule=data)
    after, conflict = (float(trainer.callback_metrics[name]) for name in ("val/loss", "conflict/ratio"))
    print(f"perplexity of a letter: {np.exp(before):.2f} before training, {np.exp(after):.2f} after {rounds} rounds")
    print(f"conflicting pairs of authors in the last round: {conflict:.0%}")
    print(f"the model writes: {orchestrator.client.write()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    torch.set_num_threads(1)
    main(parser.parse_args().rounds)
