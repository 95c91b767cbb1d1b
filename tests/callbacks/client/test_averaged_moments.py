"""AveragedMoments beside optimizers that never stop, and by a plain loop of PyTorch."""

from typing import Any

import pytest
import torch
from lib.toy import Quadratic, trainer
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import AveragedMoments, LocalPart

LR, EPOCHS, ROUNDS = 0.01, 3, 4
SLOPES = torch.tensor([[1.0, 3.0], [2.0, 0.5], [2.0, 0.5]]).double()
POINTS = torch.tensor([[1.0, -1.0], [-2.0, 4.0], [-2.0, 4.0]]).double()


class ByAdam(Quadratic):
    """T's module, trained by an optimizer of the family of Adam."""

    def __init__(self, make: Any = torch.optim.AdamW, **settings: Any) -> None:
        super().__init__()
        self.make, self.settings = make, settings

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters(), lr=LR, **self.settings)


def trained(rule: AveragedMoments, clients: list[list[int]], make: Any = torch.optim.AdamW, **settings: Any) -> Tensor:
    """The global model after four rounds of three local epochs, each client's examples in one batch."""
    rows = TensorDataset(SLOPES, POINTS)
    data = FederatedDataModule.from_loaders(rows, num_clients=len(clients), partition=clients, batch_size=4)
    orchestrator = FederatedOrchestrator(ByAdam(make, **settings), local_epochs=EPOCHS, on_bad_update="raise")
    trainer(rule, rounds=ROUNDS).fit(orchestrator, datamodule=data)
    return orchestrator.params.clone()


def stepped(w: Tensor, rows: list[int], state: dict[str, Any] | None, make: Any, **settings: Any) -> Any:
    """The weights and the optimizer's state after three steps on some examples."""
    w = w.clone().requires_grad_()
    optimizer = make([w], lr=LR, **settings)
    if state is not None:
        optimizer.state[w] = {name: value.clone() for name, value in state.items()}
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        (SLOPES[rows] * (w - POINTS[rows]) ** 2 / 2).sum().backward()
        optimizer.step()
    return w.detach(), optimizer.state[w]


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.Adam, {"betas": (0.5, 0.9), "weight_decay": 0.3}),
        (torch.optim.SGD, {"momentum": 0.5}),
        (torch.optim.SGD, {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}),
        (torch.optim.SGD, {}),
    ],
)
def test_one_client_is_an_optimizer_that_never_stops(make: Any, settings: dict[str, Any]) -> None:
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = make([w], lr=LR, **settings)
    for _ in range(ROUNDS * EPOCHS):
        optimizer.zero_grad()
        (SLOPES * (w - POINTS) ** 2 / 2).sum().backward()
        optimizer.step()
    torch.testing.assert_close(
        trained(AveragedMoments(), [[0, 1, 2]], make, **settings), w.detach(), rtol=1e-12, atol=0
    )


def test_the_server_averages_moments_as_it_averages_models() -> None:
    """By the numbers of examples, 1 and 2."""
    w, state = torch.zeros(2, dtype=torch.float64), None
    for _ in range(ROUNDS):
        first, second = (stepped(w, rows, state, torch.optim.AdamW) for rows in ([0], [1, 2]))
        w = (first[0] + 2 * second[0]) / 3
        state = {name: (first[1][name] + 2 * second[1][name]) / 3 for name in first[1]}
    rule = AveragedMoments()
    torch.testing.assert_close(trained(rule, [[0], [1, 2]]), w, rtol=1e-12, atol=0)
    assert state is not None
    expected = torch.stack([state["exp_avg"], state["exp_avg_sq"]])
    torch.testing.assert_close(rule.state["moments"], expected, rtol=1e-12, atol=0)
    assert float(rule.state["step"]) == ROUNDS * EPOCHS


def test_a_parameter_without_a_gradient_has_no_moments() -> None:
    class Idle(ByAdam):
        def __init__(self) -> None:
            super().__init__()
            self.idle = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

    rule = AveragedMoments()
    data = FederatedDataModule.from_loaders(TensorDataset(SLOPES, POINTS), num_clients=2, batch_size=4)
    orchestrator = FederatedOrchestrator(Idle(), on_bad_update="raise")
    trainer(rule, rounds=2).fit(orchestrator, datamodule=data)
    columns = orchestrator.columns_of("idle")
    assert not rule.state["moments"][:, columns].any()
    assert torch.equal(orchestrator.params[columns], torch.ones(3).double())


def test_what_stays_with_a_client_starts_anew() -> None:
    """Of two parameters, one is the clients' own: its first step of a round is that of an optimizer just made, LR."""

    class Two(ByAdam):
        def __init__(self) -> None:
            super().__init__()
            self.own = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) + super().training_step([batch[0], batch[1] + self.own], 0)

    rule = AveragedMoments()
    data = FederatedDataModule.from_loaders(TensorDataset(SLOPES, POINTS), num_clients=2, batch_size=4)
    orchestrator = FederatedOrchestrator(Two(), on_bad_update="raise")
    trainer(LocalPart(["own"]), rule, rounds=2).fit(orchestrator, datamodule=data)
    assert not rule.state["moments"][:, orchestrator.columns_of("own")].any()
    assert rule.state["moments"][:, orchestrator.columns_of("w")].all()


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (
            torch.optim.RMSprop,
            {},
            "needs clients that train by torch's SGD, Adam or AdamW without amsgrad, got RMSprop",
        ),
        (torch.optim.AdamW, {"amsgrad": True}, "got AdamW: let ByAdam use one of these, or leave AveragedMoments out"),
    ],
)
def test_what_has_no_moments_to_average(make: Any, settings: dict[str, Any], message: str) -> None:
    data = FederatedDataModule.from_loaders(TensorDataset(SLOPES, POINTS), num_clients=2)
    with pytest.raises(ConfigurationError, match=message):
        trainer(AveragedMoments()).fit(FederatedOrchestrator(ByAdam(make, **settings)), datamodule=data)
