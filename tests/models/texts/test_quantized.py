"""Frozen weights of 4 and 8 bits: a round beside transformers and peft, a stop, checkpoints, exports, refusals."""

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.resumed import assert_same
from lib.toy import Capture, trainer
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator, export
from fl_lightning.callbacks import FedExLoRA, GenerationMonitor
from fl_lightning.engine.hosting.adapted import quantized_layers
from fl_lightning.engine.module.state import ModuleState
from fl_lightning.models import CausalLM, ImageClassifier, TextTransformer
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

pytest.importorskip("bitsandbytes")
transformers: Any = pytest.importorskip("transformers")
peft: Any = pytest.importorskip("peft")

ENDS = {"bos_token_id": 0, "eos_token_id": 0}
FAMILIES: dict[str, dict[str, Any]] = {  # GPT-2 has biases, a layer of its own, and one weight for tokens and head
    "gpt2": {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 12, "vocab_size": 9, **ENDS},
    "llama": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 9,
        "max_position_embeddings": 12,
        **ENDS,
    },
}
STILL = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
BITS: tuple[Any, ...] = ("nf4", "int8")
TOKENS = torch.randint(1, 9, (6, 10), generator=torch.Generator().manual_seed(1))
EACH = pytest.mark.parametrize("bits", BITS)


def base(folder: Path, kind: str, task: str = "CausalLM") -> str:
    """Save a small model with random weights and biases, as a pretrained one."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **FAMILIES[kind], **(STILL if kind == "gpt2" else {}))
    network = getattr(transformers, f"AutoModelFor{task}").from_config(config)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    network.save_pretrained(folder / kind)
    return str(folder / kind)


def made(source: str, bits: Any, **arguments: Any) -> CausalLM:
    torch.manual_seed(0)
    return CausalLM(source, frozen_dtype=bits, **{"adapt": "lora", "rank": 2, "targets": "all-linear", **arguments})


def plainly(source: str, bits: Any) -> Any:
    """Read a model as a user of transformers does."""
    if bits == "nf4":
        config = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    else:
        config = transformers.BitsAndBytesConfig(load_in_8bit=True)
    network = transformers.AutoModelForCausalLM.from_pretrained(
        source, quantization_config=config, device_map="cpu", dtype=torch.float32
    )
    for _, layer in quantized_layers(network):
        layer.support_avx512bf16_for_cpu = False  # numbers of one kind, on every processor
    return network


def data(clients: int = 2, **settings: Any) -> FederatedDataModule:
    texts = TensorDataset(TOKENS)
    return FederatedDataModule.from_loaders(texts, texts, num_clients=clients, **{"batch_size": 6, **settings})


class InOrder(FederatedDataModule):
    """One client, whose batch is all texts as they stand: sums in another order are rounded to bfloat16 otherwise."""

    num_clients = 1

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(TOKENS)

    def client_batches(self, client: int, order: torch.Generator) -> Iterator[list[Tensor]]:
        return iter([[TOKENS]])


def state(module: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def frozen(module: Any) -> dict[str, Tensor]:
    return {name: value for name, value in state(module).items() if "lora_" not in name}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype is other[name].dtype, name
        assert torch.equal(value, other[name]), name


@EACH
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_round_of_one_client_is_a_plain_loop(tmp_path: Path, kind: str, bits: Any) -> None:
    """Two steps of SGD by hand on transformers' own loss; the matrices start from the same draw."""
    source = base(tmp_path, kind)
    module = made(source, bits, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    start, before = copy.deepcopy(module), frozen(module)
    plain = plainly(source, bits).train()
    targets = [name for name, _ in quantized_layers(plain)]
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=targets)
    plain = peft.inject_adapter_in_model(config, plain)
    for name, parameter in plain.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = start.network.get_parameter(name).detach().clone()  # float32, as get_peft_model makes it
    orchestrator = FederatedOrchestrator(module, local_epochs=2)
    trainer().fit(orchestrator, datamodule=InOrder())
    optimizer = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = plain(input_ids=TOKENS, labels=TOKENS).loss
        loss.backward()
        optimizer.step()
    trained = 0
    for name, parameter in plain.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(module.network.get_parameter(name), parameter, rtol=0, atol=1e-6, msg=name)
            assert parameter.dtype is torch.float32
            assert not torch.equal(parameter, start.network.get_parameter(name)), name
            trained += parameter.numel()
    assert len(orchestrator.params) == trained, "what travels"
    assert_equal(frozen(module), before)


