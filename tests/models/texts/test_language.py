"""Language models: losses beside those of transformers, what trains, a round beside a plain loop, a stop, refusals."""

import copy
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.resumed import assert_same
from lib.toy import trainer
from lib.words import BERT, LLAMA, tokenizer_folder
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FedNTD, FocalLoss
from fl_lightning.datamodules import HuggingFace, MarkovTexts
from fl_lightning.models import CausalLM, ImageClassifier, TextTransformer
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("peft")

SIZE = {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 12, "vocab_size": 9}
TINY = {**SIZE, "bos_token_id": 0, "eos_token_id": 0}
STILL = {**TINY, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}  # no dropout


def model(settings: dict[str, Any] = STILL, **arguments: Any) -> CausalLM:
    torch.manual_seed(0)
    return CausalLM("gpt2", settings, weights=False, **arguments)


def texts(count: int = 6, length: int = 10) -> Tensor:
    """Texts whose second one is short."""
    tokens = torch.randint(1, 9, (count, length), generator=torch.Generator().manual_seed(1))
    tokens[1, 4:] = -100
    return tokens


def trained(module: Any) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def size(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def test_losses_are_those_of_transformers() -> None:
    """Its labels are the tokens, -100 at padding; it moves them by one place. Of 54 moved ones, 6 are padding."""
    module, labels = model(), texts()
    filled = labels.clamp(min=0)
    theirs = module.network(input_ids=filled, labels=labels).loss
    for batch in (labels, [labels], (filled, labels), [labels, torch.arange(6)]):
        torch.testing.assert_close(module.training_step(batch, 0)["loss"], theirs)
    assert (module.predict_next(labels)[1] != -100).sum() == 48
    assert module.training_step(torch.full((2, 5), -100), 0)["loss"] == 0


def test_labels_say_which_tokens_are_targets() -> None:
    """Of an answer alone, here the last two tokens; padding is none, whatever the labels say."""
    module = model()
    tokens, labels = torch.tensor([[3, 4, 5, 6, -100]]), torch.tensor([[-100, -100, 5, 6, 7]])
    theirs = module.network(input_ids=tokens[:, :4], labels=labels[:, :4]).loss
    torch.testing.assert_close(module.training_step([tokens, labels], 0)["loss"], theirs)


FAMILIES: list[tuple[str, dict[str, Any]]] = [("gpt2", STILL), ("llama", LLAMA), ("qwen2", LLAMA)]


@pytest.mark.parametrize(("kind", "settings"), FAMILIES)
@pytest.mark.parametrize("left", [False, True])
def test_dicts_with_a_mask(kind: str, settings: dict[str, Any], left: bool) -> None:
    """As transformers' collators give them: a mask is a mask, before a text or after it, whatever stands there."""
    torch.manual_seed(0)
    module = CausalLM(kind, {**settings, "eos_token_id": 7}, weights=False)
    tokens, mask = torch.tensor([[3, 4, 5, 7, 7, 7]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    labels = torch.tensor([[-100, -100, 5, 7, -100, -100]])
    short, theirs = tokens[:, :4], {}
    for name, own in (("whole", short), ("labels", labels[:, :4])):
        theirs[name] = module.network(input_ids=short, labels=own).loss
    if left:
        tokens, mask, labels = (values.roll(2, 1) for values in (tokens, mask, labels))
    batch = {"input_ids": tokens, "attention_mask": mask, "score": torch.tensor([0.5])}
    for given, name in ((batch, "whole"), (batch | {"labels": labels}, "labels")):
        for held in (given, transformers.BatchEncoding(given)):
            for training in (True, False):
                module.train(training)
                torch.testing.assert_close(module.training_step(held, 0)["loss"], theirs[name])
    with torch.no_grad():
        torch.testing.assert_close(module.predict_step(batch, 0), module(short)[:, -1].softmax(1))


def test_dicts_train_and_validate(tmp_path: Path) -> None:
    """A round, and the perplexity of the start by transformers' own loss."""
    datasets = pytest.importorskip("datasets")
    columns = {"input_ids": [[3, 4, 5], [4, 5, 6]], "attention_mask": [[1, 1, 1], [1, 1, 0]]}
    rows = datasets.Dataset.from_dict(columns | {"labels": [[-100, 4, 5], [4, 5, -100]]})
    losses = []
    for names in (None, ["labels", "attention_mask", "input_ids"]):
        module = model()
        tokens, labels = torch.tensor(columns["input_ids"]), torch.tensor([[-100, 4, 5], [4, 5, -100]])
        data = HuggingFace(rows, rows, num_clients=1, columns=names)
        (shown,) = trainer().validate(FederatedOrchestrator(module), datamodule=data, verbose=False)
        theirs = module.network(input_ids=tokens, labels=labels).loss.item()
        assert shown["val/loss"] == pytest.approx(theirs, rel=1e-5)
        run = trainer(rounds=2)
        run.fit(FederatedOrchestrator(module), datamodule=data)
        losses.append(run.callback_metrics["val/loss"].item())
    assert losses[0] == losses[1] < theirs


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            [[[3, 4, 5]], [[1, 1, 0]]],
            "gpt2 expects labels that are the tokens of their places, or -100, got 1 for token 3",
        ),
        (
            [[[3, 4, 5]], [[4, 5, -100]]],
            "got 4 for token 3: give an attention mask in a dict of input_ids and attention",
        ),
        ([[[3, 4, 5]], [[3, 4]]], r"gpt2 expects a label for each token, got \(1, 2\) for \(1, 3\)"),
        (
            {"input_ids": [[3, 4]], "attention_mask": [[1]]},
            "gpt2 expects an attention_mask for each of the input_ids, got",
        ),
        ({"ids": [[3, 4]], "text": [[1]]}, "expected input_ids in the batches of a language model, got ids, text: set"),
    ],
)
def test_refuses_batches_that_cannot_be_known(batch: Any, message: str) -> None:
    """A mask in the place of labels was learned in silence, and so were labels that are moved."""
    if isinstance(batch, dict):
        batch = {name: torch.tensor(values) for name, values in batch.items()}
    else:
        batch = [torch.tensor(values) for values in batch]
    for training in (True, False):
        with pytest.raises(ConfigurationError, match=message) as caught:
            model().train(training).training_step(batch, 0)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "settings"), FAMILIES)
