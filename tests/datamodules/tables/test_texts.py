"""HuggingFace with prompts and responses, chats, long and empty texts, files of texts, and columns of tokens.

The words are the = 0, cat = 1, sees = 2, [PAD] = 3, [END] = 4; an unknown word is 0.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.words import tokenizer_folder

from fl_lightning import ConfigurationError
from fl_lightning.datamodules import HuggingFace
from fl_lightning.datamodules.tables.tokens import in_chunks

datasets: Any = pytest.importorskip("datasets")
transformers: Any = pytest.importorskip("transformers")

NO = -100
TURNS = (
    "{% for m in messages %}{% if m.role == 'user' %}the {{ m.content }} "
    "{% else %}sees {{ m.content }} END{% endif %}{% endfor %}{% if add_generation_prompt %}sees {% endif %}"
)
EVERY, NEVER = TURNS.replace("END", "[END] "), TURNS.replace("END", "")
LAST = NEVER + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"  # as that of Phi-3


def words(folder: Path, template: str | None = None, ends: bool = False, **tokens: str) -> str:
    """The tokenizer whose end is [END], which fills up, too, with a chat template."""
    name = tokenizer_folder(folder, ends, **{"eos_token": "[END]", "pad_token": "[END]"} | tokens)
    if template is not None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(name)
    return name


def data_of(table: dict[str, Any], /, **settings: Any) -> HuggingFace:
    rows = datasets.Dataset.from_dict(table)
    return HuggingFace(rows, **{"num_clients": 1} | settings)


def tensors(data: HuggingFace) -> list[Any]:
    """All training examples, in the order of their rows."""
    data.setup("fit")
    examples: Any = data.client_dataset(0)
    rows = torch.as_tensor(examples.indices).sort().values
    return [tensor[rows].tolist() for tensor in examples.dataset.tensors]


def turns(*texts: str) -> list[dict[str, str]]:
    """Messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


@pytest.mark.parametrize("ends", [False, True])
def test_responses_and_their_ends_are_labels(tmp_path: Path, ends: bool) -> None:
    """The end is put once, whether the tokenizer or the text has put it before; padding by the same token is none."""
    columns = {"b": ["sees ", "the cat" if ends else "the cat [END]"], "a": ["the cat ", "sees "], "user": ["x", "y"]}
    data = data_of(columns, columns=["a", "b"], tokenizer=words(tmp_path, ends=ends), length=5)
    assert tensors(data) == [
        [[0, 1, 2, 4, NO], [2, 0, 1, 4, NO]],
        [[NO, NO, 2, 4, NO], [NO, 0, 1, 4, NO]],
    ]
    swapped = data_of(columns, columns=["b", "a"], tokenizer=words(tmp_path, ends=ends), length=5)
    assert tensors(swapped)[1][0] == [NO, 0, 1, 4, NO]


@pytest.mark.parametrize("ends", [False, True])
def test_a_token_over_the_border_is_the_responses(tmp_path: Path, ends: bool) -> None:
    """The letters "ca" and "t" make one word; one word of the prompt stays. A blank divides."""
    columns = {"a": ["the ca", "the "], "b": ["t sees", "cat"]}
    with pytest.warns(match="^1 of 2 prompts end in letters that share a token .*: end prompts in a newline"):
        data = data_of(columns, columns=["a", "b"], tokenizer=words(tmp_path, ends=ends), length=4)
    assert tensors(data) == [[[0, 1, 2, 4], [0, 1, 4, NO]], [[NO, 1, 2, 4], [NO, 1, 4, NO]]]


@pytest.mark.parametrize(
    ("template", "tokens", "labels"),
    [
        (EVERY, [0, 1, 2, 1, 4, 0, 0, 2, 0, 4, NO], [NO, NO, NO, 1, 4, NO, NO, NO, 0, 4, NO]),
        (NEVER, [0, 1, 2, 1, 0, 0, 2, 0, 4, NO, NO], [NO, NO, NO, 1, NO, NO, NO, 0, 4, NO, NO]),
        (LAST, [0, 1, 2, 1, 0, 0, 2, 0, 4, NO, NO], [NO, NO, NO, 1, NO, NO, NO, 0, 4, NO, NO]),
    ],
)
def test_all_turns_of_the_assistant_are_labels(
    tmp_path: Path, template: str, tokens: list[int], labels: list[int]
) -> None:
    """By hand: the cat | sees | cat [END] | the the | sees | the [END]."""
    columns = {"chat": [turns("cat", "cat", "the", "the")], "user": ["x"]}
    data = data_of(columns, client="user", num_clients=None, tokenizer=words(tmp_path, template, ends=True), length=11)
    assert tensors(data) == [[tokens], [labels]]


