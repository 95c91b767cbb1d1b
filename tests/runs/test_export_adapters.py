"""Adapters out of a run: peft, transformers and timm load them, and compute what the run's module computes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from lib.command import fit, refused, run
from lib.toy import trainer
from lib.words import BERT, LLAMA, tokenizer_folder
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator, export
from fl_lightning.callbacks import FedExLoRA
from fl_lightning.models import CausalLM, ImageClassifier, TextTransformer, TimmNetwork

transformers: Any = pytest.importorskip("transformers")
peft: Any = pytest.importorskip("peft")

FAMILIES = {
    "gpt2": {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 12, "vocab_size": 9},
    "llama": LLAMA,
    "qwen2": LLAMA,
}
TOKENS = torch.randint(1, 9, (8, 6), generator=torch.Generator().manual_seed(1))


def base(folder: Path, kind: str, settings: dict[str, Any], task: str = "CausalLM") -> str:
    """Save a small model with random weights, as a pretrained one."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **settings, bos_token_id=0, eos_token_id=0)
    getattr(transformers, f"AutoModelFor{task}").from_config(config).save_pretrained(folder)
    return str(folder)


def trained(folder: Path, make: Callable[[], Any], *data: Tensor, rules: Any = ()) -> tuple[Path, Any]:
    """Train two clients for two rounds; return the last checkpoint and the client module."""
    orchestrator = FederatedOrchestrator(make(), on_bad_update="raise")
    loaded = FederatedDataModule.from_loaders(TensorDataset(*data), num_clients=2, batch_size=2)
    fitting = trainer(*rules, rounds=2)
    fitting.fit(orchestrator, datamodule=loaded)
    fitting.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt", orchestrator.client.eval()


@pytest.mark.parametrize("settings", [{}, {"alpha": 3, "rslora": True}, {"dora": True}, {"dropout": 0.5}])
@pytest.mark.parametrize("kind", FAMILIES)
def test_peft_and_transformers_compute_the_same_logits(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    source = base(tmp_path / "base", kind, FAMILIES[kind])

    def make() -> CausalLM:
        return CausalLM(source, adapt="lora", rank=2, targets="all-linear", **settings)

    checkpoint, ours = trained(tmp_path, make, TOKENS)
    export(checkpoint, tmp_path / "adapter", make(), form="adapter")
    export(checkpoint, tmp_path / "merged", make(), form="merged")
    plain = transformers.AutoModelForCausalLM.from_pretrained(source)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    logits = theirs(TOKENS).logits
    assert torch.equal(logits, ours(TOKENS))
    assert not torch.allclose(logits, transformers.AutoModelForCausalLM.from_pretrained(source)(TOKENS).logits)
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert torch.equal(merged(TOKENS).logits, theirs.merge_and_unload()(TOKENS).logits)
    torch.testing.assert_close(merged(TOKENS).logits, logits)
    of_base = transformers.AutoConfig.from_pretrained(source)
    of_merged = transformers.AutoConfig.from_pretrained(tmp_path / "merged")
    assert (of_merged.use_cache, of_merged.pad_token_id) == (of_base.use_cache, of_base.pad_token_id)


def test_the_head_of_a_classifier_goes_with_the_adapter(tmp_path: Path) -> None:
    source = base(tmp_path / "base", "bert", BERT, "SequenceClassification")

    def make() -> ImageClassifier:
        torch.manual_seed(3)
        return ImageClassifier(TextTransformer(source, adapt="lora", rank=2), num_classes=2)

    checkpoint, ours = trained(tmp_path, make, TOKENS, TOKENS[:, 0] % 2)
    export(checkpoint, tmp_path / "adapter", make(), form="adapter")
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(source)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    assert torch.equal(theirs(TOKENS, attention_mask=torch.ones_like(TOKENS)).logits, ours(TOKENS))
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["modules_to_save"] == ["classifier"]


def test_timm_loads_the_merged_network(tmp_path: Path) -> None:
    def make() -> ImageClassifier:
        torch.manual_seed(0)
        settings = {"img_size": 32, "depth": 1, "embed_dim": 12, "num_heads": 2}
        return ImageClassifier(TimmNetwork("vit_tiny_patch16_224", 3, stride=32, adapt="lora", settings=settings), 3)

    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    checkpoint, ours = trained(tmp_path, make, images, torch.arange(8) % 3)
    export(checkpoint, tmp_path / "merged", make(), form="merged")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'merged'}", pretrained=True).eval()
    torch.testing.assert_close(theirs(images), ours(images))
    with pytest.raises(ConfigurationError, match=r"is frozen, and of no pretrained model.*--merge DIR"):
        export(checkpoint, tmp_path / "adapter", make(), form="adapter")
    assert not (tmp_path / "adapter").exists()


def test_an_adapter_alone_would_be_wrong(tmp_path: Path) -> None:
    """FedExLoRA changes the frozen weights."""
    source = base(tmp_path / "base", "gpt2", FAMILIES["gpt2"])

    def make() -> CausalLM:
        return CausalLM(source, adapt="lora", rank=2)

    checkpoint, ours = trained(tmp_path, make, TOKENS, rules=[FedExLoRA()])
    with pytest.raises(ConfigurationError, match=r"c_attn.base_layer.weight is frozen, and not as in .*base.*--merge"):
        export(checkpoint, tmp_path / "adapter", make(), form="adapter")
    export(checkpoint, tmp_path / "merged", make(), form="merged")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(merged(TOKENS).logits, ours(TOKENS))