def test_texts_give_the_loss_of_transformers_collator(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    """DataCollatorForLanguageModeling fills up texts that end in [END], and masks what it filled up."""
    datasets = pytest.importorskip("datasets")
    name = tokenizer_folder(tmp_path, pad_token="[PAD]", eos_token="[END]")
    lines = ["the cat sees the cat", "cat", "sees the cat"]
    data = HuggingFace(datasets.Dataset.from_dict({"text": lines}), num_clients=1, tokenizer=name, length=8, eos=True)
    data.setup("fit")
    (tokens,) = next(iter(torch.utils.data.DataLoader(data.client_dataset(0), batch_size=3)))
    cut = transformers.AutoTokenizer.from_pretrained(name)
    collate = transformers.DataCollatorForLanguageModeling(cut, mlm=False)
    theirs = collate([cut(f"{line} [END]") for line in lines])
    width = theirs["labels"].shape[1]
    module = CausalLM(kind, settings, weights=False).eval()
    ours = module.training_step(tokens, 0)
    torch.testing.assert_close(ours["loss"], module.network(**theirs).loss, rtol=0, atol=1e-6)
    assert sorted(tokens[:, :width].tolist()) == sorted(theirs["labels"].tolist())
    assert (tokens[:, width:] == -100).all()


@pytest.mark.parametrize(("kind", "settings"), FAMILIES)
def test_the_loss_is_on_responses_alone(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    """By hand: the cat | sees [END], and sees | the cat [END]; 2 and 3 tokens are predicted, of 4 each."""
    datasets = pytest.importorskip("datasets")
    name = tokenizer_folder(tmp_path, pad_token="[END]", eos_token="[END]")
    rows = datasets.Dataset.from_dict({"prompt": ["the cat ", "sees "], "response": ["sees", "the cat"]})
    data = HuggingFace(rows, rows, num_clients=1, columns=["prompt", "response"], tokenizer=name, length=6)
    torch.manual_seed(0)
    module = CausalLM(kind, {**settings, "eos_token_id": 4}, weights=False)
    tokens = torch.tensor([[0, 1, 2, 4], [2, 0, 1, 4]])
    labels = torch.tensor([[-100, -100, 2, 4], [-100, 0, 1, 4]])
    with torch.no_grad():
        theirs = module.network(input_ids=tokens, labels=labels).loss.item()
    (shown,) = trainer().validate(FederatedOrchestrator(module), datamodule=data, verbose=False)
    assert shown["val/loss"] == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("settings", [STILL, {**STILL, "pad_token_id": 0}, {**STILL, "eos_token_id": 5}])
@pytest.mark.parametrize("longer", [[[3, 4, 5, -100, -100]], [[-100, -100, 3, 4, 5]]])
def test_padding_changes_no_token(
    settings: dict[str, Any], longer: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    """Before the text or after it, though no mask is given, of which transformers would warn."""
    module = model(settings).eval()
    short, long = torch.tensor([[3, 4, 5]]), torch.tensor(longer)
    with torch.no_grad():
        logits, labels = module.predict_next(long)
        torch.testing.assert_close(logits[:, :2], module(short)[:, :2])
        torch.testing.assert_close(module(long)[:, :3], module(short))
        torch.testing.assert_close(module.predict_step(long, 0), module(short)[:, -1].softmax(1))
    assert labels.tolist() == [[4, 5, -100, -100]]
    assert not caplog.messages


def test_a_number_fills_up_texts() -> None:
    """Where it is given, before or after them; the same number within a text is a token."""
    tokens = torch.tensor([[7, 7, 3, 7, 5], [3, 7, 5, 7, 7]])
    marked = torch.tensor([[-100, -100, 3, 7, 5], [3, 7, 5, -100, -100]])
    losses = [model(pad=pad).training_step(given, 0)["loss"] for pad, given in ((7, tokens), (None, marked))]
    assert losses[0] == losses[1]
    torch.manual_seed(0)
    network = TextTransformer("gpt2", 3, STILL, weights=False, pad=7).eval()
    one, other = network(tokens)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one, network(torch.tensor([[3, 7, 5]]))[0])


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt2", {**STILL, "eos_token_id": 7}),
        ("llama", {**LLAMA, "eos_token_id": [2, 7]}),
        ("llama", {**LLAMA, "pad_token_id": 7}),
    ],
)
@pytest.mark.parametrize("filled", [[3, 4, 7, 7], [7, 7, 3, 4]])
def test_refuses_texts_that_seem_filled_up(kind: str, settings: dict[str, Any], filled: list[int]) -> None:
    """The model's config alone cannot tell whether its end, twice at the end of a text, fills the text up."""
    batch = [torch.tensor([[3, 4, 5, 6], filled]), torch.tensor([0, 1])]
    for pad in (None, 7, -100):
        network = ImageClassifier(TextTransformer(kind, 2, settings, weights=False, pad=pad), 2)
        for module in (CausalLM(kind, settings, weights=False, pad=pad), network):
            module.training_step(batch, 0)
            if pad is None:
                message = f"texts begin or end in several tokens 7, of which {kind} cannot tell .*: set pad to 7 if"
                with pytest.raises(ConfigurationError, match=message):
                    module.eval().predict_step(batch, 0)
            else:
                module.eval().predict_step(batch, 0)