def test_a_chat_that_ends_with_the_user(tmp_path: Path) -> None:
    """Nothing is put after it; a chat in which the assistant says nothing is no example."""
    chats = [turns("cat", "sees", "cat"), turns("cat"), turns("cat", " "), [], None]
    with pytest.warns(match="^4 of 5 rows have no response: they are no examples, and are left out$"):
        data = data_of({"chat": chats}, columns=["chat"], tokenizer=words(tmp_path, NEVER), length=6)
    assert tensors(data) == [[[0, 1, 2, 2, 0, 1]], [[NO, NO, NO, 2, NO, NO]]]


BEFORE = "{% for m in messages %}{% if loop.last %}the {% endif %}{{ m.content }} {% endfor %}"
NAMED = [{"from": "user", "value": "cat"}]


@pytest.mark.parametrize(
    ("template", "chat", "message"),
    [
        (None, turns("cat", "sees"), "expected a tokenizer with a chat template for the column chat, got .* without"),
        (
            BEFORE,
            turns("cat", "sees", "cat", "the"),
            "expected a chat template that leaves earlier .*message 1 of",
        ),
        (
            "{{ raise_exception('no\nsystem') }}",
            turns("cat", "sees"),
            "the chat template of .* refuses row 0 .*no system",
        ),
        (EVERY, NAMED, "expected messages with role and content in row 0 of the column chat of the train set, got"),
    ],
)
def test_refuses_other_chats(tmp_path: Path, template: str | None, chat: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        data_of({"chat": [chat]}, columns=["chat"], tokenizer=words(tmp_path, template))
    assert "\n" not in str(caught.value)


TWO = {"a": ["cat"], "b": ["sees"]}


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        (
            {"chat": [turns("cat", "the")], "n": [1]},
            {"columns": ["chat", "n"]},
            "column of chats alone, got chat, n",
        ),
        ({"text": ["", None, " "]}, {}, "expected texts in the column text of the train set, got none: all 3 rows"),
        ({"text": ["cat", ""]}, {"partition": [[0], [1]], "num_clients": None}, "partition names rows by number"),
        (
            {"text": ["cat"]},
            {"tokenizer": None, "eos": True},
            "expected tokenizer for eos and long_texts, got none: set",
        ),
        ({"text": ["cat"]}, {"tokenizer": None, "long_texts": "chunk"}, "expected tokenizer for eos and long_texts"),
        ({"text": ["cat"]}, {"long_texts": "pack"}, "long_texts must be 'cut' or 'chunk', got 'pack'"),
        (TWO, {"columns": ["a", "b"], "length": 1}, "column a of the train set, got none: all 1 rows have no text, or"),
    ],
)
def test_refuses_rows_and_settings(
    tmp_path: Path, columns: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        data_of(columns, **{"tokenizer": words(tmp_path, EVERY)} | settings)
    assert "\n" not in str(caught.value)


def test_refuses_a_tokenizer_without_an_end(tmp_path: Path) -> None:
    name = tokenizer_folder(tmp_path)
    for columns, settings in (({"text": ["cat"]}, {"eos": True}), (TWO, {"columns": ["a", "b"]})):
        with pytest.raises(
            ConfigurationError, match=r"expected a tokenizer with a token that ends texts \(eos_token\)"
        ):
            data_of(columns, tokenizer=name, **settings)
    assert tensors(data_of({"text": ["cat"]}, tokenizer=name, length=2)) == [[[1, NO]]]


@pytest.mark.parametrize("ends", [False, True])
def test_an_end_of_texts(tmp_path: Path, ends: bool) -> None:
    """Of the third text, of four tokens with its end, the end is cut off with the last one of its words."""
    texts = ["the", "cat" if ends else "cat [END]", "the cat sees cat"]
    data = data_of({"text": texts}, tokenizer=words(tmp_path, ends=ends), length=3, eos=True)
    assert tensors(data) == [[[0, 4, NO], [1, 4, NO], [0, 1, 2]]]


def test_what_is_cut_off_is_told_once(tmp_path: Path) -> None:
    """7 and 4 words: 4 and 1 of the 13 tokens are lost. The set that validates also tests, and is counted once."""
    train = datasets.Dataset.from_dict({"text": ["the the the cat cat cat cat", "cat cat"]})
    test = datasets.Dataset.from_dict({"text": ["cat cat cat cat"]})
    with pytest.warns(match="cut off") as told:
        HuggingFace(train, test, num_clients=1, tokenizer=words(tmp_path), length=3)
    assert [str(warning.message) for warning in told if "tokens" in str(warning.message)] == [
        "2 of 3 texts have more than length=3 tokens: 5 of 13 tokens are cut off; raise length, or set long_texts to "
        "chunk"
    ]


@pytest.mark.parametrize(
    ("ends", "eos", "chunks"),
    [
        (False, False, [[0, 1, 2], [0, 1, NO]]),
        (False, True, [[0, 1, 2], [0, 1, 4]]),
        (True, False, [[0, 1, 2], [0, 1, 4]]),  # the end is the text's, not a chunk's
    ],
)
def test_long_texts_in_chunks(tmp_path: Path, ends: bool, eos: bool, chunks: list[list[int]]) -> None:
    """Each chunk is an example of its text's client, domain and class; nothing is lost, and nothing told."""
    columns = {"text": ["cat", "the cat sees the cat"], "user": ["x", "y"], "place": ["p", "q"], "label": [0, 1]}
    data = data_of(
        columns,
        client="user",
        domain="place",
        num_clients=None,
        tokenizer=words(tmp_path, ends=ends),
        length=3,
        eos=eos,
        long_texts="chunk",
    )
    data.setup("fit")
    second: Any = data.client_dataset(1)
    assert [tensor[torch.as_tensor(second.indices)].tolist() for tensor in second.dataset.tensors] == [chunks, [1, 1]]
    assert data.domains(True) == ["p", "q", "q"]
    counts = data.class_counts()
    assert counts is not None
    assert counts.tolist() == [[1, 0], [0, 2]]


def test_what_a_tokenizer_puts_before_a_text_stands_before_each_chunk(tmp_path: Path) -> None:
    import tokenizers

    name = words(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    put = tokenizers.processors.TemplateProcessing(single="[PAD] $A [END]", special_tokens=[("[PAD]", 3), ("[END]", 4)])
    tokenizer.backend_tokenizer.post_processor = put
    tokenizer.save_pretrained(name)
    settings: dict[str, Any] = {"tokenizer": name, "long_texts": "chunk"}
    assert tensors(data_of({"text": ["the cat sees"]}, length=3, **settings)) == [[[3, 0, 1], [3, 2, 4]]]
    with pytest.raises(ConfigurationError, match="expected length to be above the 1 tokens that the tokenizer puts"):
        data_of({"text": ["the cat sees"]}, length=1, **settings)


def test_chunks_end_in_two_tokens() -> None:
    """Nothing would predict the last one alone, unless chunks of two would have to become smaller."""
    assert in_chunks([1, 2, 3, 4], 3) == [[1, 2], [3, 4]]
    assert in_chunks([1, 2, 3, 4, 5], 3) == [[1, 2, 3], [4, 5]]
    assert in_chunks([1, 2, 3], 2) == [[1, 2], [3]]
    assert in_chunks([1], 3) == [[1]]


def test_responses_that_do_not_fit(tmp_path: Path) -> None:
    """By hand, of 3 places: sees | cat [END] fits, the cat | sees loses its end, the third loses all."""
    columns = {"a": ["sees ", "the cat ", "the cat sees "], "b": ["cat", "sees", "cat"]}
    settings: dict[str, Any] = {"columns": ["a", "b"], "tokenizer": words(tmp_path), "length": 3}
    with pytest.warns(match="^1 of 3 rows have no response within length=3, .* left out; raise length, or"):
        data = data_of(columns, **settings)
    assert tensors(data) == [[[2, 1, 4], [0, 1, 2]], [[NO, 1, 4], [NO, NO, 2]]]
    whole = data_of(columns, **settings, long_texts="chunk")
    # the cat | sees [END] in two chunks of two; the cat sees | cat [END], of which the first has no label
    assert tensors(whole) == [[[2, 1, 4], [2, 4, NO], [1, 4, NO]], [[NO, 1, 4], [2, 4, NO], [1, 4, NO]]]


@pytest.mark.parametrize("missing", ["", " ", None])
def test_empty_texts_are_no_examples(tmp_path: Path, missing: str | None) -> None:
    """Their rows leave the columns of clients and classes, too. A prompt may be empty."""
    columns = {"text": ["cat", missing, "the"], "user": ["y", "x", "x"], "label": [0, 1, 1]}
    with pytest.warns(match="^1 of 3 rows have no text: they are no examples, and are left out$"):
        data = data_of(columns, client="user", num_clients=None, tokenizer=words(tmp_path), length=1)
    data.setup("fit")
    (own,) = data.client_batches(0, torch.Generator())
    assert [part.tolist() for part in own] == [[[0]], [1]]
    pairs = {"a": [missing, "the "], "b": ["cat", missing]}
    with pytest.warns(match="^1 of 2 rows have no response: they are no examples, and are left out$"):
        data = data_of(pairs, columns=["a", "b"], tokenizer=words(tmp_path), length=2)
    assert tensors(data) == [[[1, 4]], [[1, 4]]]


# Files


def write(path: Path, texts: list[str]) -> str:
    """Write texts, with a column of users where the kind of file has columns."""
    rows = [{"text": text, "user": f"u{place}"} for place, text in enumerate(texts)]
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        path.write_text("text,user\n" + "".join(f"{row['text']},{row['user']}\n" for row in rows))
    elif path.suffix == ".txt":
        path.write_text("\n".join(texts))
    else:
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    return str(path)


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(*address: Any, **options: Any) -> Any:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


KINDS = [".jsonl", ".json", ".csv", ".txt", ".parquet"]


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_texts(tmp_path: Path, kind: str) -> None:
    """One file, and a folder with a file for each split."""
    name = words(tmp_path / "words")
    (tmp_path / "own").mkdir()
    one = write(tmp_path / "own" / f"train{kind}", ["the cat", "sees"])
    client = {"client": "user", "num_clients": None} if kind != ".txt" else {}
    data = HuggingFace(one, **{"num_clients": 2} | client, tokenizer=name, length=2)
    data.setup("fit")
    assert data.num_clients == 2
    own = [batch[0].tolist() for client in range(2) for batch in data.client_batches(client, torch.Generator())]
    assert sorted(own) == [[[0, 1]], [[2, NO]]]
    tests = write(tmp_path / "own" / f"test{kind}", ["cat"])
    pair = HuggingFace(one, tests, num_clients=1, tokenizer=name, length=2, columns=["text"])
    pair.setup("fit")
    assert [batch[0].tolist() for batch in pair.test_dataloader()] == [[[1, NO]]]
    with pytest.raises(
        ConfigurationError, match=r"expected a file of test examples, got .* with the splits .*: name a"
    ):
        HuggingFace(one, str(tmp_path / "own"), num_clients=1)
    whole = HuggingFace(str(tmp_path / "own"), num_clients=1, tokenizer=name, length=2, columns=["text"])
    assert tensors(whole) == [[[0, 1], [2, NO]]]
    assert [batch[0].tolist() for batch in whole.test_dataloader()] == [[[1, NO]]]


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_refuses_damaged_files(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"own{kind}").write_text('{"text": ')
    message = rf"expected a folder .* or files \(parquet, jsonl, json, csv or txt\), in .*own{kind}, got"
    with pytest.raises(ConfigurationError, match=message) as caught:
        HuggingFace(str(tmp_path / f"own{kind}"), num_clients=1)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_no_network")
def test_chats_of_a_file_whose_rows_differ(tmp_path: Path) -> None:
    """In entries that one message has and another lacks; a row that is no list of messages is refused."""
    more = [{**turns("cat")[0], "time": 1}, {"role": "assistant", "content": "sees", "tags": ["a"]}]
    path = tmp_path / "chats.jsonl"
    settings: dict[str, Any] = {"num_clients": 1, "columns": ["chat"], "tokenizer": words(tmp_path / "words", EVERY)}
    path.write_text("\n".join(json.dumps({"chat": chat}) for chat in (turns("cat", "the"), more)))
    ids, labels = [[0, 1, 2, 0, 4], [0, 1, 2, 2, 4]], [[NO, NO, NO, 0, 4], [NO, NO, NO, 2, 4]]
    assert tensors(HuggingFace(str(path), **settings, length=5)) == [ids, labels]
    path.write_text("\n".join(json.dumps({"chat": chat}) for chat in (more, "cat")))
    with pytest.raises(ConfigurationError, match=r"expected messages with role and content in row 1 .*, got 'cat'"):
        HuggingFace(str(path), **settings)


# Columns of tokens

IDS, MASKS = {"input_ids": [[3, 1, 2], [1, 2]]}, {"attention_mask": [[0, 1, 1], [1, 1]]}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (IDS | MASKS, [[[NO, 1, 2], [1, 2, NO]]]),
        (IDS | {"labels": [[NO, NO, 2], [1, 2]]}, [[[3, 1, 2], [1, 2, NO]], [[NO, NO, 2], [1, 2, NO]]]),
        (IDS | MASKS | {"labels": [[3, NO, 2], [1, 2]]}, [[[NO, 1, 2], [1, 2, NO]], [[NO, NO, 2], [1, 2, NO]]]),
        (IDS | MASKS | {"labels": [1, 0]}, [[[NO, 1, 2], [1, 2, NO]], [1, 0]]),
    ],
)
def test_columns_of_tokens_go_by_name(columns: dict[str, Any], expected: list[Any]) -> None:
    """A mask is a mask, whatever the order; labels are those of places, or classes."""
    for names in ([*columns], [*reversed(columns)]):
        assert tensors(data_of(columns, columns=names)) == expected


