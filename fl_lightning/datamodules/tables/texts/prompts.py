"""Prompts with their responses, and chats, as tokens and labels: the responses alone are predicted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fl_lightning.datamodules.files.pretrained import one_line
from fl_lightning.datamodules.tables.tokens import NOTHING, Example, Read, Tokenizer, shortened
from fl_lightning.errors import ConfigurationError


def of_prompts(tokenizer: Tokenizer, prompts: Sequence[str], responses: Sequence[str]) -> Read:
    """Cut prompts and their responses into tokens, and label those of the responses and of their ends.

    A prompt and its response are cut as one text. The labels begin where its tokens are no longer those of the prompt
    alone, as TRL's ``SFTTrainer`` counts them (1.16): a token that holds the last letters of a prompt and the first
    ones of a response is the response's.
    """
    used = [row for row, response in enumerate(responses) if response.strip()]
    found = tokenizer.numbers([prompts[row] + responses[row] for row in used])
    given = tokenizer.numbers([prompts[row] for row in used])
    rows: list[list[Example]] = [[] for _ in responses]
    counts: Counter[str] = Counter(texts=len(responses), empty=len(responses) - len(used))
    for row, numbers, prompt in zip(used, found, given, strict=True):
        if prompt[-1:] == [tokenizer.end] and numbers[: len(prompt)] != prompt:
            prompt = prompt[:-1]  # the tokenizer put an end after the prompt, as after any text
        start = _count_common(prompt, numbers)
        counts["merged"] += start < len(prompt)
        if numbers[-1:] != [tokenizer.end]:
            numbers = [*numbers, tokenizer.end]
        labels = [NOTHING] * start + numbers[start:]
        rows[row] = _counted(tokenizer, numbers, labels, counts)
    return rows, counts


def of_chats(tokenizer: Tokenizer, chats: Sequence[Any], column: str, split: str) -> Read:
    """Cut chats into tokens by the tokenizer's template, and label those of the assistant's turns.

    A turn begins after the template's generation prompt. The end of a text stands after the last turn, unless the
    template has put one into it.

    Args:
        tokenizer: the tokenizer, with a chat template.
        chats: for each row, the messages: dicts with ``role`` and ``content``.
        column: name of the column of chats, for messages.
        split: name of the split, for messages.

    Raises:
        ConfigurationError: the tokenizer has no template; the template refuses a chat, or changes earlier turns where
            later ones follow; a row has no messages of this form.
    """
    if not tokenizer.cut.chat_template:
        raise ConfigurationError(
            f"expected a tokenizer with a chat template for the column {column}, got {tokenizer.name} without one: "
            "take the tokenizer of a model that is made for chats, or columns of prompts and responses"
        )
    rendered = []
    for row, messages in enumerate(chats):
        where = f"row {row} of the column {column} of the {split} set"
        rendered.append(_render(tokenizer, _checked(messages or [], where), where))
    texts = [text for chat in rendered if chat.turns for text in (chat.whole, *chat.borders)]
    found = iter(tokenizer.numbers(texts, add_special_tokens=False))  # the template has put them
    rows: list[list[Example]] = []
    counts: Counter[str] = Counter(texts=len(chats))
    for chat in rendered:
        rows.append([])
        if not chat.turns:
            counts["empty"] += 1
            continue
        numbers = next(found)
        labels = [NOTHING] * len(numbers)
        is_merged = False
        for _ in chat.turns:
            prompt, turn = next(found), next(found)
            start, stop = _count_common(prompt, numbers), _count_common(turn, numbers)
            is_merged |= start < len(prompt)
            labels[start:stop] = numbers[start:stop]
        counts["merged"] += is_merged
        if chat.ends and tokenizer.end not in labels[start:stop]:
            numbers, labels = [*numbers, tokenizer.end], [*labels, tokenizer.end]
        rows[-1] = _counted(tokenizer, numbers, labels, counts)
    return rows, counts


class _Chat(NamedTuple):
    """A chat as the template writes it: the whole text, and for each turn what stands before it, and up to its end."""

    whole: str
    turns: list[tuple[str, str]]
    ends: bool  # whether it ends in a turn of the assistant

    @property
    def borders(self) -> list[str]:
        return [text for turn in self.turns for text in turn]


def _render(tokenizer: Tokenizer, messages: list[Mapping[str, Any]], where: str) -> _Chat:
    """Write a chat; without turns if the assistant says nothing."""
    if not any(_is_answer(message) for message in messages):
        return _Chat("", [], ends=False)

    def write(count: int, **settings: Any) -> str:
        try:
            text: str = tokenizer.cut.apply_chat_template(messages[:count], tokenize=False, **settings)
        except Exception as error:  # of many classes, of jinja2 and of the template
            raise ConfigurationError(
                f"the chat template of {tokenizer.name} refuses {where}: {one_line(error)}: leave the row out, or "
                "change the template"
            ) from None
        return text

    whole = write(len(messages))
    turns = []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = write(place, add_generation_prompt=True)
        turn = write(place + 1)
        if not whole.startswith(turn):
            turn = turn.removesuffix(tokenizer.cut.eos_token or "")  # a template may put one after the last turn alone
        if not (turn.startswith(before) and whole.startswith(turn)):
            raise ConfigurationError(
                f"expected a chat template that leaves earlier turns as they are where later ones follow, got that of "
                f"{tokenizer.name}, which changes message {place} of {where}: change the template, or divide chats "
                "into prompts and responses"
            )
        turns.append((before, turn))
    return _Chat(whole, turns, ends=messages[-1]["role"] == "assistant")


def _checked(messages: Any, where: str) -> list[Mapping[str, Any]]:
    """Return the messages of a row, without entries that other rows have; refuse other values."""
    checked: list[Mapping[str, Any]] = []
    for message in messages if isinstance(messages, list) else [messages]:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            got = f"entries {', '.join(message)}" if isinstance(message, Mapping) else repr(message)[:60]
            raise ConfigurationError(
                f"expected messages with role and content in {where}, got {got}: rename the entries, or leave the row "
                "out"
            )
        given = {name: value for name, value in message.items() if value is not None}
        checked.append({"content": None, **given})
    return checked


def _is_answer(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    says = content.strip() if isinstance(content, str) else content
    return message.get("role") == "assistant" and bool(says or message.get("tool_calls"))


def _count_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many numbers are the same at the beginning of both."""
    for place, (number, others) in enumerate(zip(one, other, strict=False)):
        if number != others:
            return place
    return min(len(one), len(other))


def _counted(tokenizer: Tokenizer, numbers: list[int], labels: list[int], counts: Counter[str]) -> list[Example]:
    """Return the examples of a row, and count what is cut off."""
    examples = shortened(tokenizer, numbers, labels)
    counts["tokens"] += len(numbers)
    if not examples:
        counts["beyond"] += 1
    elif tokenizer.long_texts == "cut" and len(numbers) > tokenizer.length:
        counts["cut"] += 1
        counts["lost"] += len(numbers) - tokenizer.length
    return examples
