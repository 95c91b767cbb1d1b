"""init_from: where the initial global model comes from, what of it must fit, and that nothing else changes."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from lib.toy import BATCHES, Net, Same, trainer
from lightning.pytorch import LightningModule
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.engine.hosting.initial import start_from
from fl_lightning.models import ImageClassifier, TimmNetwork


class Other(Net):
    """A Net with other values."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            nn.init.normal_(parameter)


def checkpoint(module: LightningModule, path: Path) -> None:
    run = trainer(rounds=0)
    run.fit(module, DataLoader(BATCHES, batch_size=None))  # type: ignore[arg-type]  # a list is a dataset
    run.save_checkpoint(path)


def federated_checkpoint(module: LightningModule, path: Path) -> None:
    run = trainer(rounds=0)
    run.fit(FederatedOrchestrator(module), datamodule=Same())
    run.save_checkpoint(path)


FILES: dict[str, Callable[[LightningModule, Path], None]] = {
    "lightning.ckpt": checkpoint,
    "federated.ckpt": federated_checkpoint,
    "state.pt": lambda module, path: torch.save(module.state_dict(), path),
    "state.pth": lambda module, path: torch.save(module.state_dict(), path),
    "state.safetensors": lambda module, path: save_file(module.state_dict(), path),
    "of_the_network_alone.pt": lambda module, path: torch.save(module.net.state_dict(), path),  # type: ignore[union-attr]
}