def test_frozen_weights_drawn_at_random_have_no_base(tmp_path: Path) -> None:
    """Though the network's config has the name of a model, and the module is made with the same weights again."""
    source = base(tmp_path / "base", "gpt2", FAMILIES["gpt2"])

    def make() -> CausalLM:
        torch.manual_seed(0)
        module = CausalLM("gpt2", FAMILIES["gpt2"], weights=False, adapt="lora", rank=2)
        module.network.name_or_path = source
        return module

    checkpoint, _ = trained(tmp_path, make, TOKENS)
    with pytest.raises(ConfigurationError, match=r"is frozen, and of no pretrained model"):
        export(checkpoint, tmp_path / "adapter", make(), form="adapter")


def test_modules_without_adapters_have_none_to_write(tmp_path: Path) -> None:
    source = base(tmp_path / "base", "gpt2", FAMILIES["gpt2"])
    checkpoint, ours = trained(tmp_path, lambda: CausalLM(source), TOKENS)
    export(checkpoint, tmp_path / "whole", CausalLM(source), form="merged")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole").eval()
    assert torch.equal(theirs(TOKENS).logits, ours(TOKENS))
    with pytest.raises(ConfigurationError, match="expected one network with adapters of peft in CausalLM, got 0"):
        export(checkpoint, tmp_path / "adapter", CausalLM(source), form="adapter")


def test_a_run_starts_from_an_adapter(tmp_path: Path) -> None:
    source = base(tmp_path / "base", "gpt2", FAMILIES["gpt2"])

    def make(**settings: Any) -> CausalLM:
        return CausalLM(source, adapt="lora", **({"rank": 2} | settings))

    checkpoint, ours = trained(tmp_path, make, TOKENS)
    export(checkpoint, tmp_path / "adapter", make(), form="adapter")
    begun = FederatedOrchestrator(make(), init_from=str(tmp_path / "adapter"))
    data = FederatedDataModule.from_loaders(TensorDataset(TOKENS), val=TensorDataset(TOKENS), num_clients=2)
    trainer().validate(begun, datamodule=data, verbose=False)
    assert torch.equal(begun.client.eval()(TOKENS), ours(TOKENS))
    config = tmp_path / "adapter/adapter_config.json"
    other = config.read_text().replace(source, "another/model")
    for settings, text, message in (
        ({"rank": 3}, None, "has rank 2, and CausalLM has 3: set rank to 2"),
        ({"alpha": 9}, None, "has alpha 4.0, and CausalLM has 9: set alpha to 4.0"),
        ({"targets": ["c_fc"]}, None, "does not fit CausalLM: .*c_fc.lora_A.default.weight is missing"),
        ({}, other, "is of the model another/model, and CausalLM has .*base: take an adapter of this model"),
        ({}, "{", "holds no adapter that peft reads"),
    ):
        if text:
            config.write_text(text)
        begun = FederatedOrchestrator(make(**settings), init_from=str(tmp_path / "adapter"))
        with pytest.raises(ConfigurationError, match=message):
            trainer().validate(begun, datamodule=data, verbose=False)


CONFIG = """
trainer: {{max_epochs: 1, accelerator: cpu}}
model:
  client: {{class_path: CausalLM, init_args: {{model: {base}, adapt: lora, rank: 2}}}}
data:
  class_path: HuggingFace
  init_args: {{train: {data}, tokenizer: {tokenizer}, length: 6, num_clients: 2, batch_size: 2}}
"""


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a config to the adapter and the merged model, beside the tokenizer of the run's texts."""
    datasets: Any = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    texts = datasets.Dataset.from_dict({"text": ["the cat sees", "the dog", "a cat sees the dog", "dog"]})
    datasets.DatasetDict({"train": texts}).save_to_disk("data")
    words = tokenizer_folder(tmp_path / "words")
    source = base(tmp_path / "base", "gpt2", FAMILIES["gpt2"])
    Path("lora.yaml").write_text(CONFIG.format(base=source, data="data", tokenizer=words))
    fit(config="lora.yaml")
    folder = Path("runs/lora/version_0")
    assert "adapter: out" in run("export", folder, "--adapter", "out").out
    assert "merged: whole" in run("export", folder, "--merge", "whole").out
    model = peft.AutoPeftModelForCausalLM.from_pretrained("out").eval()
    whole = transformers.AutoModelForCausalLM.from_pretrained("whole").eval()
    torch.testing.assert_close(model(TOKENS).logits, whole(TOKENS).logits)
    assert transformers.AutoTokenizer.from_pretrained("whole")("the cat")["input_ids"] == [0, 1]
    assert refused("export", folder, "--adapter", "out") == "export: out exists: give another name, or --overwrite"
    assert run("export", folder, "--adapter", "out", "--overwrite").status == 0
    fit("--model.init_from", "out", "--experiment", "again", config="lora.yaml")
