"""SCAFFOLD on the toy problem, by hand; its control variates under every kind of SGD."""

from typing import Any

import pytest
import torch
from lib.toy import (
    ETA,
    STEPS,
    A,
    B,
    Capture,
    GivenData,
    InTurn,
    Linear,
    Manual,
    Net,
    Quadratic,
    Same,
    ToyData,
    close,
    send,
    train,
    trainer,
)
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import FaultInjection, FedAvg, FedProx, FedSAM, FocalLoss, Scaffold
from fl_lightning.callbacks.client.scaffold import mean_gradient

SOLUTION = (-1.25, -0.4)
ZERO = torch.zeros(2, dtype=torch.float64)
ROWS = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-2.0, 6.0]], dtype=torch.float64)


def variates(rule: Scaffold, clients: int = 2) -> Tensor:
    """c, c_0, c_1, …, one a row."""
    return torch.stack([rule.state["c"], *(rule.state[f"c/{k}"] for k in range(clients))])


def published(
    option: str, rounds: int, momentum: float = 0.0, server_lr: float = 1.0, weighting: str = "uniform"
) -> tuple[Tensor, Tensor]:
    """Follow Algorithm 1 through rounds of T; the global model, and c, c_0, c_1. By samples, n = (1, 3)."""
    w, c, own = ZERO, ZERO, [ZERO, ZERO]
    shares = (0.25, 0.75) if weighting == "samples" else (0.5, 0.5)
    for _ in range(rounds):
        ends, renewed = [], []
        for k, steps in enumerate(STEPS):
            x, velocity, reach, unit = w, ZERO, 0.0, 0.0
            for _ in range(steps):
                velocity, unit = momentum * velocity + A[k] * (x - B[k]) + c - own[k], momentum * unit + 1
                x, reach = x - ETA * velocity, reach + ETA * unit  # how far a gradient of 1 would have gone
            ends.append(x)
            renewed.append(A[k] * (w - B[k]) if option == "I" else own[k] - c - (x - w) / reach)
        w = w + server_lr * sum(share * (end - w) for share, end in zip(shares, ends, strict=True))
        c, own = c + sum(s * (new - old) for s, new, old in zip(shares, renewed, own, strict=True)), renewed
    return w, torch.stack([c, *own])


@pytest.mark.parametrize(
    ("option", "settings", "rounds", "by_hand"),
    [
        ("II", {}, 1, (-0.562, -0.037375)),  # FedAvg: there is nothing to correct yet
        ("II", {}, 2, (-0.8473505, -0.13773849739583338)),
        ("II", {"server_lr": 0.5}, 2, (-0.483177, -0.07121744986979169)),
        ("II", {"momentum": 0.9}, 1, (-1.138, -0.001375)),
        ("II", {"momentum": 0.9}, 3, None),
        ("II", {"weighting": "samples"}, 1, (-0.938, 0.1239375)),
        ("II", {"weighting": "samples"}, 3, None),
        ("I", {}, 1, (-0.562, -0.037375)),
        ("I", {}, 2, (-0.835243, None)),
        ("I", {"momentum": 0.9}, 3, None),
    ],
)
def test_rounds_of_the_toy_problem(option: Any, settings: dict[str, Any], rounds: int, by_hand: Any) -> None:
    """Option II, round 1: c_0 = -(0.19, -0.36)/(0.1·2) = (-0.95, 1.8), c_1 = (1.314, -0.28525)/(0.1·3).

    In round 2 of option I, client 0 ends in -0.93022 and client 1 in -0.740266. Under momentum, ‖a‖₁ = 1 + 1.9 = 2.9
    and 1 + 1.9 + 2.71 = 5.61 stand for the numbers of steps.
    """
    rule = Scaffold(option, settings.get("server_lr", 1.0), settings.get("weighting", "uniform"))
    model = train(rule, rounds=rounds, momentum=settings.get("momentum", 0.0))
    w, controls = published(option, rounds, **settings)
    assert close(model, w)
    assert close(variates(rule), controls)
    for entry, expected in zip(w.tolist(), by_hand or (), strict=False):
        assert expected is None or entry == pytest.approx(expected, abs=1e-9)


def test_a_client_without_steps_keeps_its_variate() -> None:
    own = torch.tensor([2.0, -1.0])
    assert mean_gradient(common=torch.ones(2), own=own, delta=torch.zeros(2), reach=0.0).equal(own)