def test_labels_tell_the_end_of_a_text_from_padding() -> None:
    """Of three ends the first is the text's; labels of padding before a text are those of a prompt, and say nothing."""
    end = {**STILL, "eos_token_id": 7}
    tokens, labels = torch.tensor([[3, 4, 7, 7, 7]]), torch.tensor([[3, 4, 7, -100, -100]])
    for pad in (None, 7):
        assert model(end, pad=pad).eval().predict_next([tokens, labels])[1].tolist() == [[4, 7, -100, -100]]
    with pytest.raises(ConfigurationError, match="texts begin or end in several tokens 7"):
        model(end).eval().predict_next([tokens.flip(1), labels.flip(1)])
    given = (
        model(end, pad=7).eval().predict_next([torch.tensor([[7, 7, 3, 4, 7]]), torch.tensor([[-100, -100, 3, 4, 7]])])
    )
    assert given[1].tolist() == [[4, 7, -100, -100]]


@pytest.mark.parametrize(
    ("kind", "settings", "pad"),
    [
        ("qwen2", {**LLAMA, "eos_token_id": 4}, "[PAD]"),  # a config that names no padding
        ("llama", {**LLAMA, "eos_token_id": [4, 8]}, "[PAD]"),  # and several ends
        ("gpt2", {**STILL, "eos_token_id": 4}, "[END]"),  # an end fills up
    ],
)
def test_perplexity_is_that_of_a_plain_loop(tmp_path: Path, kind: str, settings: dict[str, Any], pad: str) -> None:
    """The tokenizer of the model fills up texts, and masks what it filled up; the end of a text is a target."""
    datasets = pytest.importorskip("datasets")
    name = tokenizer_folder(tmp_path, ends=True, pad_token=pad, eos_token="[END]")
    lines = ["the cat", "the cat sees the cat", "cat", "sees the cat"]
    rows = datasets.Dataset.from_dict({"text": lines})
    torch.manual_seed(0)
    module = CausalLM(kind, settings, weights=False, optimizer=lambda params: torch.optim.AdamW(params, lr=0.02))
    plain: Any = copy.deepcopy(module.network)
    data = HuggingFace(rows, rows, num_clients=1, tokenizer=name, length=10, batch_size=4)
    run = trainer(rounds=3)
    run.fit(FederatedOrchestrator(module), datamodule=data)

    cut = transformers.AutoTokenizer.from_pretrained(name)
    filled = cut(lines, padding="max_length", max_length=10, return_tensors="pt")
    labels = filled["input_ids"].masked_fill(filled["attention_mask"] == 0, -100)
    assert (labels[:, 1:] == 4).sum() == 4
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.02)  # one batch a round, and a new optimizer
    for _ in range(3):
        optimizer = torch.optim.AdamW(plain.parameters(), lr=0.02)
        plain(**filled, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    plain.eval()
    with torch.no_grad():
        loss = plain(**filled, labels=labels).loss.item()
    assert run.callback_metrics["val/perplexity"].item() == pytest.approx(math.exp(loss), rel=1e-4)


def test_metrics_are_means_over_tokens_of_all_batches() -> None:
    """Two batches with 27 - 6 and 27 predicted tokens: the mean of the two batches' losses would be another."""
    module, tokens = model(), texts()
    data = FederatedDataModule.from_loaders(TensorDataset(tokens), TensorDataset(tokens), batch_size=3, num_clients=1)
    (shown,) = trainer().validate(FederatedOrchestrator(module), datamodule=data, verbose=False)
    with torch.no_grad():
        out = module.network(input_ids=tokens.clamp(min=0), labels=tokens)
    right = (out.logits[:, :-1].argmax(2) == tokens[:, 1:]).sum() / 48
    assert shown["val/loss"] == pytest.approx(out.loss.item(), rel=1e-5)
    assert shown["val/perplexity"] == pytest.approx(math.exp(out.loss.item()), rel=1e-5)
    assert shown["val/token_top1"] == pytest.approx(right.item())


@pytest.mark.filterwarnings("error")  # peft warns of a layer that holds its weight transposed, as GPT-2's do
def test_numbers_that_travel() -> None:
    """LoRA of rank 2 in c_attn, from 8 to 24: 2·8 + 24·2 in each of two layers. The head is the embedding, 9·8."""
    assert size(model(adapt="lora", rank=2)) == 128
    assert size(model(adapt="lora", rank=2, freeze=["*.lora_A.*"])) == 96
    assert trained(model(adapt="head")) == ["network.transformer.wte.weight"]
    assert size(model(adapt="head")) == 72
    assert size(model()) == size(transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY)))
    everywhere = model(adapt="lora", rank=1, targets=["*.h.1.*"])  # 8 to 24, 8 to 8, 8 to 32, 32 to 8
    assert size(everywhere) == 32 + 16 + 40 + 40
    assert all(".h.1." in name and ".lora_" in name for name in trained(everywhere))


