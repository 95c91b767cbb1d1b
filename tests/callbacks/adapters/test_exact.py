"""Adapters of three clients against a loop in plain PyTorch, and what averaging them loses."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lib.toy import trainer
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import (
    AggregationError,
    FedAvgM,
    FedExLoRA,
    FLoRA,
    GradientHarmonization,
    HetLoRA,
    LocalPart,
)
from fl_lightning.models.adapters import adapt

SIZES, RANK, LR, ROUNDS = (3, 6, 9), 2, 0.3, 3
LAYERS = ("0", "2")


class Adapted(LightningModule):
    """Two linear layers in float64, with adapters."""

    def __init__(self, freeze: tuple[str, ...] = (), adapted: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        if adapted:
            adapt(self.network, "lora", head="", rank=RANK, targets=LAYERS, freeze=freeze)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=LR)


def examples(client: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(client)
    inputs = torch.randn(SIZES[client], 4, generator=draw, dtype=torch.float64)
    return inputs, torch.randint(3, (SIZES[client],), generator=draw)


class Data(FederatedDataModule):
    """Three clients of 3, 6 and 9 examples, a batch each."""

    num_clients = 3

    def __init__(self) -> None:
        super().__init__(batch_size=9)

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(*examples(client))


def fitted(*rules: Callback, module: LightningModule | None = None, rounds: int = ROUNDS) -> Any:
    made = FederatedOrchestrator(module or Adapted(), on_bad_update="raise", local_epochs=2)
    made.fitted_by = trainer(*rules, rounds=rounds)
    made.fitted_by.fit(made, datamodule=Data())
    return made


def weights(network: Any) -> list[Tensor]:
    """The weights that the layers have in effect: frozen and adapters' together."""
    return [
        (
            network.get_submodule(name).base_layer.weight + network.get_submodule(name).get_delta_weight("default")
        ).detach()
        for name in LAYERS
    ]


def by_hand(server: Callable[[Any, list[Any], Tensor], None]) -> Any:
    """Train the adapters of the three clients; ``server`` makes a global network of theirs, in place."""
    module = Adapted()
    shares = torch.tensor(SIZES).double() / sum(SIZES)
    for _ in range(ROUNDS):
        clients = []
        for client in range(3):
            own = copy.deepcopy(module)
            optimizer = own.configure_optimizers()
            for _ in range(2):
                optimizer.zero_grad()
                own.training_step(examples(client), 0).backward()
                optimizer.step()
            clients.append(own.network)
        with torch.no_grad():
            server(module.network, clients, shares)
    return module.network


def average(network: Any, clients: list[Any], shares: Tensor) -> None:
    for name, parameter in network.named_parameters():
        parameter.copy_(sum(share * own.get_parameter(name) for share, own in zip(shares, clients, strict=True)))


def exact(network: Any, clients: list[Any], shares: Tensor) -> None:
    """The adapters are averaged; the frozen weight takes up what the mean of products has more."""
    average(network, clients, shares)
    for name in LAYERS:
        layer = network.get_submodule(name)
        deltas = [own.get_submodule(name).get_delta_weight("default") for own in clients]
        mean = sum(share * delta for share, delta in zip(shares, deltas, strict=True))
        layer.base_layer.weight += mean - layer.get_delta_weight("default")


def test_fedexlora_is_the_mean_of_products() -> None:
    made = fitted(FedExLoRA(), AggregationError())
    expected = by_hand(exact)
    for own, other in zip(weights(made.client.network), weights(expected), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12)
    assert float(made.fitted_by.callback_metrics["adapter/aggregation_error"]) < 1e-12


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


def test_flora_puts_the_products_into_the_frozen_weights_and_begins_anew() -> None:
    """After one round, the weights are those of FedExLoRA; then A is drawn again, and B is zero."""
    made, other = fitted(FLoRA(), AggregationError(), rounds=1), fitted(FedExLoRA(), rounds=1)
    for own, expected in zip(weights(made.client.network), weights(other.client.network), strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-12)
    layer = made.client.network.get_submodule("0")
    assert not layer.lora_B["default"].weight.any()
    drawn = layer.lora_A["default"].weight
    assert not torch.equal(drawn, Adapted().network.get_submodule("0").lora_A["default"].weight)
    assert 0.2 < float(drawn.abs().max()) <= 0.5  # 1 / √4
    assert float(made.fitted_by.callback_metrics["adapter/aggregation_error"]) < 1e-12
    again = fitted(FLoRA(), rounds=1)
    assert torch.equal(again.params, made.params)


def test_other_rules_change_the_adapters_and_the_products_stay() -> None:
    """Harmonized adapters with momentum are other ones, but the weights are those of the mean of the products."""
    made = fitted(FedExLoRA(), GradientHarmonization(), FedAvgM(), rounds=1)
    plain = fitted(FedExLoRA(), rounds=1)
    for own, expected in zip(weights(made.client.network), weights(plain.client.network), strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-12)


def test_the_first_rows_of_clients_with_lower_ranks() -> None:
    """Client 1 has rank 1: what it lacks is zero; weights are the norms of the clients' products."""
    made = fitted(HetLoRA([2, 1, 2]), rounds=1)
    module = Adapted()
    products, factors = [], []
    for client in range(3):
        own = copy.deepcopy(module)
        pairs = [
            (layer.lora_A["default"].weight, layer.lora_B["default"].weight)
            for layer in map(own.network.get_submodule, LAYERS)
        ]
        optimizer = own.configure_optimizers()
        for step in range(3):
            with torch.no_grad():
                for first, second in pairs if client == 1 else ():
                    first[1:] = 0
                    second[:, 1:] = 0
            if step < 2:
                optimizer.zero_grad()
                own.training_step(examples(client), 0).backward()
                optimizer.step()
        factors.append([tensor.detach() for pair in pairs for tensor in pair])
        products.append(sum(float((second @ first).square().sum()) for first, second in pairs) ** 0.5)
    shares = torch.tensor(products) / sum(products)
    for at, name in enumerate(made.flat.names):
        order = [name for layer in LAYERS for name in (f"{layer}.lora_A", f"{layer}.lora_B")]
        place = next(place for place, known in enumerate(order) if known in name)
        mean = sum(share * own[place] for share, own in zip(shares, factors, strict=True))
        torch.testing.assert_close(made.split(made.params)[at], mean, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "module", "line"),
    [
        (FedExLoRA, Adapted(adapted=False), "FedExLoRA needs adapters of peft on linear layers, but Adapted has none"),
        (lambda: [FedExLoRA(), LocalPart(["*.lora_B.*"])], Adapted(), "a part of network.0 stays with them"),
        (lambda: HetLoRA([1, 3]), Adapted(), "ranks must be at most the adapters' rank 2, got 3"),
        (lambda: HetLoRA([]), Adapted(), r"ranks must be a list of whole numbers of at least 1, got \[\]"),
    ],
)
def test_refused(make: Callable[[], Any], module: LightningModule, line: str) -> None:
    with pytest.raises(ConfigurationError, match=line):
        rules = make()
        fitted(*(rules if isinstance(rules, list) else [rules]), module=module)


def test_parts_by_patterns() -> None:
    """FedSA-LoRA: the clients' B stay with them; the global model's are never trained."""
    made = fitted(LocalPart(["*.lora_B.*"]))
    for name, part in zip(made.flat.names, made.split(made.params), strict=True):
        assert bool(part.any()) == ("lora_A" in name)
    with pytest.raises(ConfigurationError, match=r"submodule '\*\.lora_C\.\*': did you mean lora_"):
        fitted(LocalPart(["*.lora_C.*"]))
