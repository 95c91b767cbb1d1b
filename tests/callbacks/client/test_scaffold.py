"""SCAFFOLD on the toy problem, by hand; its control variates under every kind of SGD."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command import TINY, fit_on
from rules import TinyClassifier, TinyData
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from toy import (
    ETA,
    A,
    B,
    Capture,
    GivenData,
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

from fl_lightning import (
    ClientSampler,
    ConfigurationError,
    FederatedCallback,
    FederatedDataModule,
    FederatedOrchestrator,
)
from fl_lightning.callbacks import FedAvg, FedProx, FedSAM, FocalLoss, Scaffold
from fl_lightning.runs.checkpoints import LastCheckpoint

SOLUTION = (-1.25, -0.4)
ROWS = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-2.0, 6.0]], dtype=torch.float64)


def variates(rule: Scaffold, clients: int = 2) -> Tensor:
    """c, c_0, c_1, …, one a row."""
    return torch.stack([rule.state["c"], *(rule.state[f"c/{k}"] for k in range(clients))])


def test_option_ii_round_1() -> None:
    """Nothing to correct: FedAvg. c_0 = -(0.19, -0.36)/(0.1·2), c_1 = -(-1.314, 0.28525)/(0.1·3), c is their mean."""
    rule = Scaffold()
    assert torch.equal(train(rule), train(FedAvg("uniform")))
    assert close(variates(rule), ((1.715, 1.27375 / 3), (-0.95, 1.8), (4.38, -2.8525 / 3)))


def test_option_ii_round_2() -> None:
    """Follow both clients through round 2 of T: the new variates are the means of the gradients before correction."""
    delta_0, delta_1 = torch.tensor([[0.19, -0.36], [-1.314, 0.28525]], dtype=torch.float64)  # round 1
    w, c_0, c_1 = (delta_0 + delta_1) / 2, -delta_0 / 0.2, -delta_1 / 0.3
    c = (c_0 + c_1) / 2
    g_1 = A[0] * (w - B[0])  # client 0, two steps
    x = w - 0.1 * (g_1 + c - c_0)
    g_2 = A[0] * (x - B[0])
    end_0, c_0_new = x - 0.1 * (g_2 + c - c_0), (g_1 + g_2) / 2
    g_1 = A[1] * (w - B[1])  # client 1, three steps
    x = w - 0.1 * (g_1 + c - c_1)
    g_2 = A[1] * (x - B[1])
    x = x - 0.1 * (g_2 + c - c_1)
    g_3 = A[1] * (x - B[1])
    end_1, c_1_new = x - 0.1 * (g_3 + c - c_1), (g_1 + g_2 + g_3) / 3
    c_new = (c_0_new + c_1_new) / 2
    assert [float(end_0[0]), float(end_1[0])] == pytest.approx([-0.77157, -0.923131])  # by hand, as the next line
    assert [float(v[0]) for v in (c_new, c_0_new, c_1_new)] == pytest.approx([1.12581, -1.61715, 3.86877])
    rule = Scaffold()
    assert close(train(rule, rounds=2), (end_0 + end_1) / 2)
    assert close(variates(rule), torch.stack([c_new, c_0_new, c_1_new]))


def test_option_i() -> None:
    """Follow both clients through two rounds of T: the variates are the gradients at the round's global model."""
    c_0, c_1 = A[0] * (0 - B[0]), A[1] * (0 - B[1])  # round 1, which is FedAvg's: all variates start at 0
    c = (c_0 + c_1) / 2
    rule = Scaffold("I")
    assert torch.equal(train(rule), train(FedAvg("uniform")))
    assert close(variates(rule), torch.stack([c, c_0, c_1]))
    assert close(variates(rule), ((2.5, 0.5), (-1, 2), (6, -1)))  # by hand
    w = torch.tensor([0.19 - 1.314, -0.36 + 0.28525], dtype=torch.float64) / 2
    x = w - 0.1 * (A[0] * (w - B[0]) + c - c_0)  # round 2: client 0 takes two steps
    end_0 = x - 0.1 * (A[0] * (x - B[0]) + c - c_0)
    x = w - 0.1 * (A[1] * (w - B[1]) + c - c_1)  # client 1 takes three
    x = x - 0.1 * (A[1] * (x - B[1]) + c - c_1)
    end_1 = x - 0.1 * (A[1] * (x - B[1]) + c - c_1)
    assert [float(end_0[0]), float(end_1[0])] == pytest.approx([-0.93022, -0.740266])  # by hand
    c_0, c_1 = A[0] * (w - B[0]), A[1] * (w - B[1])
    c = (c_0 + c_1) / 2
    assert close(train(rule, rounds=2), (end_0 + end_1) / 2)
    assert close(variates(rule), torch.stack([c, c_0, c_1]))
    assert close(variates(rule), ((1.376, 0.45328125), (-1.562, 1.92525), (4.314, -1.0186875)))  # by hand