def test_the_head_of_a_classifier_trains_beside_the_matrices() -> None:
    arguments: dict[str, Any] = {"num_classes": 3, "weights": False, "adapt": "lora", "rank": 1}
    gpt2 = TextTransformer("gpt2", settings=STILL, **arguments)
    assert size(gpt2) == 2 * 32 + 8 * 3
    bert = TextTransformer("bert", settings=BERT, **arguments)
    assert size(bert) == 2 * 16 + 8 * 3 + 3  # query and value, 8 to 8; the head has biases
    assert not any("pooler" in name for name in trained(bert))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt2", STILL),
        ("gpt2", {**STILL, "pad_token_id": 5}),
        ("llama", {**LLAMA, "eos_token_id": [1, 5]}),
        ("bert", BERT),
    ],
)
@pytest.mark.parametrize("longer", [[[3, 0, 5, -100, -100]], [[-100, -100, 3, 0, 5]]])
def test_padding_changes_no_class(kind: str, settings: dict[str, Any], longer: list[list[int]]) -> None:
    """Before the text or after it, whatever tokens the text ends in; and a text of padding alone still has classes."""
    torch.manual_seed(0)
    network = TextTransformer(kind, 3, settings, weights=False).eval()
    short, long = torch.tensor([[3, 0, 5]]), torch.tensor(longer)
    with torch.no_grad():
        theirs = network.network(input_ids=short, attention_mask=torch.ones_like(short)).logits
        torch.testing.assert_close(network(short), theirs)
        torch.testing.assert_close(network(long), theirs)
        torch.testing.assert_close(network(torch.cat([long, long.flip(1)]))[:1], theirs)
        assert not torch.allclose(network(torch.tensor([[3, 0, 5, 6, 6]])), theirs)
        assert network(torch.full((1, 5), -100)).isfinite().all()


