"""GenerationMonitor: answers beside transformers' generate, scores by hand, where they are shown, refusals."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.toy import Quadratic, ToyData, trainer
from lib.words import LLAMA, tokenizer_folder
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import GenerationMonitor
from fl_lightning.callbacks.monitors.generation import prompts_and_responses, rouge_l
from fl_lightning.datamodules import HuggingFace, MarkovTexts
from fl_lightning.models import CausalLM
from fl_lightning.report.compared.methods import make_methods
from fl_lightning.report.content.tables import answers
from fl_lightning.runs.reader import read_runs

transformers: Any = pytest.importorskip("transformers")
datasets: Any = pytest.importorskip("datasets")
pytest.importorskip("peft")

GPT2 = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 12, "vocab_size": 5, "bos_token_id": 4}
FAMILIES = [("gpt2", {**GPT2, "eos_token_id": 4}), ("llama", {**LLAMA, "vocab_size": 5, "eos_token_id": 4})]
PROMPTS, RESPONSES = ["the cat ", "cat sees ", "[END] sees the "], ["sees the", "cat", "cat sees the"]


def data(folder: Path, **settings: Any) -> HuggingFace:
    name = tokenizer_folder(folder, pad_token="[PAD]", eos_token="[END]")
    rows = datasets.Dataset.from_dict({"prompt": PROMPTS, "response": RESPONSES})
    chosen: dict[str, Any] = {"columns": ["prompt", "response"], "tokenizer": name, "length": 8, **settings}
    return HuggingFace(rows, rows, num_clients=1, batch_size=2, **chosen)


def module(kind: str, settings: dict[str, Any], **arguments: Any) -> CausalLM:
    torch.manual_seed(0)
    return CausalLM(kind, settings, weights=False, optimizer=lambda own: torch.optim.AdamW(own, lr=0.02), **arguments)


@pytest.mark.parametrize(("kind", "settings"), FAMILIES)
@pytest.mark.parametrize("arguments", [{}, {"adapt": "lora", "rank": 2, "dropout": 0.5, "targets": "all-linear"}])
def test_answers_are_those_of_transformers(
    tmp_path: Path, kind: str, settings: dict[str, Any], arguments: dict[str, Any]
) -> None:
    """By its own generate, prompt by prompt, on a copy of the trained network; and the monitor changes no weight."""
    ends = {}
    for name, monitors in (("with", [GenerationMonitor(length=4, every=2)]), ("without", [])):
        run = trainer(*monitors, rounds=5, default_root_dir=tmp_path / name)
        client = module(kind, settings, **arguments)
        run.fit(FederatedOrchestrator(client, local_epochs=5), datamodule=data(tmp_path / "words"))
        ends[name] = client
    for key, value in ends["without"].state_dict().items():
        assert torch.equal(ends["with"].state_dict()[key], value), key

    files = {path.name: path for path in (tmp_path / "with").rglob("generated_*.npz")}
    assert sorted(files) == ["generated_2.npz", "generated_4.npz", "generated_5.npz"]
    saved = np.load(files["generated_5.npz"])
    assert saved["prompts"].tolist() == [prompt.strip() for prompt in PROMPTS]
    assert saved["responses"].tolist() == RESPONSES
    cut = transformers.AutoTokenizer.from_pretrained(tmp_path / "words")
    network = copy.deepcopy(ends["without"].network).eval()
    for prompt, answer in zip(PROMPTS, saved["answers"], strict=True):
        given = cut(prompt, return_tensors="pt")
        written = network.generate(**given, max_new_tokens=4, do_sample=False, eos_token_id=4, pad_token_id=4)[0]
        assert cut.decode(written[given["input_ids"].shape[1] :], skip_special_tokens=True).strip() == answer


def test_scores_and_pages(tmp_path: Path) -> None:
    """A model that has learned its three responses by heart answers all of them, and stops."""
    logger = TensorBoardLogger(tmp_path, name="", version="tb")
    run = trainer(GenerationMonitor(prompts=2, length=5), rounds=12, default_root_dir=tmp_path, logger=logger)
    run.fit(FederatedOrchestrator(module(*FAMILIES[1]), local_epochs=10), datamodule=data(tmp_path / "words"))
    shown = {name: value for name, value in run.callback_metrics.items() if name.startswith("generation/")}
    assert {name: float(value) for name, value in shown.items()} == {
        "generation/exact_match": 1.0,
        "generation/rouge_l": 1.0,
        "generation/ended": 1.0,
    }
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    tables = events.Tensors("generation/answers/text_summary")
    assert [event.step for event in tables] == [10, 12]
    assert b"<td>sees the</td>" in tables[1].tensor_proto.string_val[0]


def test_scores_by_hand() -> None:
    """A whole answer 1; two words of three in order, of two and three: 2·1·(2/3)/(5/3) = 0.8; none; other alphabets."""
    assert rouge_l(("the cat",), ("The cat.",)) == 1
    assert rouge_l(["cat there"], ["cat sees there"]) == pytest.approx(0.8)
    assert rouge_l(["", "дом"], ["cat", "дом"]) == 0.5


def test_prompts_and_responses() -> None:
    """Of two runs of labels, the second; neither a text without labels nor one that begins with its response."""
    text = [0, 1, 2, 1, 4, -100]
    tokens = torch.tensor([text, text, [0, 1, 2, -100, -100, -100], [0, 1, 2, 1, 4, 0]])
    labels = torch.full_like(tokens, -100)
    labels[0, [1, 3, 4]] = tokens[0, [1, 3, 4]]
    labels[1, 2:5] = tokens[1, 2:5]
    labels[3] = tokens[3]
    labelled = [([0, 1, 2], [1, 4]), ([0, 1], [2, 1, 4])]
    assert list(prompts_and_responses(tokens, labels, given=None)) == labelled
    assert list(prompts_and_responses(tokens, labels, given=4)) == [*labelled, ([0, 1, 2, 1], [4, 0])]
    assert list(prompts_and_responses(tokens, labels, given=6)) == labelled


def test_texts_without_labels_and_without_a_tokenizer(tmp_path: Path) -> None:
    """The first four tokens are given; the rest is the response; both as numbers."""
    texts = MarkovTexts(num_clients=1, chains=1, vocabulary=4, length=10, texts=8, test_texts=3)
    trainer(GenerationMonitor(length=6, given=4), default_root_dir=tmp_path).fit(
        FederatedOrchestrator(module(*FAMILIES[0])), datamodule=texts
    )
    (file,) = tmp_path.rglob("generated_1.npz")
    saved = np.load(file)
    tokens, *_ = next(iter(texts.val_dataloader()))
    assert saved["prompts"].tolist() == [" ".join(map(str, text[:4].tolist())) for text in tokens]
    assert saved["responses"].tolist() == [" ".join(map(str, text[4:].tolist())) for text in tokens]
    assert all(len(answer.split()) == 6 for answer in saved["answers"])


def test_the_report_shows_the_first_and_the_last_answers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "arrays").mkdir(parents=True)
    (folder / "metrics.csv").write_text("round,val/loss\n1,1.0\n2,0.5\n3,0.4\n")
    for round, answer in ((1, "no"), (2, "so"), (3, "<yes>")):
        np.savez(folder / "arrays" / f"generated_{round}.npz", prompts=["a?"], responses=["yes"], answers=[answer])
    methods, _ = make_methods(read_runs([folder]), ["m"])
    table = answers(methods)
    assert table is not None
    assert table.rows == [["m", "1", "a?", "yes", "no"], ["m", "3", "a?", "yes", "<yes>"]]


def test_refusals(tmp_path: Path) -> None:
    def refused(client: Any, own: Any, **settings: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            trainer(GenerationMonitor(**settings)).fit(FederatedOrchestrator(client), datamodule=own)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "lets a CausalLM write, got Quadratic" in refused(Quadratic(), ToyData())
    texts = data(tmp_path / "words", columns=["prompt"])
    assert "with a prompt and a response, got none" in refused(module(*FAMILIES[0]), texts)