def test_the_server_learning_rate() -> None:
    """η_g = 0.5: x₁ is half of (-0.562, -0.037375), c_i as ever.

    Then client 0's first coordinate, corrected by 2.665: -0.281 - 0.1(-1.281 + 2.665) = -0.4194, g = -1.4194: c_0 =
    -1.3502, the mean of the two gradients.
    """
    rule = Scaffold(server_lr=0.5)
    assert close(train(rule), (-0.281, -0.0186875))
    assert close(variates(rule)[0], (1.715, 1.27375 / 3))
    assert close(train(rule, rounds=2), (-0.483177, -0.07121744986979169))
    assert close(variates(rule)[1:], ((-1.3502, 1.9039041666666667), (4.48416, -1.0273423350694446)))


def test_a_later_rule_may_weigh_otherwise() -> None:
    """By n = (1, 3): (0.19 - 3·1.314)/4 = -0.938. The control variates do not ask how the updates are weighed."""
    rule = Scaffold()
    assert close(train(rule, FedAvg()), (-0.938, 0.1239375))
    assert close(train(rule, FedAvg(), rounds=2), (-1.05810675, -0.00889626757812502))
    ours = ((0.53549, 0.6005465668402776), (-1.97435, 2.1606291666666664), (3.04533, -0.9595360329861111))
    assert close(variates(rule), ours)


@pytest.mark.parametrize("option", ["I", "II"])
def test_reaches_the_minimiser(option: Any) -> None:
    """Σ A_i (w - B_i) = 0: w = ((1 - 6)/4, (-2 + 1)/2.5). FedAvg stalls where the clients' pulls balance."""
    assert close(train(Scaffold(option), rounds=60), SOLUTION, 1e-6)
    assert close(train(FedAvg("uniform"), rounds=60), (-1.32704, -0.14872), 1e-5)


def test_momentum_by_hand() -> None:
    """Momentum 0.9: ‖a‖₁ = 1 + 1.9 = 2.9 and 1 + 1.9 + 2.71 = 5.61. Clients end in (0.28, -0.54), (-2.556, 0.53725).

    c_i = -Δ_i/(0.1‖a_i‖₁). Round 2, client 0's first coordinate, from -1.138 with k = c - c_0: v = -2.138 + k,
    y = -1.138 - 0.1v, v' = 0.9v + (y - 1) + k, and c_0⁺ = -k + (v + v')/2.9.
    """
    rule, capture = Scaffold(), Capture()
    assert close(train(rule, momentum=0.9), (-1.138, -0.001375))
    c_0, c_1 = (-0.28 / 0.29, 0.54 / 0.29), (2.556 / 0.561, -0.53725 / 0.561)
    assert close(variates(rule)[1:], (c_0, c_1))
    k = (c_0[0] + c_1[0]) / 2 - c_0[0]
    v = -2.138 + k
    y = -1.138 - 0.1 * v
    v_2 = 0.9 * v + (y - 1) + k
    train(rule, capture, rounds=2, momentum=0.9)
    assert close(capture.params[2][:1], [y - 0.1 * v_2])
    assert close(rule.state["c/0"][:1], [-k + (v + v_2) / 2.9])


def test_reaches_the_minimiser_under_momentum() -> None:
    """12 local steps of momentum 0.9: ‖a‖₁ = 55.4. Divided by ητ instead, errors of c_i would grow by 55.4/12 - 1."""
    assert close(train(Scaffold(), rounds=200, momentum=0.9, local_steps=12), SOLUTION, 1e-6)