def test_a_network_that_mixes_all_places_sees_its_own_padding() -> None:
    """As transformers gives it: FNet has no mask, and a padding of 3 by its config."""
    torch.manual_seed(0)
    settings = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 9, "pad_token_id": 3}
    network = TextTransformer("fnet", 3, settings, weights=False).eval()
    theirs = network.network(input_ids=torch.tensor([[4, 5, 3, 3]])).logits
    torch.testing.assert_close(network(torch.tensor([[4, 5, -100, -100]])), theirs)


@pytest.mark.filterwarnings("error:clients_at_once")
@pytest.mark.parametrize(
    ("kind", "settings", "labels"), [("gpt2", STILL, False), ("gpt2", STILL, True), ("llama", LLAMA, False)]
)
def test_clients_with_padded_texts_train_at_once(kind: str, settings: dict[str, Any], labels: bool) -> None:
    """Texts of 2 to 8 tokens, padding after them or before them: rounding apart from one client after another."""
    tokens = texts(12, 8)
    for row in range(12):
        tokens[row, 2 + row % 7 :] = -100
    tokens[5:] = tokens[5:].flip(1)
    examples = TensorDataset(tokens, tokens.masked_fill(tokens < 4, -100)) if labels else TensorDataset(tokens)
    data = FederatedDataModule.from_loaders(examples, num_clients=3, batch_size=2)
    ends = []
    for at_once in (1, 3):
        torch.manual_seed(0)
        orchestrator = FederatedOrchestrator(CausalLM(kind, settings, weights=False), clients_at_once=at_once)
        trainer(rounds=2).fit(orchestrator, datamodule=data)
        ends.append(orchestrator.params)
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-6)


def test_rules_for_classes_train_a_classifier_of_texts_and_refuse_a_language_model() -> None:
    data = MarkovTexts(num_clients=2, chains=2, vocabulary=8, length=12, texts=8, test_texts=4)
    torch.manual_seed(0)
    module = ImageClassifier(TextTransformer("gpt2", 2, TINY, weights=False), 2)
    run = trainer(FedNTD(), FocalLoss())
    run.fit(FederatedOrchestrator(module), datamodule=data)
    assert 0 <= run.callback_metrics["val/top1"] <= 1
    with pytest.raises(ConfigurationError, match=r"FocalLoss needs CausalLM.training_step to return a dict"):
        trainer(FocalLoss()).fit(FederatedOrchestrator(model()), datamodule=data)


@pytest.mark.parametrize("frozen", ["float32", "bfloat16"])
def test_a_round_of_one_client_is_a_plain_loop(frozen: Any) -> None:
    """One epoch of one batch of all texts, twice: two steps of AdamW by hand on transformers' own loss."""
    tokens = texts()
    module = model(adapt="lora", rank=2, frozen_dtype=frozen)
    plain: Any = copy.deepcopy(module.network)
    start = copy.deepcopy(module.network)
    orchestrator = FederatedOrchestrator(module, local_epochs=2)
    data = FederatedDataModule.from_loaders(TensorDataset(tokens), num_clients=1, batch_size=6)
    trainer().fit(orchestrator, datamodule=data)
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=5e-4)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=frozen == "bfloat16"):
            loss = plain(input_ids=tokens.clamp(min=0), labels=tokens).loss
        loss.backward()
        optimizer.step()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(module.network.get_parameter(name), parameter, rtol=0, atol=1e-6, msg=name)
        assert torch.equal(parameter, start.get_parameter(name)) != (".lora_" in name), name
    assert len(orchestrator.params) == 128, "what travels"


