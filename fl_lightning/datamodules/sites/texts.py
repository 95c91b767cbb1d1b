"""Functions that turn texts into int64 numbers, of characters or of words."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fl_lightning.datamodules.partition.steps.parts import Ints
from fl_lightning.errors import ConfigurationError

# LEAF's characters of Shakespeare's plays, in LEAF's order
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
CODES = {character: code for code, character in enumerate(ALPHABET)}
PAD, UNKNOWN = 0, 1  # numbers that are no word's


def characters(texts: Sequence[str]) -> Ints:
    """Return the code of each character, its place in LEAF's alphabet.

    >>> characters(["To be", "or no"])[1].tolist()
    [67, 70, 1, 66, 67]

    Args:
        texts: n texts of one length.

    Returns:
        (n, length) codes from 0 to 79.

    Raises:
        ConfigurationError: the texts differ in length, or have characters that are not in the alphabet.
    """
    unknown = set().union(*texts) - CODES.keys()
    if unknown:
        raise ConfigurationError(
            f"expected LEAF's {len(ALPHABET)} characters of Shakespeare, got {min(unknown)!r}: leave the examples with "
            "other characters out"
        )
    lengths = {len(text) for text in texts}
    if len(lengths) != 1:
        raise ConfigurationError(
            f"expected texts of one length, got {min(lengths)} to {max(lengths)} characters: cut "
            "them as LEAF does, to 80"
        )
    codes = [CODES[character] for text in texts for character in text]
    return np.array(codes, dtype=np.int64).reshape(len(texts), -1)


def words(text: str) -> list[str]:
    """Return the words and the punctuation marks of a text in small letters.

    >>> words("Don't go, Anna!")
    ["don't", 'go', ',', 'anna', '!']
    """
    return re.findall(r"[\w']+|[.,!?;]", text.lower())


def vocabulary(texts: Iterable[str], size: int) -> dict[str, int]:
    """Number the most frequent words from 2, the most frequent first; equally frequent ones are sorted.

    >>> vocabulary(["b a c", "c a", "c"], size=4)
    {'c': 2, 'a': 3}

    Args:
        texts: texts to count the words in.
        size: number of words, of which 0 stands for no word and 1 for any other word.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[: size - 2], start=2)}


def tokens(texts: Sequence[str], numbers: dict[str, int], length: int) -> Ints:
    """Return the numbers (n, length) of the first words of each text, with zeros after the last word.

    >>> tokens(["c d", "c c c c"], {"c": 2}, length=3).tolist()
    [[2, 1, 0], [2, 2, 2]]
    """
    result = np.full((len(texts), length), PAD, dtype=np.int64)
    for row, text in zip(result, texts, strict=True):
        found = [numbers.get(word, UNKNOWN) for word in words(text)[:length]]
        row[: len(found)] = found
    return result