class Halving(Linear):
    """The learning rate is halved after each step."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@pytest.mark.parametrize("module", [Linear, Halving])
@pytest.mark.parametrize("local", [{}, {"local_lr_decay": 0.5}])
@pytest.mark.parametrize("rules", [[], [FedProx(0.3)]])
@pytest.mark.parametrize(
    "sgd", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "dampening": 0.3}]
)
def test_constant_gradients_are_found_exactly(module: Any, local: Any, rules: Any, sgd: Any) -> None:
    """Client k's gradient is r_k wherever it is: c_k = r_k after every round, whatever makes its steps."""
    rule, orchestrator = Scaffold(), FederatedOrchestrator(module(2, lr=0.1, **sgd), **local)
    data = GivenData(ROWS, steps=[2, 5, 3])
    trainer(rule, *rules, rounds=3).fit(orchestrator, datamodule=data)
    assert close(variates(rule, 3), torch.vstack([ROWS.mean(0), ROWS]))


class LateSecond(ClientSampler):
    """Client 0 alone, and from round 40 on client 1."""

    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        return torch.tensor([int(round >= 40)])


def test_a_client_drawn_for_the_first_time_in_round_40() -> None:
    """N = 2, η = 1, a step each. Round 1: w = -r_0, c_0 = r_0, c = r_0/2; both then stay, for client 0 follows r_0/2.

    After round 39 w = -r_0 - 38·r_0/2 = -20 r_0. In round 40 client 1, with c_1 = 0, follows r_1 + r_0/2, and c gains
    r_1/2.
    """
    first, second = torch.tensor([[1.0, 2.0], [-3.0, 4.0]], dtype=torch.float64)
    rule, orchestrator = Scaffold(), FederatedOrchestrator(Linear(2))
    data = GivenData(torch.stack([first, second]), participation=1, sampler=LateSecond())
    trainer(rule, rounds=40).fit(orchestrator, datamodule=data)
    assert close(orchestrator.params, -20.5 * first - second)
    assert close(rule.state["c"], (first + second) / 2)
    assert close(rule.state["c/0"], first)
    assert close(rule.state["c/1"], second)


class Turns(ClientSampler):
    """Clients 0 and 1, then 1 and 2."""

    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        return torch.tensor([0, 1] if round == 1 else [1, 2])


def test_partial_participation() -> None:
    """N = 3, η = 1, a step each, the gradients r_k. Round 1: w = -(r_0 + r_1)/2 = (-0.5, -1.5), c = (r_0 + r_1)/3.

    Round 2: client 1 moves by -(r_1 + c - r_1) = -c, client 2, new, by -(r_2 + c) = (5/3, -7): w = (-0.5, -1.5) - c -
    r_2/2 = (1/6, -5.5). c gains r_2/3. Client 0 keeps c_0.
    """
    rule, orchestrator = Scaffold(), FederatedOrchestrator(Linear(2))
    data = GivenData(ROWS, participation=2, sampler=Turns())
    trainer(rule, rounds=1).fit(orchestrator, datamodule=data)
    assert close(rule.state["c"], (1 / 3, 1))
    assert set(rule.state) == {"c", "c/0", "c/1"}
    orchestrator = FederatedOrchestrator(Linear(2))
    trainer(rule, rounds=2).fit(orchestrator, datamodule=data)
    assert close(orchestrator.params, (1 / 6, -5.5))
    assert close(variates(rule, 3), torch.vstack([ROWS.mean(0), ROWS]))


def test_clients_without_data_do_not_count() -> None:
    """N = 2, not 3: c = (r_0 + r_1)/2."""
    rule = Scaffold()
    send(-ROWS, rule, samples=[1, 1, 0])
    assert close(rule.state["c"], (0.5, 1.5))


class Spoil(FederatedCallback):
    """Client 1's update is not finite in round 2."""

    def on_client_end(self, orchestrator: Any, run: Any) -> None:
        if (run.round, run.client) == (2, 1):
            run.params.fill_(float("nan"))


def test_a_client_that_is_left_out_keeps_its_variate() -> None:
    before, after = Scaffold(), Scaffold()
    train(before)
    with pytest.warns(UserWarning, match="client 1 is left out"):
        assert bool(train(after, Spoil(), rounds=2).isfinite().all())
    assert torch.equal(after.state["c/1"], before.state["c/1"])
    assert not torch.equal(after.state["c/0"], before.state["c/0"])