@EACH
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_stop_changes_no_bit_and_checkpoints_lack_the_frozen_weights(tmp_path: Path, kind: str, bits: Any) -> None:
    """With dropout; the resumed model was drawn with another seed, so that its matrices are others."""
    source = base(tmp_path, kind)

    def train(folder: str, rounds: int, resume: Path | None = None) -> Path:
        module = made(source, bits, dropout=0.1)
        if resume:
            torch.nn.init.ones_(next(own for own in module.parameters() if own.requires_grad))
        settings: dict[str, Any] = {"default_root_dir": tmp_path / folder, "enable_checkpointing": True}
        run = trainer(LastCheckpoint(), rounds=rounds, **settings)
        run.fit(FederatedOrchestrator(module), datamodule=data(3, batch_size=2), ckpt_path=resume)
        return tmp_path / folder / "checkpoints" / "last.ckpt"

    whole = train("whole", 3)
    half = train("stopped", 1)
    saved = torch.load(half, weights_only=True)
    kept = [name for name in saved["state_dict"] if "lora_" not in name]
    assert kept == (["client.network.lm_head.weight"] if kind == "gpt2" else []), "the second name of tokens' weights"
    assert any("absmax" in name or "SCB" in name for name in saved["left_out"]), "scales have digests, too"
    assert_same(whole, train("stopped", 3, resume=half))
    network = transformers.AutoModelForCausalLM.from_pretrained(source)
    for parameter in network.parameters():
        parameter.data *= 1.5  # the same bits of 4, with other scales
    network.save_pretrained(source)
    with pytest.raises(ConfigurationError, match=r"the checkpoint lacks .*, a frozen parameter that the run was given"):
        train("stopped", 4, resume=half)


