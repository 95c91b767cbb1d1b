"""MOON: the contrastive term by hand, a run against a plain loop with copies of networks, and what it keeps."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lib.toy import InTurn, close, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import MOON, FedDecorr
from fl_lightning.callbacks.client.moon import contrastive_loss

Z = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
Z_GLOBAL = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
Z_PREVIOUS = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
COHORTS = [[0, 1], [1, 2], [0, 1, 2], [0, 2]]
SIZES, LR, MOMENTUM = [4, 7, 6], 0.3, 0.5


class Small(LightningModule):
    """Batch normalization between two layers, float64."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), LR, MOMENTUM)


class Points(FederatedDataModule):
    """Three clients of random points, in two batches whose order is fixed."""

    num_clients = 3

    def __init__(self) -> None:
        super().__init__(participation=3, sampler=InTurn(*COHORTS))

    def client_dataset(self, client: int) -> Dataset[Any]:
        draw = torch.Generator().manual_seed(client)
        x = torch.randn(SIZES[client], 3, generator=draw, dtype=torch.float64)
        return TensorDataset(x, torch.randint(3, (len(x),), generator=draw))

    def client_batches(self, client: int, order: torch.Generator) -> Iterator[list[Any]]:
        data: Any = self.client_dataset(client)
        x, y = data.tensors
        return iter([[x[:2], y[:2]], [x[2:], y[2:]]])


def fit(*rules: Any) -> Any:
    """The orchestrator after some rounds of two local epochs."""
    orchestrator = FederatedOrchestrator(Small(), local_epochs=2, on_bad_update="raise")
    trainer(*rules, rounds=len(COHORTS)).fit(orchestrator, datamodule=Points())
    return orchestrator


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, 0.4553844511), (1.0, 0.5469903535)])
def test_two_examples(temperature: float, expected: float) -> None:
    """Cosines with the global and the previous features: (1/√2, 0) and (1/√2, 1/√2).

    log(1 + e^((0 - 1/√2)/T)) and log 2: T = 0.5 gives (log(1 + e^-√2) + log 2)/2 = (0.2176217 + 0.6931472)/2.
    """
    assert float(contrastive_loss(Z, Z_GLOBAL, Z_PREVIOUS, temperature)) == pytest.approx(expected, abs=1e-9)


def test_its_gradient() -> None:
    """Example 1: ∇cos(z, g) = (g/‖g‖ - cos z/‖z‖)/‖z‖ is (0, 1/√2) and (0, 1); σ(-√2)/T times their difference, halved.

    Example 2: (-1, 1)/(2√2) and (1, -1)/(2√2), σ(0) = 1/2: (1/2)(2)(1, -1)/√2, halved.
    """
    z = Z.clone().requires_grad_()
    contrastive_loss(z, Z_GLOBAL, Z_PREVIOUS, 0.5).backward()
    miss = 1 / (1 + math.exp(math.sqrt(2)))
    half = math.sqrt(0.5)
    assert close(z.grad, ((0.0, miss * (1 - half)), (half / 2, -half / 2)))  # type: ignore[arg-type]


def test_zero_features_have_no_direction() -> None:
    z = torch.zeros(1, 2, requires_grad=True)
    loss = contrastive_loss(z, torch.ones(1, 2), torch.zeros(1, 2), 0.5)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(2))
    assert z.grad is not None
    assert z.grad.isfinite().all()


def plain(mu: float, temperature: float, layer: int) -> tuple[nn.Module, dict[int, nn.Module]]:
    """MOON as a loop over copies of networks: the global one after the four rounds, and each client's last."""
    net, last, data = Small().net, {}, Points()
    for cohort in COHORTS:
        trained = []
        for client in cohort:
            local, fixed = copy.deepcopy(net).train(), [copy.deepcopy(net).eval()]
            if client in last:
                fixed.append(copy.deepcopy(last[client]).eval())
                fixed[1][1].load_state_dict({**last[client][1].state_dict(), **dict(net[1].named_buffers())})
            optimizer = torch.optim.SGD(local.parameters(), LR, MOMENTUM)
            for x, y in [*data.client_batches(client, torch.Generator())] * 2:
                z = local[:layer](x)
                loss = F.cross_entropy(local[layer:](z), y)
                if client in last:
                    near, far = (torch.cosine_similarity(z, other[:layer](x).detach()) for other in fixed)
                    loss = loss - mu * torch.log_softmax(torch.stack([near, far]) / temperature, 0)[0].mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            trained.append(local)
        last |= dict(zip(cohort, trained, strict=True))
        total = sum(SIZES[client] for client in cohort)
        with torch.no_grad():
            for name, value in net.state_dict().items():
                parts = [local.state_dict()[name] for local in trained]
                if value.is_floating_point():
                    value.copy_(sum(SIZES[c] / total * part for c, part in zip(cohort, parts, strict=True)))
                else:
                    value.copy_(torch.stack(parts).amax(0))
    return net, last


@pytest.mark.parametrize("layer", [None, "net.1"])
def test_four_rounds_are_those_of_a_plain_loop(layer: str | None) -> None:
    """Partial participation: client 2 comes late, and client 0 returns after a round without it."""
    rule = MOON(2.0, 0.7, layer)
    orchestrator = fit(rule)
    net, last = plain(2.0, 0.7, 3 if layer is None else 2)
    for name, value in net.state_dict().items():
        assert close(orchestrator.client.net.state_dict()[name], value), name
    assert rule.state.keys() == {"model/0", "model/1", "model/2"}
    for client, own in last.items():
        assert close(rule.state[f"model/{client}"], nn.utils.parameters_to_vector(own.parameters()).detach())
    assert not close(orchestrator.params, fit().params, 1e-4)


def test_rules_that_look_at_features_do_not_disturb_each_other() -> None:
    """MOON's other passes are not FedDecorr's features: the order of the two does not matter."""
    first, second = fit(MOON(), FedDecorr()), fit(FedDecorr(), MOON())
    assert close(first.params, second.params, 1e-12)
    for other in fit(MOON()), fit(FedDecorr()):
        assert not close(first.params, other.params, 1e-4)
