"""Networks for texts: numbers of characters or of words, int64 (B, T)."""

import torch
from torch import Tensor, nn

from fl_lightning.errors import check_at_least

PAD = 0  # the number that stands for no word


class CharLSTM(nn.Module):
    """Predicts the character that follows a text: LEAF's network for Shakespeare (819,920 parameters).

    An embedding of 8, two LSTM layers of 256 and a linear layer on the last output, as in McMahan et al. (2017). They
    print 866,578 parameters and not their alphabet; 258 characters and peephole weights, which PyTorch's LSTM does not
    have, give that number. PyTorch has two biases in each gate, and so 2,048 parameters more than LEAF's network.

    Args:
        num_classes: number of characters, which are the inputs' numbers and the classes.
        embedding: width of the embedding.
        hidden: width of each LSTM layer.
        layers: number of LSTM layers.

    Raises:
        ConfigurationError: a number is less than 1.
    """

    def __init__(self, num_classes: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        check_at_least(1, num_classes=num_classes, embedding=embedding, hidden=hidden, layers=layers)
        self.embedding = nn.Embedding(num_classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, num_classes)

    def forward(self, characters: Tensor) -> Tensor:
        """Return logits (B, num_classes) of int64 characters (B, T)."""
        outputs, _ = self.lstm(self.embedding(characters))
        logits: Tensor = self.classifier(outputs[:, -1])
        return logits


class TextLSTM(nn.Module):
    """Classifies texts by LSTM layers that end at the last word (LEAF's for Sentiment140 has two layers of 100).

    Unlike LEAF's network, this one learns its embedding from random weights, stops before the zeros that fill up a
    text, and has no linear layer of 128 before the last one.

    Args:
        num_classes: number of classes.
        vocabulary: number of different numbers in the texts; 0 stands for no word, and only follows the last word.
        embedding: width of the embedding.
        hidden: width of each LSTM layer.
        layers: number of LSTM layers.

    Raises:
        ConfigurationError: a number is less than 1.
    """

    def __init__(
        self, num_classes: int = 2, vocabulary: int = 10_000, embedding: int = 100, hidden: int = 100, layers: int = 2
    ) -> None:
        super().__init__()
        sizes = {"vocabulary": vocabulary, "embedding": embedding, "hidden": hidden, "layers": layers}
        check_at_least(1, num_classes=num_classes, **sizes)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, num_classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits (B, num_classes) of int64 words (B, T)."""
        outputs, _ = self.lstm(self.embedding(words))
        last = (words != PAD).sum(1).clamp(min=1) - 1  # the place of each text's last word
        ends = outputs[torch.arange(len(words), device=words.device), last]
        logits: Tensor = self.classifier(ends)
        return logits


class BagOfWords(nn.Module):
    """Classifies texts by the mean of their words' embeddings, in any order (Joulin et al., 2017, without n-grams).

    Args:
        num_classes: number of classes.
        vocabulary: number of different numbers in the texts; 0 stands for no word and does not count.
        embedding: width of the embedding.

    Raises:
        ConfigurationError: a number is less than 1.
    """

    def __init__(self, num_classes: int = 2, vocabulary: int = 10_000, embedding: int = 32) -> None:
        super().__init__()
        check_at_least(1, num_classes=num_classes, vocabulary=vocabulary, embedding=embedding)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.classifier = nn.Linear(embedding, num_classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits (B, num_classes) of int64 words (B, T)."""
        is_word = (words != PAD).unsqueeze(2)
        embedded = self.embedding(words) * is_word
        logits: Tensor = self.classifier(embedded.sum(1) / is_word.sum(1).clamp(min=1))
        return logits