def test_a_later_rule_may_weigh_otherwise() -> None:
    """By n = (1, 3): (0.19 - 3·1.314)/4 = -0.938. The control variates do not ask how the updates are weighed."""
    rule = Scaffold()
    assert close(train(rule, FedAvg()), (-0.938, 0.1239375))
    assert close(train(rule, FedAvg(), rounds=2), (-1.05810675, -0.00889626757812502))
    ours = ((0.53549, 0.6005465668402776), (-1.97435, 2.1606291666666664), (3.04533, -0.9595360329861111))
    assert close(variates(rule), ours)


@pytest.mark.parametrize("option", [pytest.param("I", marks=pytest.mark.slow), "II"])
def test_reaches_the_minimiser(option: Any) -> None:
    """Σ A_i (w - B_i) = 0: w = ((1 - 6)/4, (-2 + 1)/2.5). FedAvg stalls at (-1.32704, -0.14872)."""
    assert close(train(Scaffold(option), rounds=40), SOLUTION, 1e-4)


@pytest.mark.slow
def test_reaches_the_minimiser_under_momentum() -> None:
    """12 local steps of momentum 0.9: ‖a‖₁ = 55.4. Divided by ητ instead, errors of c_i would grow by 55.4/12 - 1."""
    assert close(train(Scaffold(), rounds=200, momentum=0.9, local_steps=12), SOLUTION, 1e-6)


class Halving(Linear):
    """The learning rate is halved after each step."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@pytest.mark.parametrize(
    ("module", "local", "rules", "sgd"),
    [
        (Linear, {}, [], {}),
        (Halving, {}, [FedProx(0.3)], {"momentum": 0.9}),
        (Linear, {"local_lr_decay": 0.5}, [], {"momentum": 0.9, "nesterov": True}),
        (Halving, {"local_lr_decay": 0.5}, [FedProx(0.3)], {"momentum": 0.5, "dampening": 0.3}),
    ],
)
def test_constant_gradients_are_found_exactly(module: Any, local: Any, rules: Any, sgd: Any) -> None:
    """Client k's gradient is r_k wherever it is: c_k = r_k after every round, whatever makes its steps."""
    rule, orchestrator = Scaffold(), FederatedOrchestrator(module(2, lr=0.1, **sgd), **local)
    data = GivenData(ROWS, steps=[2, 5, 3])
    trainer(rule, *rules, rounds=3).fit(orchestrator, datamodule=data)
    assert close(variates(rule, 3), torch.vstack([ROWS.mean(0), ROWS]))


def test_partial_participation() -> None:
    """N = 3, η = 1, a step each, the gradients r_k. Round 1: w = -(r_0 + r_1)/2 = (-0.5, -1.5), c = (r_0 + r_1)/3.

    Round 2: client 1 moves by -(r_1 + c - r_1) = -c, client 2, new, by -(r_2 + c) = (5/3, -7): w = (-0.5, -1.5) - c -
    r_2/2 = (1/6, -5.5). c gains r_2/3. Client 0 keeps c_0.
    """
    rule, orchestrator = Scaffold(), FederatedOrchestrator(Linear(2))
    data = GivenData(ROWS, participation=2, sampler=InTurn([0, 1], [1, 2]))
    trainer(rule, rounds=1).fit(orchestrator, datamodule=data)
    assert close(rule.state["c"], (1 / 3, 1))
    assert set(rule.state) == {"c", "c/0", "c/1"}
    orchestrator = FederatedOrchestrator(Linear(2))
    trainer(rule, rounds=2).fit(orchestrator, datamodule=data)
    assert close(orchestrator.params, (1 / 6, -5.5))
    assert close(variates(rule, 3), torch.vstack([ROWS.mean(0), ROWS]))


def test_partial_participation_by_samples() -> None:
    """Sizes 1, 3, 4, as above but for the weights. Round 1: w = -(r_0 + 3 r_1)/4, c = (r_0 + 3 r_1)/8 = (1/8, 9/8).

    Round 2: w = -(1/4, 9/4) - c - 4 r_2/7; c gains r_2/2.
    """
    rule, orchestrator = Scaffold(weighting="samples"), FederatedOrchestrator(Linear(2))
    data = GivenData(ROWS, [1, 3, 4], participation=2, sampler=InTurn([0, 1], [1, 2]))
    trainer(rule, rounds=2).fit(orchestrator, datamodule=data)
    assert close(orchestrator.params, (-3 / 8 + 8 / 7, -27 / 8 - 24 / 7))
    assert close(variates(rule, 3), torch.vstack([torch.tensor([-7 / 8, 33 / 8]), ROWS]))