@pytest.mark.parametrize("sizes", [(2, 3), (1, 7)])
def test_batches_whose_gradients_add_up_count_by_their_tokens(sizes: tuple[int, int]) -> None:
    """One text of six is short. All are one group, the second time a group that is not full: a step on their mean."""
    size, together = sizes
    tokens = texts()
    module = model(optimizer=lambda params: torch.optim.SGD(params, lr=0.5))
    plain: Any = copy.deepcopy(module.network)
    start = copy.deepcopy(plain)
    data = FederatedDataModule.from_loaders(TensorDataset(tokens), num_clients=1, batch_size=size)
    trainer().fit(FederatedOrchestrator(module, accumulate_grad_batches=together), datamodule=data)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    plain(input_ids=tokens.clamp(min=0), labels=tokens).loss.backward()
    optimizer.step()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(module.network.get_parameter(name), parameter, rtol=0, atol=1e-6, msg=name)
    assert not torch.equal(start.lm_head.weight, plain.lm_head.weight)


@pytest.mark.parametrize("kind", [CausalLM, TextTransformer])
@pytest.mark.parametrize("frozen", ["float32", "bfloat16"])
def test_checkpointing_changes_no_bit(kind: Any, frozen: Any) -> None:
    """Nor does dropout, whose draws are repeated; all matrices have gradients, below frozen embeddings, too."""
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        made: Any = kind(
            "gpt2", settings=TINY, weights=False, adapt="lora", frozen_dtype=frozen, checkpointing=checkpointing
        )
        calls = list[int]()
        made.network.transformer.h[0].attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(1)
        made(texts()).square().sum().backward()
        assert len(calls) == 1 + checkpointing, "the block is computed again"
        gradients.append([parameter.grad for parameter in made.parameters() if parameter.requires_grad])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_frozen_weights_in_half_of_the_memory() -> None:
    """All but the matrices of the blocks stays in float32, and so do the logits, which rounding alone changes."""
    module = model(adapt="lora", frozen_dtype="bfloat16", freeze=["*.lora_A.*"])
    for name, parameter in module.named_parameters():
        is_half = "lora_" not in name and ".h." in name and parameter.dim() > 1
        assert parameter.dtype is (torch.bfloat16 if is_half else torch.float32), name
    whole = model(adapt="lora")
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            parameter.copy_(module.get_parameter(name))
        logits = module(texts())
        assert logits.dtype is torch.float32
        torch.testing.assert_close(logits, whole(texts()), rtol=0.05, atol=0.005)


def test_half_frozen_weights_train_stop_and_go_on(tmp_path: Path) -> None:
    data = MarkovTexts(num_clients=2, chains=2, vocabulary=8, length=12, texts=8, test_texts=4)

    def fitted(rounds: int, path: Path | None = None) -> CausalLM:
        module = model(TINY, adapt="lora", frozen_dtype="bfloat16")
        run = trainer(rounds=rounds)
        run.fit(FederatedOrchestrator(module), datamodule=data, ckpt_path=path)
        if rounds == 1:
            run.save_checkpoint(tmp_path / "one.ckpt")
        return module

    start, whole, _ = model(TINY, adapt="lora", frozen_dtype="bfloat16"), fitted(2), fitted(1)
    resumed = fitted(2, tmp_path / "one.ckpt")
    for name, parameter in whole.named_parameters():
        assert torch.equal(resumed.get_parameter(name), parameter), name
        assert torch.equal(start.get_parameter(name), parameter) != parameter.requires_grad, name