class Starts(Capture):
    """Keeps the state in which each client starts."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[dict[str, Tensor]] = []

    def on_client_start(self, orchestrator: Any, run: Any) -> None:
        self.states.append(state(run.module))


@EACH
@pytest.mark.parametrize("kind", FAMILIES)
def test_clients_start_alike_whoever_trained_or_evaluated_before(tmp_path: Path, kind: str, bits: Any) -> None:
    """Training is the same with a validation before the first round and after each, and without any."""
    source = base(tmp_path, kind)
    ends, losses = [], []
    for validates in (True, False):
        starts = Starts()
        module = made(source, bits)
        first = state(module)
        settings = {} if validates else {"limit_val_batches": 0}
        run = trainer(starts, rounds=2, num_sanity_val_steps=2 * validates, **settings)
        run.fit(FederatedOrchestrator(module), datamodule=data())
        assert_equal(starts.states[0], first)
        assert_equal(starts.states[1], first)
        assert_equal(starts.states[2], starts.states[3])
        ends.append(state(module))
        losses += [run.callback_metrics["val/loss"].item()] if validates else []
    assert_equal(*ends)
    assert 0 < losses[0] < 5


@EACH
@pytest.mark.parametrize("kind", FAMILIES)
def test_evaluation_is_that_of_transformers(tmp_path: Path, kind: str, bits: Any) -> None:
    source = base(tmp_path, kind)
    module, plain = made(source, bits).eval(), plainly(source, bits).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        theirs = plain(input_ids=TOKENS).logits.float()
    with torch.no_grad():
        assert torch.equal(module(TOKENS), theirs)
        assert torch.equal(copy.deepcopy(module)(TOKENS), theirs)
    written, _ = module.generate([3, 4], 5)
    assert len(written) <= 5


@EACH
def test_the_engine_leaves_the_weights_right(tmp_path: Path, bits: Any) -> None:
    """Copies, other storage (as after a move to a device), what a client breaks, and a state that is read again."""
    module = made(base(tmp_path, "gpt2"), bits)
    logits, before = module(TOKENS).detach(), state(module)
    memory = ModuleState(module)
    assert not memory.is_changed()
    for _, layer in quantized_layers(module):
        layer.weight.data.zero_()
        layer.bias.data.zero_()
        scales = layer.weight.quant_state.absmax if bits == "nf4" else layer.state.SCB
        scales.zero_()
    assert not torch.equal(module(TOKENS), logits)
    memory.restore()
    assert_equal(state(module), before)
    assert torch.equal(module(TOKENS), logits)
    module._apply(lambda tensor: tensor.clone())
    module.double().float()
    assert_equal(state(module), before)
    assert torch.equal(module(TOKENS), logits)
    other = copy.deepcopy(module)
    for _, layer in quantized_layers(module):
        (layer.weight.quant_state.absmax if bits == "nf4" else layer.state.SCB).mul_(2)
        layer.weight.data.zero_()
    assert torch.equal(other(TOKENS), logits)
    module.load_state_dict(before)
    assert_equal(state(module), before)
    assert torch.equal(module(TOKENS), logits)
    name = next(name for name in before if name.endswith("c_attn.base_layer.weight"))
    with pytest.raises(
        ConfigurationError, match=r"c_attn.base_layer.weight is quantised here, and not in the same way"
    ):
        module.load_state_dict({**before, name: torch.ones(192, 64)})


@EACH
@pytest.mark.parametrize("kind", FAMILIES)
def test_checkpointing_changes_no_bit(tmp_path: Path, kind: str, bits: Any) -> None:
    source = base(tmp_path, kind)
    gradients = []
    for checkpointing in (False, True):
        module = made(source, bits, checkpointing=checkpointing, dropout=0.1)
        before = frozen(module)
        torch.manual_seed(1)
        module(TOKENS).square().sum().backward()
        gradients.append([own.grad for own in module.parameters() if own.requires_grad])
        assert_equal(frozen(module), before)
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@EACH
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_adapter_comes_out_and_a_merged_model_does_not(tmp_path: Path, kind: str, bits: Any) -> None:
    source = base(tmp_path, kind)
    orchestrator = FederatedOrchestrator(made(source, bits), on_bad_update="raise")
    fitting = trainer(rounds=2)
    fitting.fit(orchestrator, datamodule=data())
    fitting.save_checkpoint(tmp_path / "last.ckpt")
    ours: Any = orchestrator.client.eval()
    export(tmp_path / "last.ckpt", tmp_path / "adapter", made(source, bits), form="adapter")
    theirs = peft.PeftModel.from_pretrained(plainly(source, bits), tmp_path / "adapter").eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = theirs(input_ids=TOKENS).logits.float()
    with torch.no_grad():
        assert torch.equal(ours(TOKENS), logits)
        assert not torch.equal(made(source, bits).eval()(TOKENS), logits)
    with pytest.raises(ConfigurationError, match=r"^export: the frozen weights are of 4 or 8 bits.* --adapter DIR"):
        export(tmp_path / "last.ckpt", tmp_path / "merged", made(source, bits), form="merged")
    whole = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").merge_and_unload().eval()  # as it says
    torch.testing.assert_close(whole(TOKENS).logits, logits, rtol=0, atol=0.2)
    again = FederatedOrchestrator(made(source, bits), init_from=str(tmp_path / "adapter"))
    trainer().validate(again, datamodule=data(), verbose=False)
    assert_equal(state(again.client), state(ours))
    export(tmp_path / "last.ckpt", tmp_path / "all.safetensors", made(source, bits))
    third = FederatedOrchestrator(made(source, bits), init_from=str(tmp_path / "all.safetensors"))
    trainer().validate(third, datamodule=data(), verbose=False)
    assert_equal(state(third.client), state(ours))


@EACH
def test_classes_of_texts(tmp_path: Path, bits: Any) -> None:
    """The head, which is new, is drawn in float32, trains, and is not quantised."""
    torch.manual_seed(0)
    network = TextTransformer(base(tmp_path, "gpt2"), 3, frozen_dtype=bits, adapt="lora", rank=2)
    assert not list(quantized_layers(network.network.score))
    assert network.network.score.weight.dtype is torch.float32
    assert len(list(quantized_layers(network))) == 8
    module = ImageClassifier(network, 3)
    before = frozen(network)
    labels = torch.arange(6) % 3
    set_of_texts = TensorDataset(TOKENS, labels)
    loaded = FederatedDataModule.from_loaders(set_of_texts, set_of_texts, num_clients=2, batch_size=3)
    fitting = trainer(rounds=2)
    fitting.fit(FederatedOrchestrator(module), datamodule=loaded)
    after = frozen(network)
    head = "network.score.weight"
    assert not torch.equal(after.pop(head), before.pop(head))
    assert_equal(after, before)
    fitting.save_checkpoint(tmp_path / "one.ckpt")
    saved = torch.load(tmp_path / "one.ckpt", weights_only=True)["state_dict"]
    assert all("lora_" in name or "score" in name or "metric" in name for name in saved), [*saved]
    assert 0 <= fitting.callback_metrics["val/top1"] <= 1


def test_heads_of_several_layers_are_not_quantised(tmp_path: Path) -> None:
    """BERT's classifier has a bias, by which transformers' own choice of what stays whole misses it."""
    settings = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(**settings, vocab_size=9, max_position_embeddings=12)
    transformers.BertForNextSentencePrediction(config).save_pretrained(tmp_path / "bert")
    network = TextTransformer(str(tmp_path / "bert"), 3, frozen_dtype="nf4", adapt="lora", rank=2)
    assert not list(quantized_layers(network.network.classifier))
    assert {own.dtype for own in network.network.classifier.parameters()} == {torch.float32}
    assert network(TOKENS).shape == (6, 3)


def test_bytes_of_the_frozen_weights(tmp_path: Path) -> None:
    """Of each 64 weights, 256 bytes in float32: nf4 has 32 and a scale of 4, int8 64 and the row's scale, here 4.

    Llama's rows have 64 or 96 weights; the state also holds nf4's 16 numbers and its form, the same for all sizes.
    """
    source = base(tmp_path, "llama")
    whole = CausalLM(source, adapt="lora", rank=2, targets="all-linear").network
    names = [name for name, layer in whole.named_modules() if name.endswith("base_layer")]
    numbers = sum(whole.get_submodule(name).weight.numel() for name in names)
    rows = sum(whole.get_submodule(name).out_features for name in names)
    assert sum(whole.get_submodule(name).weight.nbytes for name in names) == 4 * numbers
    for bits, expected in (("nf4", numbers // 2 + 4 * numbers // 64), ("int8", numbers + 4 * rows)):
        network = made(source, bits).network
        assert [name for name, _ in quantized_layers(network)] == names
        own = list[Tensor]()
        for _, layer in quantized_layers(network):
            own += [layer.weight, layer.weight.quant_state.absmax if bits == "nf4" else layer.state.SCB]
            held = ModuleState(layer)._held.tensors
            assert sum(tensor.nbytes for tensor in held) <= own[-1].nbytes + 64, "no second copy of the weight"
        assert sum(tensor.nbytes for tensor in own) == expected


@EACH
def test_monitors_see_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run = trainer(GenerationMonitor(), rounds=1)
    module = made(base(tmp_path, "gpt2"), bits)
    pairs = TensorDataset(TOKENS, TOKENS.clone().index_fill(1, torch.arange(5), -100))
    loaded = FederatedDataModule.from_loaders(pairs, pairs, num_clients=2, batch_size=3)
    run.fit(FederatedOrchestrator(module), datamodule=loaded)
    assert any("generation" in name for name in run.callback_metrics), run.callback_metrics


def test_rules_that_change_frozen_weights_are_refused(tmp_path: Path) -> None:
    module = made(base(tmp_path, "gpt2"), "nf4")
    with pytest.raises(
        ConfigurationError, match=r"FedExLoRA needs adapters of peft on linear layers, but .*Linear4bit"
    ):
        trainer(FedExLoRA()).fit(FederatedOrchestrator(module), datamodule=data())


@EACH
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dora": True}, "does not go with dora: set dora to false, or frozen_dtype to bfloat16"),
        ({"weights": False}, "quantises pretrained weights, got weights: false: set weights to true, or"),
        (
            {"adapt": "head"},
            "needs matrices that train beside the quantised weights, got adapt: head: set adapt to lora",
        ),
        (
            {"adapt": "full"},
            "needs matrices that train beside the quantised weights, got adapt: full: set adapt to lora",
        ),
        (
            {"modules_to_save": ["c_proj"]},
            r"modules_to_save: transformer.h.0.attn.c_proj.weight is quantised and cannot train: leave .*c_proj out",
        ),
    ],
)
def test_refusals(tmp_path: Path, bits: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        made(base(tmp_path, "gpt2"), bits, **arguments)
    assert "\n" not in str(caught.value)


def test_refuses_weights_that_are_missing_and_models_that_are_quantised(tmp_path: Path) -> None:
    source = base(tmp_path, "llama")
    plainly(source, "nf4").save_pretrained(tmp_path / "small")
    with pytest.raises(ConfigurationError, match="small is quantised already: set frozen_dtype to float32"):
        made(str(tmp_path / "small"), "nf4")
    settings = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(**settings, vocab_size=9, max_position_embeddings=12)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    for bits in BITS:
        with pytest.raises(
            ConfigurationError, match=r"and the model has none for bert.pooler.dense: set frozen_dtype to"
        ):
            TextTransformer(str(tmp_path / "bert"), 3, frozen_dtype=bits, adapt="lora")


@EACH
def test_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bits: Any) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigurationError, match=r"needs bitsandbytes: pip install 'fl-lightning\[quantized\]'"):
        CausalLM("no/such", adapt="lora", frozen_dtype=bits)
