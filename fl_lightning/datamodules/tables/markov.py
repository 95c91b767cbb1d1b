"""MarkovTexts: texts whose smallest perplexity is known."""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.datamodules.base.settings import Generated, Unpack
from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.datamodules.partition.steps.shares import Floats
from fl_lightning.errors import check_at_least, check_positive
from fl_lightning.later import later
from fl_lightning.seeding import numpy_generator


class MarkovTexts(LabelledData):
    """Texts without meaning, drawn from Markov chains, one chain for each group of clients; they need no download.

    Client k writes by chain k mod ``chains``: each word is drawn by the word before it alone, and the first word from
    the chain's stationary distribution. The words that may follow a word have the probabilities of a draw from
    Dirichlet(alpha, …, alpha), independent for each word and each chain. So the smallest mean loss of a language model
    is known: ``entropy``, that of the chains, which a model reaches that knows each text's chain. A model of one chain
    can come as near as its texts allow; one of several chains has to find out from the first words whose text it reads.

    Batches are ``[words (B, length), chains (B,)]``, int64: words are numbered from 1, and 0, which stands for no word,
    does not occur. A model needs a vocabulary of ``vocabulary`` + 1. A language model leaves the chains out, a
    classifier of texts can learn them. With ``next_word`` the batches are ``[words (B, length - 1), last words (B,)]``,
    for a model that predicts one word, such as :class:`~fl_lightning.models.CharLSTM`. The test set is that of all
    clients together; each client has its own part.

    Args:
        num_clients: N, the number of clients, and of those of a ``partition``; a client's texts do not depend on it.
        chains: number of chains.
        vocabulary: number of words.
        length: number of words of a text, at least 2.
        texts: number of training texts of each client.
        test_texts: number of test texts of each client.
        alpha: the smaller, the fewer words follow a word, and the smaller the entropy.
        data_seed: seed of the chains and the texts; all seeds of a run have the same data.
        next_word: whether the label of a text is its last word, which the text then lacks, and not its chain.
        labelled: ``partition``, ``held_out``, ``seed`` and the other arguments of :class:`LabelledData`.

    Raises:
        ConfigurationError: an argument is outside its range.
    """

    @later(next_word=False)
    def __init__(
        self,
        num_clients: int = 12,
        chains: int = 3,
        vocabulary: int = 16,
        length: int = 32,
        texts: int = 128,
        test_texts: int = 32,
        alpha: float = 0.3,
        data_seed: int = 0,
        next_word: bool = False,
        **labelled: Unpack[Generated],
    ) -> None:
        super().__init__(num_clients=num_clients, **labelled)
        check_at_least(1, chains=chains, texts=texts, test_texts=test_texts)
        check_at_least(2, vocabulary=vocabulary, length=length)
        check_at_least(0, data_seed=data_seed)
        check_positive(alpha=alpha)
        self.chains, self.next_word = chains, next_word
        self.num_classes = vocabulary + 1 if next_word else chains
        self.vocabulary, self.length, self.alpha = vocabulary, length, alpha
        self.texts, self.test_texts = texts, test_texts
        self.data_seed, self.generated = data_seed, num_clients

    @cached_property
    def transitions(self) -> Floats:
        """The probability (chains, V, V) of each word after each word, by chain."""
        drawn: list[Floats] = []
        for chain in range(self.chains):
            generator = numpy_generator(self.data_seed, "markov chain", chain)
            drawn.append(generator.dirichlet([self.alpha] * self.vocabulary, self.vocabulary))
        return np.stack(drawn)

    @property
    def entropy(self) -> float:
        """The smallest mean loss of a word, in nats: the mean over the clients of their chains' entropies."""
        entropies = [entropy_of(chain) for chain in self.transitions]
        return float(np.mean([entropies[client % self.chains] for client in range(self.generated)]))

    @property
    def perplexity(self) -> float:
        """The smallest perplexity, exp of the entropy."""
        return math.exp(self.entropy)

    @override
    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        texts = torch.from_numpy(np.concatenate([self._own(part, train) for part in self._drawn]))
        if self.next_word:
            return texts[:, :-1], texts[:, -1]
        chains = torch.arange(self.generated) % self.chains
        return texts, chains.repeat_interleave(len(texts) // self.generated)

    @override
    def clients(self, train: bool) -> Sequence[str]:
        """Return the name (n,) of each text's client, in the training or in the test set."""
        names: list[str] = []
        for client in range(self.generated):
            names += [f"writer_{client:05d}"] * (self.texts if train else self.test_texts)
        return names

    def _own(self, texts: Ints, train: bool) -> Ints:
        return texts[: self.texts] if train else texts[self.texts :]

    @cached_property
    def _drawn(self) -> list[Ints]:
        """The training and then the test texts of each client."""
        count = self.texts + self.test_texts
        drawn: list[Ints] = []
        for client in range(self.generated):
            generator = numpy_generator(self.data_seed, "markov texts", client)
            drawn.append(1 + draw_texts(self.transitions[client % self.chains], count, self.length, generator))
        return drawn


def stationary(transitions: Floats) -> Floats:
    """Return the share (V,) of each word in long texts: the solution of π P = π, whose entries add up to 1.

    >>> stationary(np.array([[0.5, 0.5], [1.0, 0.0]])).round(4).tolist()
    [0.6667, 0.3333]
    """
    size = len(transitions)
    equations = np.vstack([transitions.T - np.eye(size), np.ones(size)])
    shares: Floats = np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)[0]
    return shares.clip(0)


def entropy_of(transitions: Floats) -> float:
    """Return the entropy of a chain's next word in nats, -Σ_i π_i Σ_j P_ij ln P_ij.

    >>> round(entropy_of(np.array([[0.5, 0.5], [1.0, 0.0]])) / math.log(2), 4)  # two in three words are a coin's
    0.6667
    """
    logarithms = np.log(transitions, out=np.zeros_like(transitions), where=transitions > 0)
    return float(-stationary(transitions) @ (transitions * logarithms).sum(1))


def draw_texts(transitions: Floats, count: int, length: int, generator: np.random.Generator) -> Ints:
    """Draw texts (count, length) of words from 0, the first of each from the chain's stationary distribution."""
    last = len(transitions) - 1
    limits = transitions.cumsum(1)
    texts = np.empty((count, length), dtype=np.int64)
    draws = generator.random((count, length))
    texts[:, 0] = np.searchsorted(stationary(transitions).cumsum(), draws[:, 0], side="right")
    texts[:, 0].clip(max=last, out=texts[:, 0])
    for place in range(1, length):
        below = limits[texts[:, place - 1]] <= draws[:, place, None]
        texts[:, place] = below.sum(1).clip(max=last)  # the limits may add up to a little less than 1
    return texts