def test_other_columns_beside_tokens_stay_as_they_are() -> None:
    """A collate_fn, a format of the data set and further columns say themselves what a batch is."""
    columns = {"input_ids": [[3, 1], [1, 2]], "attention_mask": [[0, 1], [1, 1]], "score": [0.5, 1.0]}
    for names, settings in ((["input_ids", "attention_mask", "score"], {}), (["input_ids", "attention_mask"], None)):
        rows = datasets.Dataset.from_dict(columns)
        if settings is None:
            rows, settings = rows.with_format("torch"), {}
        data = HuggingFace(rows, num_clients=1, columns=names, **settings)
        assert [entry.tolist() for entry in data.client_dataset(0)[0]][:2] == [[3, 1], [0, 1]]
    own = data_of(columns, columns=["input_ids", "attention_mask"], collate_fn=lambda examples: len(examples[0]))
    assert list(own.client_batches(0, torch.Generator())) == [2]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            IDS | {"attention_mask": [[0, 1, 2], [1, 1]]},
            "expected 0 and 1 in the column attention_mask of the train set",
        ),
        (
            IDS | {"attention_mask": [[1, 1, 1], [1]]},
            "expected a list of 2 whole numbers in row 1 of the column attent",
        ),
        (
            IDS | {"labels": [[1, 2, NO], [2, NO]]},
            "expected the column labels of the train set to hold the token of each",
        ),
        (
            {"input_ids": [[0.5]], "attention_mask": [[1]]},
            "expected a list of whole numbers in row 0 of the column inpu",
        ),
        (
            {"input_ids": [None], "attention_mask": [[1]]},
            "expected a list of whole numbers in row 0 .*, got None: corr",
        ),
    ],
)
def test_refuses_other_columns_of_tokens(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        data_of(columns, columns=[*columns])
    assert "\n" not in str(caught.value)


def test_corruption_finds_the_class_beside_tokens() -> None:
    """Whatever its place among the columns' names."""
    from fl_lightning.datamodules import LabelSwap

    features = datasets.Features(
        {
            "labels": datasets.ClassLabel(num_classes=2),
            "attention_mask": datasets.Sequence(datasets.Value("int64")),
            "input_ids": datasets.Sequence(datasets.Value("int64")),
        }
    )
    rows = datasets.Dataset.from_dict({"labels": [0, 1], **IDS, **MASKS}, features=features)
    swap = LabelSwap(1.0, pair=(0, 1))
    data = HuggingFace(rows, num_clients=1, columns=[*features], label="labels", corruption=swap)
    assert tensors(data)[1] == [1, 0]