class Idle(Quadratic):
    """Client 1 (A = 3, …) never has a loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch[0][0, 0] == 3 else super().training_step(batch, batch_idx)


def test_a_client_without_steps_keeps_its_variate() -> None:
    rule = Scaffold()
    trainer(rule, rounds=2).fit(FederatedOrchestrator(Idle()), datamodule=ToyData())
    assert torch.equal(rule.state["c/1"], torch.zeros(2, dtype=torch.float64))
    assert close(rule.state["c"], rule.state["c/0"] / 2)


@pytest.mark.parametrize("option", ["I", "II"])
def test_zero_updates_move_nothing(option: Any) -> None:
    rule = Scaffold(option)
    assert torch.equal(send([[0.0, 0.0], [0.0, 0.0]], rule)[0], torch.zeros(2, dtype=torch.float64))
    assert torch.equal(variates(rule), torch.zeros(3, 2, dtype=torch.float64))


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


class Decayed(Noisy):
    """Momentum and weight decay (as in Net), and half the learning rate from the third step on."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Opposed(Same):
    """Two clients with different labels for the same inputs."""

    num_clients = 2

    def client_batches(self, client: int, order: torch.Generator) -> Any:
        return iter([[x, (y + client) % 3] for x, y in super().client_batches(client, order)])


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("make", [Net, Decayed])
@pytest.mark.parametrize("flags", [{}, {"precision": "bf16-mixed"}])
@pytest.mark.parametrize("settings", [{}, {"gradient_clip_val": 0.1}, {"accumulate_grad_batches": 2}])
def test_goes_with_every_local_setting(option: Any, make: Any, flags: Any, settings: Any) -> None:
    models = []
    for rule in (Scaffold(option), FedAvg("uniform")):
        orchestrator = FederatedOrchestrator(make(), on_bad_update="raise", **settings)
        trainer(rule, rounds=2, **flags).fit(orchestrator, datamodule=Opposed())
        models.append(orchestrator.params.clone())
    assert bool(models[0].isfinite().all())
    assert not torch.allclose(*models, atol=1e-6, rtol=0)


def saved(folder: Path, rounds: int, resume: bool = False, **settings: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The tiny classifier with half the clients a round: the model and the control variates."""
    orchestrator, rule = FederatedOrchestrator(TinyClassifier(), **settings), Scaffold()
    fit = trainer(rule, LastCheckpoint(), rounds=rounds, enable_checkpointing=True, default_root_dir=folder)
    last = folder / "checkpoints" / "last.ckpt"
    fit.fit(orchestrator, datamodule=TinyData(batch_size=4, participation=0.5), ckpt_path=last if resume else None)
    return orchestrator.params.clone(), {name: rule.state[name].clone() for name in rule.state}


def test_stop_and_resume_in_memory_and_on_disk(tmp_path: Path) -> None:
    whole, states = saved(tmp_path / "whole", 6)
    assert len(states) > 4
    for where in ("memory", "disk"):
        saved(tmp_path / where, 3, client_states=where)
        resumed, restored = saved(tmp_path / where, 6, resume=True, client_states=where)
        assert torch.equal(resumed, whole)
        assert states.keys() == restored.keys()
        assert all(torch.equal(states[name], restored[name]) for name in states)
    assert not torch.equal(saved(tmp_path / "fewer", 5)[0], whole)


def test_two_devices_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes over gloo; one device keeps the states in memory, two keep them on disk. Three clients of four."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    settings = ["--data.participation", "3", "--trainer.max_epochs", "3"]
    settings += ["--trainer.callbacks+=Scaffold", "--trainer.callbacks.option=I"]
    for devices, where in ((1, "memory"), (2, "disk")):
        fit_on(devices, "--experiment", where, *settings, "--model.client_states", where)
    one, two = (tmp_path / "runs" / where / "version_0" for where in ("memory", "disk"))
    assert (one / "metrics.csv").read_text() == (two / "metrics.csv").read_text()
    states = [torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (one, two)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


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


@pytest.mark.parametrize("server_lr", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_server_lr_out_of_range(server_lr: float) -> None:
    with pytest.raises(ConfigurationError, match=f"server_lr must be positive and finite, got {server_lr}"):
        Scaffold(server_lr=server_lr)


def test_refuses_an_unknown_option() -> None:
    with pytest.raises(ConfigurationError, match="option must be 'I' or 'II', got 'III'"):
        Scaffold("III")  # type: ignore[arg-type]
