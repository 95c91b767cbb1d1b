"""Small networks for texts, numbers of characters or of words, int64 (B, T)."""

import torch
from torch import Tensor, nn

from fl_lightning.datamodules.tables.tokens import NOTHING
from fl_lightning.errors import ConfigurationError, check_at_least
from fl_lightning.later import later
from fl_lightning.models.texts.padding import to_front


class CharLSTM(nn.Module):
    """Predicts the character that follows a text: LEAF's network for Shakespeare (819,920 parameters).

    All texts have one length, and a character at each place.

    An embedding of 8, two LSTM layers of 256 and a linear layer on the last output, as in McMahan et al. (2017). They
    print 866,578 parameters and not their alphabet; 258 characters and peephole weights, which PyTorch's LSTM does not
    have, give that number. PyTorch has two biases in each gate, and so 2,048 parameters more than LEAF's network.

    Args:
        num_classes: number of characters, which are the inputs' numbers and the classes.
        embedding: width of the embedding.
        hidden: width of each LSTM layer.
        layers: number of LSTM layers.

    Raises:
        ConfigurationError: a number is less than 1; on a CPU, a text has a number that is no character's.
    """

    def __init__(self, num_classes: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        check_at_least(1, num_classes=num_classes, embedding=embedding, hidden=hidden, layers=layers)
        self.embedding = nn.Embedding(num_classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, num_classes)

    def forward(self, characters: Tensor) -> Tensor:
        """Return logits (B, num_classes) of int64 characters (B, T)."""
        hint = "set num_classes to that of the data, whose texts have one length"
        outputs, _ = self.lstm(_embed(self, characters, hint))
        logits: Tensor = self.classifier(outputs[:, -1])
        return logits


class TextLSTM(nn.Module):
    """Classifies texts by LSTM layers that end at the last word (LEAF's for Sentiment140 has two layers of 100).

    Unlike LEAF's network, this one learns its embedding from random weights, stops before the zeros that fill up a
    text, and has no linear layer of 128 before the last one.

    Args:
        num_classes: number of classes.
        vocabulary: number of different numbers in the texts.
        embedding: width of the embedding.
        hidden: width of each LSTM layer.
        layers: number of LSTM layers.
        pad: number that stands for no word, as in the texts of :class:`Leaf` and :class:`PFLlib`; None for data that
            mark places without a word by -100, such as :class:`HuggingFace`, where 0 is a word.

    Raises:
        ConfigurationError: a number is less than 1; on a CPU, a text has a number that is no word's.
    """

    @later(pad=0)
    def __init__(
        self,
        num_classes: int = 2,
        vocabulary: int = 10_000,
        embedding: int = 100,
        hidden: int = 100,
        layers: int = 2,
        pad: int | None = 0,
    ) -> None:
        super().__init__()
        sizes = {"vocabulary": vocabulary, "embedding": embedding, "hidden": hidden, "layers": layers}
        check_at_least(1, num_classes=num_classes, **sizes)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, num_classes)
        self.nothing = NOTHING if pad is None else pad

    def forward(self, words: Tensor) -> Tensor:
        """Return logits (B, num_classes) of int64 words (B, T)."""
        (words,) = to_front(words, nothing=self.nothing)
        embedded, is_word = _embed_words(self, words)
        outputs, _ = self.lstm(embedded)
        last = is_word.sum(1).clamp(min=1) - 1  # the place of each text's last word
        ends = outputs[torch.arange(len(words), device=words.device), last]
        logits: Tensor = self.classifier(ends)
        return logits


class BagOfWords(nn.Module):
    """Classifies texts by the mean of their words' embeddings, in any order (Joulin et al., 2017, without n-grams).

    Args:
        num_classes: number of classes.
        vocabulary: number of different numbers in the texts.
        embedding: width of the embedding.
        pad: as for :class:`TextLSTM`.

    Raises:
        ConfigurationError: as for :class:`TextLSTM`.
    """

    @later(pad=0)
    def __init__(
        self, num_classes: int = 2, vocabulary: int = 10_000, embedding: int = 32, pad: int | None = 0
    ) -> None:
        super().__init__()
        check_at_least(1, num_classes=num_classes, vocabulary=vocabulary, embedding=embedding)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.classifier = nn.Linear(embedding, num_classes)
        self.nothing = NOTHING if pad is None else pad

    def forward(self, words: Tensor) -> Tensor:
        """Return logits (B, num_classes) of int64 words (B, T)."""
        embedded, is_word = _embed_words(self, words)
        counted = is_word.unsqueeze(2)
        logits: Tensor = self.classifier((embedded * counted).sum(1) / counted.sum(1).clamp(min=1))
        return logits


def _embed_words(network: TextLSTM | BagOfWords, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the embeddings (B, T, E) of words (B, T), and which places (B, T) have a word."""
    is_word = words != network.nothing
    hint = "set vocabulary to that of the data, and pad to null for data that mark places without a word by -100"
    return _embed(network, words.masked_fill(~is_word, 0), hint), is_word


def _embed(network: CharLSTM | TextLSTM | BagOfWords, numbers: Tensor, hint: str) -> Tensor:
    """Return the embeddings (B, T, E) of numbers (B, T); the hint says what to do about numbers that have none."""
    try:
        embedded: Tensor = network.embedding(numbers)
    except IndexError:
        name, last = type(network).__name__, network.embedding.num_embeddings - 1
        low, high = int(numbers.min()), int(numbers.max())
        raise ConfigurationError(f"{name} has the numbers 0 to {last}, got {low} to {high}: {hint}") from None
    return embedded
