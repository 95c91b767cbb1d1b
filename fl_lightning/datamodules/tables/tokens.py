"""Texts as the numbers of their tokens: cut, ended and, where they are long, cut off or in chunks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fl_lightning.datamodules.files.pretrained import read_pretrained
from fl_lightning.errors import ConfigurationError, check_at_least, check_choice

NOTHING = -100  # stands at a place without a token, and is no token's number; as a label, that of no target in torch

LongTexts = Literal["cut", "chunk"]


class Example(NamedTuple):
    """An example of T tokens: their numbers, and the label of each one, -100 where it is not to be predicted.

    Without labels, all tokens but the first are predicted.
    """

    tokens: list[int]
    labels: list[int] | None = None


Read = tuple[list[list[Example]], Counter[str]]
"""The examples of each row, none for a row that is left out, and counts of what was left out, for warnings."""


@dataclass(frozen=True)
class Tokenizer:
    """How texts become tokens.

    Attributes:
        cut: the tokenizer of transformers.
        name: its name on the hub, or its folder.
        length: number of tokens of an example, at least 1.
        eos: whether the token that ends texts is put at their end.
        long_texts: whether a text of more than ``length`` tokens is cut off, or makes several examples.
    """

    cut: Any
    name: str
    length: int
    eos: bool
    long_texts: LongTexts

    @property
    def end(self) -> int:
        """The number of the token that ends texts.

        Raises:
            ConfigurationError: the tokenizer has no such token.
        """
        number: int | None = self.cut.eos_token_id
        if number is None:
            raise ConfigurationError(
                f"expected a tokenizer with a token that ends texts (eos_token), which eos and responses need, got "
                f"{self.name} without one: set eos_token in its tokenizer_config.json"
            )
        return number

    def numbers(self, texts: Sequence[str], **settings: Any) -> list[list[int]]:
        """Return the numbers of the tokens of texts, not cut off, with those that the tokenizer puts around a text."""
        found: list[list[int]] = []
        if texts:  # a tokenizer takes no empty list; it would warn of what is cut off below
            found = self.cut(list(texts), verbose=False, **settings)["input_ids"]
        return found


def read_tokenizer(name: str, length: int, eos: bool, long_texts: LongTexts) -> Tokenizer:
    """Read a tokenizer, and check the settings that go with it; see :class:`Tokenizer`.

    Raises:
        ConfigurationError: the tokenizer cannot be read, or a setting is outside its range.
    """
    check_at_least(1, length=length)
    check_choice("long_texts", long_texts, "cut", "chunk")
    tokenizer = Tokenizer(read_pretrained("AutoTokenizer", name), name, length, eos, long_texts)
    if eos:
        tokenizer.end  # noqa: B018  # refuses a tokenizer without one
    return tokenizer


def filled(rows: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return numbers (n, length), -100 after the last one of each row."""
    numbers = torch.full((len(rows), length), NOTHING, dtype=torch.int64)
    for own, row in zip(numbers, rows, strict=True):
        own[: len(row)] = torch.tensor(row, dtype=torch.int64)
    return numbers


def of_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> Read:
    """Cut texts, all of whose tokens are predicted, into tokens."""
    found = iter(tokenizer.numbers([text for text in texts if text.strip()]))
    rows: list[list[Example]] = []
    counts: Counter[str] = Counter(texts=len(texts))
    for text in texts:
        numbers = next(found) if text.strip() else []
        rows.append([])
        if not numbers:
            counts["empty"] += 1
            continue
        if tokenizer.eos and numbers[-1] != tokenizer.end:
            numbers = [*numbers, tokenizer.end]
        counts["tokens"] += len(numbers)
        if len(numbers) <= tokenizer.length:
            rows[-1] = [Example(numbers)]
        elif tokenizer.long_texts == "chunk":
            rows[-1] = [Example(chunk) for chunk in _chunks(tokenizer, text)]
        else:
            rows[-1] = [Example(_beginning(tokenizer, text, numbers))]
            counts["cut"] += 1
            counts["lost"] += len(numbers) - len(rows[-1][0].tokens)
    return rows, counts


def shortened(tokenizer: Tokenizer, numbers: list[int], labels: list[int]) -> list[Example]:
    """Return the examples that a row's tokens (T,) and labels (T,) make: those in which something is predicted."""
    size = tokenizer.length
    pieces = [Example(numbers[:size], labels[:size])]
    if tokenizer.long_texts == "chunk":
        pieces = list(map(Example, in_chunks(numbers, size), in_chunks(labels, size)))
    return [piece for piece in pieces if set((piece.labels or [])[1:]) - {NOTHING}]


def in_chunks(numbers: list[int], size: int) -> list[list[int]]:
    """Divide numbers into chunks of ``size``, the last one with the rest.

    >>> in_chunks([1, 2, 3, 4, 5, 6, 7], 3)
    [[1, 2, 3], [4, 5], [6, 7]]

    The last one has at least two: before a token alone stands nothing by which to predict it.
    """
    starts = list(range(0, len(numbers), size))
    if len(starts) > 1 and len(numbers) % size == 1 and size > 2:
        starts[-1] -= 1
    return [numbers[start:stop] for start, stop in pairwise([*starts, len(numbers)])]


def _beginning(tokenizer: Tokenizer, text: str, numbers: list[int]) -> list[int]:
    """Return the first tokens of a long text. An end that ``eos`` puts is the text's: it is cut off with the rest."""
    if tokenizer.eos:
        return numbers[: tokenizer.length]
    beginning: list[int] = tokenizer.cut(text, truncation=True, max_length=tokenizer.length)["input_ids"]
    return beginning


def _chunks(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """Return the tokens of a long text in chunks.

    What the tokenizer puts around a text stands around each chunk; the end of a text stands in the last one alone.
    """
    found = tokenizer.cut(text, return_special_tokens_mask=True, verbose=False)
    numbers, is_put = found["input_ids"], found["special_tokens_mask"]
    before = sum(takewhile(bool, is_put))
    behind = sum(takewhile(bool, reversed(is_put)))
    stop = len(numbers) - behind
    head, body, tail = numbers[:before], numbers[before:stop], numbers[stop:]
    end = tokenizer.cut.eos_token_id
    if end in tail or (tokenizer.eos and body[-1] != end):
        body = [*body, end]
        tail = [number for number in tail if number != end]
    size = tokenizer.length - len(head) - len(tail)
    if size < 1:
        raise ConfigurationError(
            f"expected length to be above the {len(head) + len(tail)} tokens that the tokenizer puts around a text, "
            f"got {tokenizer.length}: raise length"
        )
    return [[*head, *chunk, *tail] for chunk in in_chunks(body, size)]