def test_clients_without_data_do_not_count() -> None:
    """N = 2, not 3: c = (r_0 + r_1)/2."""
    rule = Scaffold()
    send(-ROWS, rule, samples=[1, 1, 0])
    assert close(rule.state["c"], (0.5, 1.5))


def test_a_client_that_is_left_out_keeps_its_variate() -> None:
    before, after = Scaffold(), Scaffold()
    train(before)
    with pytest.warns(UserWarning, match="client 1 is left out"):
        assert bool(train(after, FaultInjection("nan", [1], [2]), rounds=2).isfinite().all())
    assert torch.equal(after.state["c/1"], before.state["c/1"])
    assert not torch.equal(after.state["c/0"], before.state["c/0"])


class Mean(Quadratic):
    """f(w) = mean (w - b)²/2 over the examples b."""

    def __init__(self) -> None:
        super().__init__(size=1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return ((self.w - batch[0]) ** 2 / 2).mean()


class Uneven(FederatedDataModule):
    """Examples 0, 1, 7 in batches of two: in any order, one batch holds a single example."""

    num_clients = 1

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.tensor([[0.0], [1.0], [7.0]], dtype=torch.float64))


def test_the_full_gradient_counts_every_example_once() -> None:
    """-(0 + 1 + 7)/3; batch by batch it would be -(0.5 + 7)/2, -(3.5 + 1)/2 or -(4 + 0)/2."""
    rule = Scaffold("I")
    trainer(rule).fit(FederatedOrchestrator(Mean()), datamodule=Uneven(batch_size=2))
    assert close(rule.state["c/0"], [-8 / 3])


class Noisy(Net):
    """Batch normalisation and dropout; logs its loss."""

    def between(self) -> list[nn.Module]:
        return [nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("seen", loss)
        return loss


def test_the_full_gradient_leaves_no_trace() -> None:
    """In round 1 there is nothing to correct: the same weights, statistics, dropout and logs as under option II."""
    models, captures = [], [Capture(), Capture()]
    for option, capture in zip(("I", "II"), captures, strict=True):
        models.append(FederatedOrchestrator(Noisy(), local_epochs=2))
        trainer(Scaffold(option), capture).fit(models[-1], datamodule=Same())  # type: ignore[arg-type]
    one, two = (model.state_dict() for model in models)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert captures[0].cohort.metrics == captures[1].cohort.metrics
    assert "seen" in captures[0].cohort.metrics


class Adam(Quadratic):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=ETA)


class TwoRates(Net):
    def configure_optimizers(self) -> Any:
        groups = [{"params": self.net[0].parameters()}, {"params": self.net[2].parameters(), "lr": 0.01}]
        return torch.optim.SGD(groups, lr=0.1)


def test_manual_optimization() -> None:
    """As in round 2 above."""
    orchestrator = FederatedOrchestrator(Manual())
    trainer(Scaffold(), rounds=2).fit(orchestrator, datamodule=ToyData())
    assert close(orchestrator.params, (-0.8473505, -0.13773849739583338))


def test_refuses_clients_that_train_otherwise() -> None:
    cases: Any = [
        (Adam(), ToyData(), [Scaffold()], "Scaffold needs clients that train by SGD, got Adam: let Adam use SGD"),
        (TwoRates(), Same(), [Scaffold()], r"one momentum for all .* got the pairs \[\(0.01, 0\), \(0.1, 0\)\]"),
        (Net(), Same(), [Scaffold("I"), FocalLoss()], "clients train by FocalLoss: use option II"),
        (Net(), Same(), [FedSAM(), Scaffold("I")], "clients train by FedSAM: use option II"),
        (Manual(), ToyData(), [Scaffold("I")], "clients train by manual optimization: use option II"),
    ]
    for module, data, rules, message in cases:
        with pytest.raises(ConfigurationError, match=message) as refusal:
            trainer(*rules).fit(FederatedOrchestrator(module), datamodule=data)
        assert "\n" not in str(refusal.value)


def test_option_i_takes_any_rates() -> None:
    """It reads nothing off the updates."""
    orchestrator = FederatedOrchestrator(TwoRates(), on_bad_update="raise")
    trainer(Scaffold("I"), rounds=2).fit(orchestrator, datamodule=Same())
    assert bool(orchestrator.params.isfinite().all())
