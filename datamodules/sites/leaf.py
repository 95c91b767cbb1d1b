"""Leaf: the data sets of the LEAF benchmark."""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

from numpy.typing import NDArray
from typing_extensions import override

from fl_lightning.datamodules.base.settings import Images, Unpack
from fl_lightning.datamodules.files.leaf import leaf_files, read_leaf
from fl_lightning.datamodules.files.npz_clients import Clients
from fl_lightning.datamodules.sites.client_files import ClientFiles
from fl_lightning.datamodules.sites.texts import ALPHABET, characters, tokens, vocabulary
from fl_lightning.errors import ConfigurationError, check_at_least, refusal

TWEET = 4  # the place of the text in a record: number, date, query, user, text, file


class Leaf(ClientFiles):
    """The users of a data set of LEAF (Caldas et al., 2018), read from the json files that LEAF writes.

    The files tell what they hold:

    * FEMNIST, and other numbers: images of 28x28, 62 classes; vectors of other lengths are floats, as in ``synthetic``
      and in the files of FedProx.
    * Shakespeare: int64 codes (n, 80) of characters in LEAF's alphabet, and the code of the character that follows, of
      80 classes.
    * Sentiment140: int64 numbers (n, ``max_words``) of the tweets' first words: 0 after the last word, 1 for words that
      are not among the most frequent of the training tweets; classes 0 and 1 (4 in the first release). LEAF takes its
      words from GloVe, in the place of the training tweets.

    CelebA's and Reddit's files are not read.

    Args:
        root: folder that holds ``train/*.json`` and ``test/*.json``, as ``preprocess.sh -t sample`` makes them:
            ``data/femnist/data``.
        vocabulary: number of different numbers in tweets, at least 3.
        max_words: number of words of a tweet, at least 1 (LEAF: 25).
        num_classes: as for :class:`ClientFiles`; a sample of FEMNIST may lack some of the 62.
        images: ``partition``, ``augment`` and the other arguments of :class:`ImageData`.

    Raises:
        ConfigurationError: as for :class:`ClientFiles`.
    """

    def __init__(
        self,
        root: str,
        vocabulary: int = 10_000,
        max_words: int = 25,
        num_classes: int | None = None,
        **images: Unpack[Images],
    ) -> None:
        super().__init__(root, num_classes, **images)
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
                encoded[user] = (inputs, targets)
            elif inputs.ndim == 1 and targets.dtype.kind == "U":
                encoded[user] = (characters(inputs.tolist()), characters(targets.tolist())[:, 0])
                self._num_classes = self._num_classes or len(ALPHABET)
            elif inputs.ndim == 2 and inputs.shape[1] > TWEET:
                numbers = tokens(inputs[:, TWEET].tolist(), self._words, self.max_words)
                encoded[user] = (numbers, _opinions(targets))
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
    def _words(self) -> dict[str, int]:
        """The numbers of the words of the training tweets."""
        texts = (text for inputs, _ in self._train.values() for text in inputs[:, TWEET].tolist())
        return vocabulary(texts, self.vocabulary)


def _opinions(targets: NDArray[Any]) -> NDArray[Any]:
    """Return the classes 0 and 1 of tweets; in Sentiment140's own files they are 0 and 4."""
    numbers = targets.astype(int)
    return numbers // 4 if numbers.max() == 4 else numbers
