"""FedSMOO on the toy problem, in its released form."""

from pathlib import Path
from typing import Any

import pytest
import torch
from command import fit_on
from resumed import assert_same, tensors
from resumed import train as train_digits
from torch import Tensor
from toy import (
    A,
    B,
    Capture,
    Net,
    Normalized,
    NormalizedData,
    Quadratic,
    Same,
    Scheduled,
    ToyData,
    close,
    send,
    train,
    trainer,
)

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedDyn, FedSAM, FedSMOO
from fl_lightning.engine.federation.sampling import ClientSampler
from fl_lightning.runs.checkpoints import LastCheckpoint

ROUNDS = [  # w, s, μ₀, μ₁, h₀, h₁
    (
        (-1.1644200833513647, -0.10373693086501701),
        (0.08806390225519063, 0.047378594060777594),
        (-0.09469235624992053, 0.17606198613281981),
        (0.29099605539470375, -0.07045011752110944),
        (0.19797730069194208, -0.3894558031923643),
        (-1.3623973840433068, 0.2857188723273473),
    ),
    (
        (-1.8914506821378052, -0.1930751714179216),
        (-0.06598926731952122, -0.07513587829134324),
        (-0.43477484782548204, 0.19577790560416317),
        (0.27374713957931796, -0.37912527071028473),
        (0.6188167418660154, -0.7237712474397665),
        (-1.9280573823281384, 0.5825645414543534),
    ),
]


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_toy_problem(rounds: int) -> None:
    """Follow T through one and two rounds; the released code adds 1e-7 to the norms of d and of the mean μ."""
    eta, penalty, r = 0.1, 0.1, 0.1
    w = s = h_0 = h_1 = mu_0 = mu_1 = torch.zeros(2, dtype=torch.float64)

    def step(client: int, x: Tensor, mu: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        g = A[client] * (x - B[client])
        d = g - mu - s
        s_hat = r * d / (d.norm() + 1e-7)
        return x - eta * (g + A[client] * s_hat + penalty * (h + x - w)), mu + s_hat - s

    first, mu_first = step(0, w, mu_0, h_0)  # g = (-1, 2), of norm √5
    assert close(first, (0.10447214, -0.21788854), 1e-8)  # by hand, as the next line
    assert close(mu_first, (-0.04472136, 0.08944272), 1e-8)
    for _ in range(rounds):
        x_0, mu_0 = step(0, *step(0, w, mu_0, h_0), h_0)
        x_1, mu_1 = step(1, *step(1, *step(1, w, mu_1, h_1), h_1), h_1)
        h_0, h_1 = h_0 + x_0 - w, h_1 + x_1 - w
        mu_mean = (mu_0 + mu_1) / 2
        s = r * mu_mean / (mu_mean.norm() + 1e-7)
        w = (x_0 + x_1) / 2 + (h_0 + h_1) / 2
    assert close(torch.stack([w, s, mu_0, mu_1, h_0, h_1]), ROUNDS[rounds - 1])
    rule = FedSMOO(penalty, r)
    assert close(train(rule, rounds=rounds), w)
    assert close(rule.state["s"], s)
    assert close(torch.stack([rule.state["mu/0"], rule.state["mu/1"]]), torch.stack([mu_0, mu_1]))
    # The rule keeps FedDyn's variables, -0.1 h.
    assert close(-10 * torch.stack([rule.state["lambda/0"], rule.state["lambda/1"]]), torch.stack([h_0, h_1]))
    assert close(-10 * rule.state["h"], (h_0 + h_1) / 2)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_perturbation_it_is_feddyn_bit_for_bit(momentum: float) -> None:
    rule = FedSMOO(0.3, 0.0)
    assert torch.equal(train(rule, rounds=3, momentum=momentum), train(FedDyn(0.3), rounds=3, momentum=momentum))
    assert rule.state.keys() == {"lambda/0", "lambda/1", "h"}


def test_each_term_changes_the_result() -> None:
    neither = train(FedAvg("uniform"), rounds=2)
    results = torch.stack([neither, *(train(FedSMOO(p, r), rounds=2) for p, r in ((0.1, 0.0), (0.3, 0.0), (0.1, 0.1)))])
    assert float(torch.pdist(results).min()) > 1e-3


def test_at_first_the_perturbation_is_that_of_fedsam() -> None:
    """One local step of round 1: μ = s = 0, d = g. From the second round on they differ.

    FedSAM and FedDyn together are FedSpeed as released, whose perturbation has no μ and s.
    """
    one = train(FedSMOO(0.1, 0.1), local_steps=1)
    assert close(one, train(FedSAM(0.1), FedDyn(0.1), local_steps=1), 1e-7)
    two = train(FedSMOO(0.1, 0.1), local_steps=1, rounds=2)
    assert not close(two, train(FedSAM(0.1), FedDyn(0.1), local_steps=1, rounds=2), 1e-4)


class InTurn(ClientSampler):
    """Client 0 twice, then client 1."""

    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        return torch.tensor([[0], [0], [1]][round - 1])


def test_partial_participation() -> None:
    """Client 0 keeps its states when it is not drawn; client 1 begins with μ = λ = 0, but with the s of the day.

    s is along the one μ of the round; norms gain 1e-7. Client 1 takes one step: d = g - s, μ = ŝ - s.
    """
    runs = {}
    for rounds in (2, 3):
        orchestrator, rule, capture = FederatedOrchestrator(Quadratic(), local_steps=1), FedSMOO(), Capture()
        data = ToyData(participation=1, sampler=InTurn())
        trainer(rule, capture, rounds=rounds).fit(orchestrator, datamodule=data)
        runs[rounds] = rule.state, capture.cohort, orchestrator.params.clone()
    (before, _, start), (after, cohort, end) = runs[2], runs[3]
    assert before.keys() == {"lambda/0", "mu/0", "h", "s"}
    assert close(before["s"], 0.1 * before["mu/0"] / (before["mu/0"].norm() + 1e-7))
    for name in ("lambda/0", "mu/0"):
        assert torch.equal(after[name], before[name])
    a, b = torch.tensor([[3.0, 0.5], [-2.0, 2.0]], dtype=torch.float64)
    d = a * (start - b) - before["s"]
    step = 0.1 * d / (d.norm() + 1e-7)
    assert close(after["mu/1"], step - before["s"])
    assert close(cohort.deltas[0], -0.1 * a * (start + step - b))
    assert close(after["lambda/1"], -0.1 * cohort.deltas[0])
    assert close(after["s"], 0.1 * after["mu/1"] / (after["mu/1"].norm() + 1e-7))
    assert close(end, start + cohort.deltas[0] - 10 * after["h"])


def test_zero_gradients_leave_everything_at_zero() -> None:
    rule = FedSMOO()
    assert torch.equal(send([[0.0, 0.0]] * 2, rule)[0], torch.zeros(2, dtype=torch.float64))
    assert {"mu/0", "mu/1", "s", "h"} <= rule.state.keys()
    assert all(not value.any() for value in rule.state.values())


def test_batch_norm_statistics_are_those_of_one_pass() -> None:
    """By hand in NormalizedData: (0.8/3, 6.5/3) after one batch each."""
    orchestrator = FederatedOrchestrator(Normalized())
    trainer(FedSMOO()).fit(orchestrator, datamodule=NormalizedData())
    buffers = dict(orchestrator.client.named_buffers())
    assert close(buffers["norm.running_mean"], [0.8 / 3])
    assert close(buffers["norm.running_var"], [6.5 / 3])
    assert int(buffers["norm.num_batches_tracked"]) == 1


def test_stop_and_resume_with_half_the_clients(tmp_path: Path) -> None:
    """Batch normalisation, dropout, server momentum, half of the clients a round: as uninterrupted, states included."""
    whole, uninterrupted, resumed = train_digits(tmp_path / "a", rule := FedSMOO(), rounds=4), rule.state, FedSMOO()
    stopped = train_digits(tmp_path / "b", FedSMOO(), rounds=2)
    assert_same(whole, train_digits(tmp_path / "b", resumed, rounds=4, resume=stopped))
    assert uninterrupted.keys() == resumed.state.keys()
    assert all(torch.equal(uninterrupted[name], resumed.state[name]) for name in uninterrupted)


def on_toy(folder: Path, rounds: int, states: Any, resume: Path | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """One client a round, with the clients' states in memory or on disk; the model and the rule's state."""
    orchestrator, rule = FederatedOrchestrator(Quadratic(), client_states=states), FedSMOO()
    flags: dict[str, Any] = {"default_root_dir": folder, "enable_checkpointing": True}
    run = trainer(rule, LastCheckpoint(), rounds=rounds, **flags)
    run.fit(orchestrator, datamodule=ToyData(participation=1), ckpt_path=resume)
    return orchestrator.params.clone(), {name: rule.state[name].clone() for name in rule.state}


def test_stop_and_resume_on_disk(tmp_path: Path) -> None:
    """The same as in memory, uninterrupted."""
    model, state = on_toy(tmp_path / "a", 6, "memory")
    on_toy(tmp_path / "b", 3, "disk")
    resumed, on_disk = on_toy(tmp_path / "b", 6, "disk", tmp_path / "b/checkpoints/last.ckpt")
    assert list((tmp_path / "b/states/FedSMOO/mu").glob("*.safetensors"))
    assert torch.equal(model, resumed)
    assert state.keys() == on_disk.keys() == {"lambda/0", "lambda/1", "mu/0", "mu/1", "h", "s"}
    assert all(torch.equal(state[name], on_disk[name]) for name in state)


def test_two_devices_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes over gloo; a cohort of 3 of the 5 clients leaves one device a place without a client."""
    monkeypatch.chdir(tmp_path)
    settings = ["--data.num_clients", "5", "--data.participation", "3", "--trainer.max_epochs", "3"]
    settings += ["--data.clients_per_batch", "1", "--data.partition.alpha", "1.0", "--data.batch_size", "50"]
    for devices in 1, 2:
        fit_on(devices, "--experiment", f"on{devices}", *settings, config="rules/fedsmoo.yaml")
    one, two = (tmp_path / "runs" / f"on{devices}" / "version_0/checkpoints/last.ckpt" for devices in "12")
    assert_same(one, two)
    first, second = (tensors(torch.load(path, weights_only=True)["callbacks"]["FedSMOO"]) for path in (one, two))
    assert first.keys() == second.keys()
    assert any("mu/" in name for name in first)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("make", [Net, Scheduled])
@pytest.mark.parametrize("flags", [{}, {"precision": "bf16-mixed"}])
@pytest.mark.parametrize("settings", [{}, {"gradient_clip_val": 0.1}])
def test_goes_with_every_local_setting(make: Any, flags: Any, settings: Any) -> None:
    models = []
    for rules in ([FedSMOO()], []):
        orchestrator = FederatedOrchestrator(make(), local_epochs=2, on_bad_update="raise", **settings)
        trainer(*rules, rounds=2, **flags).fit(orchestrator, datamodule=Same())
        models.append(orchestrator.params.clone())
    assert bool(models[0].isfinite().all())
    assert not torch.allclose(*models, atol=1e-4)


def test_refuses_another_rule_that_moves_the_gradient() -> None:
    with pytest.raises(ConfigurationError, match="FedSMOO and FedSAM do not go together"):
        train(FedSMOO(), FedSAM())


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize(("name", "range"), [("penalty", "positive"), ("rho", "at least 0")])
def test_refuses_arguments_out_of_range(name: str, range: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be {range} and finite, got {value}"):
        FedSMOO(**{name: value})