def test_a_stop_changes_no_bit(tmp_path: Path) -> None:
    """With dropout, in the matrices, too, beside frozen weights; the resumed model was drawn with another seed."""
    data = {"num_clients": 3, "chains": 3, "vocabulary": 8, "length": 12, "texts": 16, "test_texts": 4}

    def train(folder: str, rounds: int, seed: int, resume: Path | None = None) -> Path:
        torch.manual_seed(seed)
        module = CausalLM("gpt2", TINY, weights=False, adapt="lora", rank=2, dropout=0.3)
        settings: dict[str, Any] = {"default_root_dir": tmp_path / folder, "enable_checkpointing": True}
        run = trainer(LastCheckpoint(), rounds=rounds, **settings)
        run.fit(FederatedOrchestrator(module), datamodule=MarkovTexts(**data, participation=2), ckpt_path=resume)
        return tmp_path / folder / "checkpoints" / "last.ckpt"

    whole = train("whole", 3, seed=0)
    half = train("stopped", 1, seed=0)
    assert_same(whole, train("stopped", 3, seed=5, resume=half))


def test_adapters_start_from_weights_without_them(tmp_path: Path) -> None:
    base = model()
    torch.save(base.state_dict(), tmp_path / "base.pt")
    torch.manual_seed(1)
    adapted = CausalLM("gpt2", STILL, weights=False, adapt="lora")
    orchestrator = FederatedOrchestrator(adapted, init_from=str(tmp_path / "base.pt"))
    data = FederatedDataModule.from_loaders(TensorDataset(texts()), TensorDataset(texts()), num_clients=1)
    trainer().validate(orchestrator, datamodule=data, verbose=False)
    with torch.no_grad():
        torch.testing.assert_close(adapted(texts()), base(texts()))


def test_weights_of_a_folder(tmp_path: Path) -> None:
    """Read in float32 whatever they are saved in, to be trained: with dropout."""
    torch.manual_seed(0)
    saved = transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY)).to(torch.bfloat16)
    saved.save_pretrained(tmp_path / "mine")
    read = CausalLM(str(tmp_path / "mine"), {"attn_pdrop": 0.25})
    assert {parameter.dtype for parameter in read.parameters()} == {torch.float32}
    assert read.network.training
    assert read.network.config.attn_pdrop == 0.25
    for name, parameter in saved.named_parameters():
        assert torch.equal(read.network.get_parameter(name), parameter.float())
    classes = TextTransformer(str(tmp_path / "mine"), 3).network
    assert torch.equal(classes.transformer.wte.weight, read.network.transformer.wte.weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "gptt2"}, "expected a type of transformers for weights: false, such as gpt2, got 'gptt2'"),
        ({"model": "vit", "settings": {}}, "transformers makes no AutoModelForCausalLM of type vit with {}: Unrecog"),
        ({"settings": {"n_layers": 2}}, r"settings: GPT2Config has no n_layers: did you mean n_layer\?"),
        ({"settings": {**TINY, "n_embd": 9}}, "transformers makes no .* of type gpt2 with .*divisible"),
        ({"model": "no/such", "weights": True}, "got no/such: no such folder here, and no answer from the hub"),
        ({"adapt": "lora", "targets": ["query"]}, "targets: no linear layer has a name as 'query': there are c_attn"),
        ({"frozen_dtype": "bfloat16"}, "frozen_dtype: bfloat16 needs frozen weights: set adapt to lora or head"),
        (
            {"frozen_dtype": "half", "adapt": "lora"},
            "frozen_dtype must be 'float32', 'bfloat16', 'nf4' or 'int8', got 'half'",
        ),
        (
            {"adapt": "lora", "freeze": ["*.lora_C.*"]},
            r"no parameter has a name as '\*.lora_C.\*': did you mean '\*.lora_",
        ),
        ({"adapt": "some"}, "adapt must be 'full', 'head' or 'lora', got 'some'"),
    ],
)
def test_refuses_other_models(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigurationError, match=message) as caught:
        CausalLM(**{"model": "gpt2", "settings": TINY, "weights": False, **arguments})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.full((2, 5), 9), "gpt2 has the tokens 0 to 8, got 9 to 9: set vocab_size in settings"),
        (torch.ones(2, 13, dtype=torch.int64), "gpt2 has 12 positions, got texts of 13 tokens: shorten the texts"),
        (torch.ones(2, 5), r"gpt2 expects int64 tokens \(B, T\), got torch.float32 \(2, 5\)"),
    ],
)
def test_refuses_other_texts(tokens: Tensor, message: str, training: bool) -> None:
    for network in (model(), TextTransformer("gpt2", 2, TINY, weights=False)):
        with pytest.raises(ConfigurationError, match=message):
            network.train(training)(tokens)


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(ConfigurationError, match=r"need transformers: pip install 'fl-lightning\[text\]'$"):
        model()
