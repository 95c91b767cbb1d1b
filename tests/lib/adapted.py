"""Adapters on a network of two layers in float64: three clients, and a loop that trains them by hand."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.models.adapters import adapt_network
from lib.toy import trainer

SIZES, RANK, LR, ROUNDS = (3, 6, 9), 2, 0.3, 3
LAYERS = ("0", "2")


class Adapted(LightningModule):
    """Two linear layers in float64, with adapters."""

    def __init__(self, freeze: tuple[str, ...] = (), adapted: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        if adapted:
            adapt_network(self.network, "", adapt="lora", rank=RANK, targets=LAYERS, freeze=freeze)

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


def fitted(
    *rules: Callback,
    module: LightningModule | None = None,
    rounds: int = ROUNDS,
    resume: Path | None = None,
    **settings: Any,
) -> Any:
    made = FederatedOrchestrator(module or Adapted(), on_bad_update="raise", local_epochs=2)
    made.fitted_by = trainer(*rules, rounds=rounds, **settings)
    made.fitted_by.fit(made, datamodule=Data(), ckpt_path=resume)
    return made


def weights(network: Any) -> list[Tensor]:
    """The weights that the layers have in effect: frozen and adapters' together."""
    return [
        (
            network.get_submodule(name).base_layer.weight + network.get_submodule(name).get_delta_weight("default")
        ).detach()
        for name in LAYERS
    ]


def put_in(network: nn.Module, layers: list[str], name: str = "default", rank: int = RANK, **settings: Any) -> None:
    """Let peft put adapters into layers of a network."""
    inject_adapter_in_model(LoraConfig(r=rank, target_modules=layers, **settings), network, name)


def trained_once(module: Any) -> list[Any]:
    """Train the networks of the three clients for a round."""
    networks = []
    for client in range(3):
        own = copy.deepcopy(module)
        optimizer = own.configure_optimizers()
        for _ in range(2):
            optimizer.zero_grad()
            own.training_step(examples(client), 0).backward()
            optimizer.step()
        networks.append(own.network)
    return networks


def by_hand(server: Callable[[Any, list[Any], Tensor], None]) -> Any:
    """Train the adapters of the three clients; ``server`` makes a global network of theirs, in place."""
    module = Adapted()
    shares = torch.tensor(SIZES).double() / sum(SIZES)
    for _ in range(ROUNDS):
        clients = trained_once(module)
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
