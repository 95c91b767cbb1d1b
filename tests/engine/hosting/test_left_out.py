"""Frozen weights from elsewhere enter no checkpoint; who loads it has the same, or is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lib.adapted import Adapted, Data
from lib.toy import trainer
from lightning.pytorch import Callback
from safetensors.torch import load_file, save_file

from fl_lightning import ConfigurationError, FederatedOrchestrator, export
from fl_lightning.callbacks import FedExLoRA

BASE = "network.0.base_layer.weight"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Weights of the whole network from elsewhere, by the names before there are adapters."""
    torch.manual_seed(7)
    state = {name: torch.randn_like(value) for name, value in Adapted(adapted=False).state_dict().items()}
    save_file(state, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def fitted(weights: Path | None, *rules: Callback, rounds: int = 3, resume: Path | None = None) -> Any:
    made = FederatedOrchestrator(Adapted(), init_from=None if weights is None else str(weights))
    fitting = trainer(*rules, rounds=rounds)
    fitting.fit(made, datamodule=Data(), ckpt_path=resume)
    made.fitted_by = fitting
    return made


def saved(made: Any, path: Path) -> dict[str, Any]:
    made.fitted_by.save_checkpoint(path)
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def test_a_checkpoint_lacks_what_came_from_elsewhere_and_a_run_goes_on(weights: Path, tmp_path: Path) -> None:
    begun = fitted(weights, rounds=2)
    content = saved(begun, tmp_path / "two.ckpt")
    frozen = {f"network.{layer}.base_layer.{kind}" for layer in "02" for kind in ("weight", "bias")}
    assert content["left_out"].keys() == frozen
    assert {name.removeprefix("client.") for name in content["state_dict"]} == set(begun.flat.names)
    resumed, whole = fitted(weights, resume=tmp_path / "two.ckpt"), fitted(weights)
    assert torch.equal(resumed.params, whole.params)
    assert torch.equal(resumed.client.get_parameter(BASE), whole.client.get_parameter(BASE))


def test_other_weights_are_refused(weights: Path, tmp_path: Path) -> None:
    saved(fitted(weights, rounds=1), tmp_path / "one.ckpt")
    with pytest.raises(
        ConfigurationError, match=f"the checkpoint lacks {BASE}, .* give it the same weights by model.init"
    ):
        fitted(None, resume=tmp_path / "one.ckpt")
    with pytest.raises(ConfigurationError, match=r"init_from: .*one\.ckpt lacks frozen weights .*, such as network"):
        fitted(tmp_path / "one.ckpt")


def test_weights_of_the_other_sign_are_refused(weights: Path, tmp_path: Path) -> None:
    """The weights are in float64, whose first bit is the sign."""
    saved(fitted(weights, rounds=1), tmp_path / "one.ckpt")
    others = load_file(weights)
    others["network.0.weight"] = -others["network.0.weight"]
    save_file(others, tmp_path / "others.safetensors")
    with pytest.raises(ConfigurationError, match=f"the checkpoint lacks {BASE}, "):
        fitted(tmp_path / "others.safetensors", resume=tmp_path / "one.ckpt")


def test_weights_that_a_rule_changes_and_weights_of_no_source_are_saved(weights: Path, tmp_path: Path) -> None:
    content = saved(fitted(weights, FedExLoRA(), rounds=2), tmp_path / "two.ckpt")
    assert f"client.{BASE}" in content["state_dict"]
    assert content["left_out"].keys() == {"network.0.base_layer.bias", "network.2.base_layer.bias"}
    resumed = fitted(weights, FedExLoRA(), resume=tmp_path / "two.ckpt")
    whole = fitted(weights, FedExLoRA())
    assert torch.equal(resumed.client.get_parameter(BASE), whole.client.get_parameter(BASE))
    assert saved(resumed, tmp_path / "three.ckpt")["state_dict"].keys() == content["state_dict"].keys()
    assert "left_out" not in saved(fitted(None, rounds=1), tmp_path / "random.ckpt")


def test_an_attribute_of_a_users_module_is_the_users(tmp_path: Path) -> None:
    """As torchvision's networks take it: whether weights were downloaded."""
    module = Adapted()
    module.pretrained = True  # type: ignore[assignment]  # no module
    made = FederatedOrchestrator(module)
    made_by = trainer(rounds=1)
    made_by.fit(made, datamodule=Data())
    made_by.save_checkpoint(tmp_path / "one.ckpt")
    assert f"client.{BASE}" in torch.load(tmp_path / "one.ckpt", weights_only=True)["state_dict"]


@pytest.mark.parametrize("suffix", ["safetensors", "ckpt"])
def test_an_export_is_whole(suffix: str, weights: Path, tmp_path: Path) -> None:
    made = fitted(weights, rounds=1)
    saved(made, tmp_path / "one.ckpt")
    module = Adapted()
    with pytest.raises(ConfigurationError, match=f"the checkpoint lacks {BASE}"):
        export(tmp_path / "one.ckpt", tmp_path / f"out.{suffix}", module=module)
    module.load_state_dict(made.client.state_dict())
    out = tmp_path / f"out.{suffix}"
    export(tmp_path / "one.ckpt", out, module=module)
    state = load_file(out) if suffix == "safetensors" else torch.load(out, weights_only=True)["state_dict"]
    for name, value in made.client.state_dict().items():
        assert torch.equal(state[name], value)
