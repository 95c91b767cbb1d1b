"""What averaging adapters loses, by hand; and nothing, with A frozen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.adapted import LAYERS, LR, SIZES, Adapted, average, by_hand, fitted, put_in, trained_once
from lib.command import run
from lightning.pytorch import LightningModule
from torch import Tensor, nn

import fl_lightning
from fl_lightning.callbacks import AggregationError, FedExLoRA, LocalPart
from fl_lightning.runs.folder.yaml_text import read_yaml


def test_averages_lose_something() -> None:
    """As much as the loop by hand finds in its last round."""
    made = fitted(AggregationError())
    lost = list[tuple[Tensor, Tensor]]()

    def server(network: Any, clients: list[Any], shares: Tensor) -> None:
        average(network, clients, shares)
        lost.clear()
        for name in LAYERS:
            deltas = [own.get_submodule(name).get_delta_weight("default") for own in clients]
            mean = sum(share * delta for share, delta in zip(shares, deltas, strict=True))
            lost.append((mean - network.get_submodule(name).get_delta_weight("default"), mean))

    by_hand(server)
    error, whole = (torch.cat([pair[at].flatten() for pair in lost]).norm() for at in (0, 1))
    found = float(made.fitted_by.callback_metrics["adapter/aggregation_error"])
    assert found == pytest.approx(float(error / whole), rel=1e-6)
    assert found > 0.01


def test_with_a_frozen_nothing_is_lost() -> None:
    """FFA-LoRA: the mean of B A is the mean of B, times A."""
    made = fitted(AggregationError(), module=Adapted(freeze=("*.lora_A.*",)))
    assert float(made.fitted_by.callback_metrics["adapter/aggregation_error"]) < 1e-15
    assert {name.split(".")[2] for name in made.flat.names} == {"lora_B"}


def test_what_stays_with_the_clients_has_no_mean() -> None:
    made = fitted(AggregationError(), LocalPart(["*.lora_B.*"]))
    assert "adapter/aggregation_error" not in made.fitted_by.callback_metrics


class Beside(LightningModule):
    """A linear layer after another one, both with adapters of rank 2 in float64."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.ModuleDict({"first": make(), "last": nn.Linear(8, 3)}).double()
        put_in(self.network, ["first", "last"])
        for name, parameter in self.network.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:  # what peft begins with zeros
                nn.init.normal_(parameter, 0, 0.3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs = batch[0][:, None]
        if isinstance(self.network["first"].base_layer, nn.Embedding):
            inputs = (2 * batch[0].abs()).long().clamp(max=4)[:, :2]
        return nn.functional.cross_entropy(
            self.network["last"](self.network["first"](inputs).flatten(1).tanh()), batch[1]
        )

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=LR)


@pytest.mark.parametrize("make", [lambda: nn.Conv1d(1, 4, 3), lambda: nn.Embedding(5, 4)])
@pytest.mark.parametrize("rules", [[], [FedExLoRA]])
def test_other_layers_count(make: Any, rules: list[Any]) -> None:
    """By peft's own products: FedExLoRA loses nothing on the linear layer, and as much as averages on the other."""
    made = fitted(*[rule() for rule in rules], AggregationError(), module=Beside(make), rounds=1)
    networks = trained_once(Beside(make))
    shares = torch.tensor(SIZES).double() / sum(SIZES)
    averaged = Beside(make).network
    lost, whole = [], []
    with torch.no_grad():
        average(averaged, networks, shares)
        for name in ("first", "last"):
            deltas = [own[name].get_delta_weight("default") for own in networks]
            mean = sum(share * delta for share, delta in zip(shares, deltas, strict=True))
            whole.append(mean.flatten())
            if name == "first" or not rules:
                lost.append((mean - averaged[name].get_delta_weight("default")).flatten())
    found = float(made.fitted_by.callback_metrics["adapter/aggregation_error"])
    assert found == pytest.approx(float(torch.cat(lost).norm() / torch.cat(whole).norm()), rel=1e-6)
    assert found > 1e-3


def test_a_module_without_adapters_of_peft_is_told() -> None:
    with pytest.warns(match="AggregationError logs nothing, since Adapted has no adapters that peft has put in"):
        made = fitted(AggregationError(), module=Adapted(adapted=False), rounds=1)
    assert "adapter/aggregation_error" not in made.fitted_by.callback_metrics


OWN = """
import torch
from lightning import LightningModule
from peft import AdaLoraConfig, LoraConfig, inject_adapter_in_model
from torch import nn


class Base(LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


class Adapter(nn.Linear):
    def __init__(self, made):
        super().__init__(64, 32)
        self.lora_A, self.lora_B = made(64, 2), made(2, 32)

    def forward(self, inputs):
        if isinstance(self.lora_A, nn.Parameter):
            return super().forward(inputs) + inputs @ self.lora_A @ self.lora_B
        return super().forward(inputs) + self.lora_B(self.lora_A(inputs))


class Parameters(Base):
    def __init__(self):
        super().__init__()
        self.network[1] = Adapter(lambda rows, columns: nn.Parameter(0.1 * torch.ones(rows, columns)))


class Linears(Base):
    def __init__(self):
        super().__init__()
        self.network[1] = Adapter(lambda rows, columns: nn.Linear(rows, columns, bias=False))


class AdaLora(Base):
    def __init__(self):
        super().__init__()
        inject_adapter_in_model(AdaLoraConfig(target_modules=["1", "3"], total_step=9), self.network)


class Attention(Base):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        inject_adapter_in_model(LoraConfig(r=2, target_modules=["attention"]), self)

    def training_step(self, batch, batch_idx):
        rows = batch[0].flatten(1).view(-1, 8, 8)
        mixed = self.attention(rows, rows, rows)[0]
        return nn.functional.cross_entropy(self.network(mixed), batch[1])


class Plain(Base):
    def configure_model(self):
        if not hasattr(self.network, "peft_config"):
            inject_adapter_in_model(LoraConfig(r=2, target_modules=["1"]), self.network)
"""


@pytest.mark.parametrize("name", ["Parameters", "Linears", "AdaLora", "Attention", "Plain"])
def test_a_fit_has_the_monitor_where_its_config_names_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module with adapters of whatever kind trains, as it is and with the monitor."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_adapters.py").write_text(OWN)
    options = ("--trainer.max_epochs", "1", "--trainer.devices", "1", "--model.client", f"own_adapters.{name}")
    for number, more in enumerate([(), ("--trainer.callbacks+=AggregationError",)]):
        done = run("fit", "--config", "digits_gh.yaml", *options, *more)
        assert done.status == 0, done.err
        header = Path(f"runs/digits_gh/version_{number}/metrics.csv").read_text().splitlines()[0].split(",")
        is_logged = number == 1 and name in ("Attention", "Plain")
        assert ("adapter/aggregation_error" in header) == is_logged


def test_the_shipped_configs_name_the_monitor() -> None:
    for config in sorted(Path(fl_lightning.__file__).parent.glob("configs/**/*.yaml")):
        content = read_yaml(config.name, config.read_text())
        if "adapt: lora" in config.read_text() and "trainer" in content:
            assert "AggregationError" in str(content["trainer"].get("callbacks")), config