def same(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def fitted(rounds: int, **settings: Any) -> Any:
    """The client module after some rounds."""
    orchestrator = FederatedOrchestrator(Net(), **settings)
    trainer(rounds=rounds).fit(orchestrator, datamodule=Same())
    return orchestrator.client


@pytest.mark.parametrize("name", FILES)
def test_initial_model_is_the_files(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = Other()
    FILES[name](other, tmp_path / name)
    with caplog.at_level(logging.INFO):
        assert same(fitted(0, init_from=str(tmp_path / name)), other)
    into = "Net.net" if "alone" in name else "Net"
    assert f"init_from: {tmp_path / name} gives {into} 4 tensors" in caplog.messages


def test_nothing_but_the_values_changes(tmp_path: Path) -> None:
    """From its own initial values out of a file, a run ends in the same bits as without a file."""
    torch.save(Net().state_dict(), tmp_path / "own.pt")
    assert same(fitted(2, init_from=str(tmp_path / "own.pt")), fitted(2))


def test_resumed_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    torch.save(Other().state_dict(), tmp_path / "other.pt")
    source = str(tmp_path / "other.pt")
    orchestrator, run = FederatedOrchestrator(Net(), init_from=source), trainer(rounds=1)
    run.fit(orchestrator, datamodule=Same())
    run.save_checkpoint(tmp_path / "one.ckpt")
    orchestrator = FederatedOrchestrator(Net(), init_from=source)
    trainer(rounds=2).fit(orchestrator, datamodule=Same(), ckpt_path=tmp_path / "one.ckpt")
    assert same(orchestrator.client, fitted(2, init_from=source))
    assert not same(orchestrator.client, fitted(2))


def test_second_fit_goes_on_from_the_first(tmp_path: Path) -> None:
    torch.save(Other().state_dict(), tmp_path / "other.pt")
    orchestrator = FederatedOrchestrator(Net(), init_from=str(tmp_path / "other.pt"))
    for _ in range(2):
        trainer(rounds=1).fit(orchestrator, datamodule=Same())
    assert not same(orchestrator.client, fitted(1, init_from=str(tmp_path / "other.pt")))


class Built(Net):
    """Makes its network in configure_model."""

    def __init__(self) -> None:
        super().__init__()
        del self.net

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            self.net = Net().net


def test_layers_that_configure_model_makes(tmp_path: Path) -> None:
    torch.save(Other().state_dict(), tmp_path / "other.pt")
    orchestrator = FederatedOrchestrator(Built(), init_from=str(tmp_path / "other.pt"))
    trainer(rounds=0).fit(orchestrator, datamodule=Same())
    assert same(orchestrator.client, Other())


class Versioned(Net):
    """Refuses a state of version 1, as which torch counts a state without a version."""

    _version = 2

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, metadata: Any, *rest: Any) -> None:
        assert metadata["version"] == 2
        super()._load_from_state_dict(state_dict, prefix, metadata, *rest)


def test_state_is_of_the_modules_version(tmp_path: Path) -> None:
    save_file(Other().state_dict(), tmp_path / "other.safetensors")
    module = Versioned()
    start_from(module, str(tmp_path / "other.safetensors"))
    assert same(module, Other())


# What must fit


class Tuned(LightningModule):
    """A body of two layers, a head of ``outputs``, and perhaps a last layer tied to the first."""

    def __init__(self, outputs: int = 2, inputs: int = 4, tied: bool = False) -> None:
        super().__init__()
        layers = {"stem": nn.Linear(inputs, 4), "middle": nn.Linear(4, 4), "head": nn.Linear(4, outputs)}
        self.body = nn.ModuleDict(layers)
        if tied:
            self.body["out"] = nn.Linear(4, inputs, bias=False)
            self.body["stem"] = nn.Linear(inputs, 4, bias=False)
            self.body["out"].weight = self.body["stem"].weight = nn.Parameter(torch.ones(4, 4))


def body(**changed: Tensor | None) -> dict[str, Tensor]:
    """A state_dict of a body with three outputs, full of sevens."""
    state = {name: torch.full_like(value, 7) for name, value in Tuned(outputs=3).body.state_dict().items()}
    state |= {name.replace("_", "."): value for name, value in changed.items() if value is not None}
    return {name: value for name, value in state.items() if changed.get(name.replace(".", "_"), value) is not None}


def test_head_of_another_size_keeps_its_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(body(), tmp_path / "body.pt")
    torch.manual_seed(3)
    module, before = Tuned(), torch.manual_seed(3) and Tuned()
    with caplog.at_level(logging.INFO):
        start_from(module, str(tmp_path / "body.pt"))
    assert all(bool((parameter == 7).all()) for name, parameter in module.named_parameters() if "head" not in name)
    assert same(module.body["head"], before.body["head"])
    kept = "body.head, missing or of another size there, keeps its own initial values"
    assert caplog.messages[-1] == f"init_from: {tmp_path / 'body.pt'} gives Tuned.body 4 tensors; {kept}"


@pytest.mark.parametrize("strict", [True, False])
def test_file_without_a_head(strict: bool, tmp_path: Path) -> None:
    torch.save(body(head_weight=None, head_bias=None), tmp_path / "body.pt")
    module = Tuned()
    module.strict_loading = strict
    start_from(module, str(tmp_path / "body.pt"))
    assert bool((module.body["middle"].weight == 7).all())


def test_one_of_two_tied_tensors_is_enough(tmp_path: Path) -> None:
    """A file of safetensors' save_model holds a shared tensor once."""
    module = Tuned(tied=True)
    state = {name: torch.full_like(value, 7) for name, value in module.state_dict().items() if "out" not in name}
    save_file(state, tmp_path / "tied.safetensors")
    start_from(module, str(tmp_path / "tied.safetensors"))
    assert bool((module.body["out"].weight == 7).all())


MISFITS: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "missing": ({"middle_bias": None}, "body.middle.bias is missing"),
    "unexpected": ({"extra_weight": torch.ones(1), "extra_bias": torch.ones(1)}, "body.extra.weight is unexpected"),
    "shape": ({"stem_weight": torch.ones(4, 9)}, "body.stem.weight is (4, 9) there and (4, 4) here"),
    "inputs of the head": ({"head_weight": torch.ones(3, 9)}, "body.head.weight is (3, 9) there and (2, 4) here"),
    "all three": (
        {"stem_weight": torch.ones(4, 9), "middle_bias": None, "extra_weight": torch.ones(1)},
        "body.stem.weight is (4, 9) there and (4, 4) here, body.middle.bias is missing, body.extra.weight is "
        "unexpected",
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_what_does_not_fit_is_named(what: str, tmp_path: Path) -> None:
    """The first of each kind; nothing has been loaded."""
    changed, message = MISFITS[what]
    torch.save(body(**changed), tmp_path / "body.pt")
    module = Tuned()
    with pytest.raises(ConfigurationError) as raised:
        start_from(module, str(tmp_path / "body.pt"))
    assert f"does not fit Tuned: {message}; expected weights of the same network" in str(raised.value)
    assert not any(bool((parameter == 7).any()) for parameter in module.parameters())


def test_without_strict_loading_what_both_have_is_loaded(tmp_path: Path) -> None:
    torch.save(body(middle_bias=None, extra_weight=torch.ones(1)), tmp_path / "body.pt")
    module = Tuned()
    module.strict_loading = False
    start_from(module, str(tmp_path / "body.pt"))
    assert bool((module.body["middle"].weight == 7).all())
    assert not bool((module.body["middle"].bias == 7).any())


def test_no_name_in_common_is_refused_without_strict_loading(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    module = Tuned()
    module.strict_loading = False
    with pytest.raises(ConfigurationError, match=r"body\.stem\.weight is missing, a is unexpected"):
        start_from(module, str(tmp_path / "a.pt"))


class Body(LightningModule):
    """A body, and a head after it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(4, 2)


class Gated(nn.Module):
    """Has a layer under the name that peft gives a layer with adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(4, 4)
        self.gate = nn.Parameter(torch.zeros(4))


def test_a_layer_with_a_name_of_pefts_is_the_modules_own(tmp_path: Path) -> None:
    state = Body(Gated()).state_dict()
    del state["body.gate"]
    save_file(state, tmp_path / "state.safetensors")
    with pytest.raises(ConfigurationError, match=r"does not fit Body: body\.gate is missing"):
        start_from(Body(Gated()), str(tmp_path / "state.safetensors"))


def test_attention_with_adapters_around_adapters(tmp_path: Path) -> None:
    """As peft adapts it: the output layer has adapters within those of the whole."""
    source = Body(nn.MultiheadAttention(4, 2))
    save_file(source.state_dict(), tmp_path / "state.safetensors")
    module = Body(nn.MultiheadAttention(4, 2))
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["body"]), module)
    given = start_from(module, str(tmp_path / "state.safetensors"))
    assert len(given) == len(source.state_dict())
    attention: Any = module.body
    assert torch.equal(attention.base_layer.in_proj_weight, source.body.in_proj_weight)  # type: ignore[arg-type]  # a tensor
    out: Any = source.body.out_proj
    assert torch.equal(attention.base_layer.out_proj.base_layer.weight, out.weight)


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    torch.save(nn.Linear(1, 1), tmp_path / "whole.pt")
    torch.save([1], tmp_path / "list.pt")
    (tmp_path / "text.safetensors").write_text("no tensors")
    for name in ("whole.pt", "list.pt", "text.safetensors"):
        with pytest.raises(ConfigurationError, match=f"{name} holds no state_dict: expected a Lightning checkpoint"):
            start_from(Tuned(), str(tmp_path / name))
    for name, came in (("none.pt", "does not exist"), ("", "is a folder")):
        with pytest.raises(
            ConfigurationError, match=f"expected a file of weights, .* which {came}; null loads no weights"
        ):
            start_from(Tuned(), str(tmp_path / name))


# timm, whose weights lie in a folder here, as the hub has them


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Tensor]]:
    """The name of a network with 1000 classes in a folder, as timm reads it, and its weights."""
    folder = tmp_path_factory.mktemp("hub")
    network: Any = timm.create_model("test_resnet", num_classes=1000)
    state = {name: torch.full_like(value, 2) for name, value in network.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    config = {"architecture": "test_resnet", "num_classes": 1000, "pretrained_cfg": network.pretrained_cfg}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return f"timm:local-dir:{folder}", state


def test_timms_weights_go_to_the_network_and_draw_nothing(pretrained: tuple[str, dict[str, Tensor]]) -> None:
    """The head has 10 outputs in place of 1000; the random numbers that come next are the same as without."""
    source, state = pretrained
    module = ImageClassifier(TimmNetwork("test_resnet", num_classes=10, stride=32))
    before = torch.get_rng_state()
    start_from(module, source)
    assert torch.equal(torch.get_rng_state(), before)
    loaded = module.network.network.state_dict()  # type: ignore[union-attr, operator]
    assert all(torch.equal(loaded[name], state[name]) for name in state if not name.startswith("fc."))
    assert loaded["fc.weight"].shape[0] == 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", r"timm gives no weights nothing: Unknown model \(nothing\); timm.list_pretrained\(\) names"),
        ("cs3darknet_s", "timm gives no weights cs3darknet_s: No pretrained weights exist for cs3darknet_s"),
        ("local-dir:nowhere", "timm gives no weights local-dir:nowhere: "),
    ],
)
def test_timm_without_weights(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        start_from(Tuned(), f"timm:{name}")
