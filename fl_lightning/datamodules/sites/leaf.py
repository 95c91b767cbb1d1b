"""Leaf: the data sets of the LEAF benchmark."""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fl_lightning.datamodules.base.settings import Images, Unpack
from fl_lightning.datamodules.files.leaf import leaf_files, read_leaf
from fl_lightning.datamodules.files.npz_clients import Clients
from fl_lightning.datamodules.sites.arrays import Meaning, Tokens, flat_images
from fl_lightning.datamodules.sites.client_files import ClientFiles
from fl_lightning.datamodules.sites.texts import ALPHABET, characters, tokens, vocabulary
from fl_lightning.errors import ConfigurationError, check_at_least, refusal
from fl_lightning.later import later

TWEET = 4  # the place of the text in a record: number, date, query, user, text, file


class Leaf(ClientFiles):
    """The users of a data set of LEAF (Caldas et al., 2018), read from the json files that LEAF writes.

    The files tell what they hold:

    * FEMNIST, and other vectors of 784 floats: images of 28x28, 62 classes; vectors of other lengths are floats, as in
      ``synthetic`` and in the files of FedProx.
    * Shakespeare: int64 codes (n, 80) of characters in LEAF's alphabet, and the code of the character that follows, of
      80 classes.
    * Sentiment140: int64 numbers (n, ``max_words``) of the tweets' first words: 0 after the last word, 1 for words that
      are not among the most frequent of the training tweets; classes 0 and 1 (in the first release 0, 2 and 4, of
      which LEAF makes 0, 0 and 1). LEAF takes its words from GloVe, in the place of the training tweets.

    CelebA's and Reddit's files are not read.

    Args:
        root: folder that holds ``train/*.json`` and ``test/*.json``, as ``preprocess.sh -t sample`` makes them:
            ``data/femnist/data``.
        vocabulary: number of different numbers in tweets, at least 3.
        max_words: number of words of a tweet, at least 1 (LEAF: 25).
        num_classes: as for :class:`ClientFiles`; a sample of FEMNIST may lack some of the 62.
        inputs: as for :class:`ClientFiles`, for numbers.
        images: ``partition``, ``augment`` and the other arguments of :class:`ImageData`.

    Raises:
        ConfigurationError: as for :class:`ClientFiles`.
    """

    @later(inputs=None)
    def __init__(
        self,
        root: str,
        vocabulary: int = 10_000,
        max_words: int = 25,
        num_classes: int | None = None,
        inputs: Meaning | None = None,
        **images: Unpack[Images],
    ) -> None:
        super().__init__(root, num_classes, inputs, **images)
        check_at_least(3, vocabulary=vocabulary)
        check_at_least(1, max_words=max_words)
        self.vocabulary, self.max_words = vocabulary, max_words

    @override
    def missing(self) -> str | None:
        found = [refusal(partial(leaf_files, self.folder, train)) for train in (True, False)]
        return found[0] or found[1]

    @override
    def read(self, train: bool) -> Clients:
        clients = self._train if train else read_leaf(self.folder, train)
        encoded: Clients = {}
        for user, (inputs, targets) in clients.items():
            if inputs.dtype.kind != "U":
                numbers = inputs.astype(np.float32) if self._are_floats else inputs  # JSON may write 1 for 1.0
                encoded[user] = (flat_images(numbers) if self._are_floats and not self.inputs else numbers, targets)
            elif inputs.ndim == 1 and targets.dtype.kind == "U":
                encoded[user] = (Tokens(characters(inputs.tolist())), characters(targets.tolist())[:, 0])
                self._num_classes = self._num_classes or len(ALPHABET)
            elif inputs.ndim == 2 and inputs.shape[1] > TWEET:
                words = tokens(inputs[:, TWEET].tolist(), self._words, self.max_words)
                encoded[user] = (Tokens(words), self._opinions(targets))
            else:
                raise ConfigurationError(
                    f"expected numbers, texts before a character, or records of a tweet in {self.folder}, got other "
                    f"texts for user {user!r}: Leaf reads femnist, shakespeare, sent140 and synthetic"
                )
        return encoded

    @property
    @override
    def measured(self) -> Mapping[str, str]:  # type: ignore[override]  # known on loading only
        """The vocabulary of tweets; of images, what :class:`ClientFiles` measures."""
        words = {"a vocabulary": "give the tweets as numbers"} if "_words" in vars(self) else {}
        return {**super().measured, **words}

    @cached_property
    def _train(self) -> Clients:
        return read_leaf(self.folder, True)

    @cached_property
    def _are_floats(self) -> bool:
        """Whether some training inputs are floats: then all numbers are."""
        return any(inputs.dtype.kind == "f" and len(inputs) for inputs, _ in self._train.values())

    @cached_property
    def _words(self) -> dict[str, int]:
        """The numbers of the words of the training tweets."""
        texts = (text for inputs, _ in self._train.values() if len(inputs) for text in inputs[:, TWEET].tolist())
        return vocabulary(texts, self.vocabulary)

    @cached_property
    def _scale(self) -> int:
        """The number of positive tweets: 4 in LEAF's first release, as in Sentiment140, else 1."""
        return max(int(_numbers(targets).max(initial=1)) for _, targets in self._train.values())

    def _opinions(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return the classes 0 and 1 of tweets; of LEAF's first release, which has 0, 2 and 4, 1 for 4 alone."""
        numbers = _numbers(targets)
        known = {1: (0, 1), 4: (0, 2, 4)}.get(self._scale, ())
        others = sorted({*numbers.tolist()} - {*known})
        if others:
            raise ConfigurationError(
                f"expected tweets of the classes 0 and 1, or 0, 2 and 4, in {self.folder}, got {others[-1]:g}, too: "
                "number the classes so"
            )
        classes: NDArray[np.int64] = np.equal(numbers, self._scale).astype(np.int64)
        return classes


def _numbers(targets: NDArray[Any]) -> NDArray[np.float64]:
    """Return the classes of tweets, which LEAF's first release writes as texts, as numbers."""
    try:
        return targets.astype(np.float64)
    except ValueError:
        example = targets.tolist()[0]
        raise ConfigurationError(f"expected numbers as classes of tweets, got {example!r}: convert them") from None
