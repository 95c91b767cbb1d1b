"""FedGAM-CV on the toy problem: FedGAM's gradients and SCAFFOLD's control variates, which have tests of their own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rules import TinyClassifier, TinyData
from torch import Tensor
from toy import (
    Capture,
    GivenData,
    Linear,
    Normalized,
    NormalizedData,
    Same,
    Scheduled,
    close,
    send,
    train,
    trainer,
)

from fl_lightning import ClientSampler, ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedGAM, FedGAMCV, FedSAM, Scaffold
from fl_lightning.runs.checkpoints import LastCheckpoint

ROWS = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-2.0, 6.0]], dtype=torch.float64)


def variates(rule: Scaffold, clients: int = 2) -> Tensor:
    """c, c_0, c_1, …, one a row."""
    return torch.stack([rule.state["c"], *(rule.state[f"c/{k}"] for k in range(clients))])


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_round_1_is_fedgam(variant: Any) -> None:
    """There is nothing to correct yet. c_i = -Δ_i/(0.1 τ_i), τ = (2, 3)."""
    rule, capture = FedGAMCV(variant), Capture()
    assert torch.equal(train(rule, capture), train(FedGAM(variant)))
    own = -capture.cohort.deltas / torch.tensor([[0.2], [0.3]], dtype=torch.float64)
    assert close(variates(rule), torch.vstack([own.mean(0), own]))


def test_two_rounds_of_the_paper() -> None:
    """c_0 = -(0.1907269823, -0.3613047405)/0.2 = (-0.9536349115, 1.8065237026), from FedGAM's first round.

    Round 2, client 0's first coordinate from -0.5634229137: the gradients of the loss are corrected by c - c_0 =
    1.7191372272 + 0.9536349115 = 2.6727721387 and c_0⁺ is the mean of eq. 19's: -1.6251018069.
    """
    rule = FedGAMCV("paper")
    assert close(train(rule), (-0.563422913728324, -0.03748467939076475))
    ours = ((1.719137227182103, 0.4260362150668153), (-0.9536349114738587, 1.806523702585597))
    assert close(variates(rule), (*ours, (4.391909365838065, -0.9544512724519663)))
    assert close(train(rule, rounds=2), (-0.8491118234940582, -0.13817617050068248))
    ours = ((1.1269080878500302, 0.4184560513282113), (-1.625101806870466, 1.8773939732896954))
    assert close(variates(rule), (*ours, (3.8789179825705262, -1.0404818706332728)))


def test_the_correction_by_hand() -> None:
    """Released, one local step: G_i = (-2.0650831413, 4.4606485615), (12.7183432328, -2.0054678640) at 0 (FedGAM's
    tests), c_i = G_i, c their mean; w = -0.1 c. From there both clients follow G_i' + c - c_i, and c_i⁺ = G_i'.
    """
    rule, capture = FedGAMCV(), Capture()
    train(rule, capture, rounds=2, local_steps=1)
    first = torch.tensor(((-2.0650831413, 4.4606485615), (12.7183432328, -2.0054678640)), dtype=torch.float64)
    assert close(-capture.cohorts[0].deltas / 0.1, first)
    assert close(capture.cohorts[1].anchor, -0.1 * first.mean(0))
    second = -capture.cohorts[1].deltas / 0.1 - first.mean(0) + first
    assert close(variates(rule), torch.vstack([second.mean(0), second]))


def test_no_flatness_reaches_the_minimiser() -> None:
    """As Scaffold does bit for bit, when all take part: Σ A_i (w - B_i) = 0 at (-1.25, -0.4)."""
    ours = train(FedGAMCV("paper", alpha=0.0), rounds=60)
    assert close(ours, (-1.25, -0.4), 1e-6)
    assert torch.equal(ours, train(Scaffold(), rounds=60))


@pytest.mark.parametrize("sgd", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_constant_gradients_are_found_exactly(sgd: Any) -> None:
    """The gradient r_k wherever it is: FedGAM follows 2 r_k as released, 1.004 r_k as in the paper."""
    for variant, factor in (("released", 2.0), ("paper", 1.004)):
        rule, orchestrator = FedGAMCV(variant), FederatedOrchestrator(Linear(2, lr=0.1, **sgd))  # type: ignore[arg-type]
        trainer(rule, rounds=3).fit(orchestrator, datamodule=GivenData(ROWS, steps=[2, 5, 3]))
        assert close(variates(rule, 3), factor * torch.vstack([ROWS.mean(0), ROWS]))


class Turns(ClientSampler):
    """Clients 0 and 1, then 1 and 2."""

    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        return torch.tensor([0, 1] if round == 1 else [1, 2])


def test_partial_participation_divides_by_the_cohort() -> None:
    """K = 2, N = 3, α = 0, η = 1, a step each. Round 1: w = -(r_0 + r_1)/2 = (-0.5, -1.5), c = (r_0 + r_1)/2.

    Round 2: client 1 moves by -c, client 2 by -(r_2 + c): w = (-0.5, -1.5) - (0.5, 1.5) - (-1, 3) = (0, -6). c gains
    r_2/2: (-0.5, 4.5). Client 0 keeps c_0.
    """
    rule, orchestrator = FedGAMCV("paper", alpha=0.0), FederatedOrchestrator(Linear(2))
    data = GivenData(ROWS, participation=2, sampler=Turns())
    trainer(rule, rounds=2).fit(orchestrator, datamodule=data)
    assert close(orchestrator.params, (0, -6))
    assert close(variates(rule, 3), torch.vstack([torch.tensor([-0.5, 4.5]), ROWS]))


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_zero_updates_move_nothing(variant: Any) -> None:
    rule = FedGAMCV(variant)
    assert torch.equal(send([[0.0, 0.0], [0.0, 0.0]], rule)[0], torch.zeros(2, dtype=torch.float64))
    assert torch.equal(variates(rule), torch.zeros(3, 2, dtype=torch.float64))


def test_batch_norm_statistics_are_those_of_one_pass() -> None:
    """By hand in NormalizedData."""
    orchestrator = FederatedOrchestrator(Normalized())
    trainer(FedGAMCV()).fit(orchestrator, datamodule=NormalizedData())
    buffers = dict(orchestrator.client.named_buffers())
    assert close(buffers["norm.running_mean"], [0.8 / 3])
    assert close(buffers["norm.running_var"], [6.5 / 3])


class Opposed(Same):
    """Two clients with different labels for the same inputs."""

    num_clients = 2

    def client_batches(self, client: int, order: torch.Generator) -> Any:
        return iter([[x, (y + client) % 3] for x, y in super().client_batches(client, order)])


@pytest.mark.parametrize("flags", [{}, {"precision": "bf16-mixed"}])
@pytest.mark.parametrize("settings", [{}, {"gradient_clip_val": 0.1}])
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_goes_with_every_local_setting(flags: Any, settings: Any, variant: Any) -> None:
    """Neither uniform FedAvg nor FedGAM without control variates."""
    models = []
    for rule in (FedGAMCV(variant), FedGAM(variant), FedAvg("uniform")):
        orchestrator = FederatedOrchestrator(Scheduled(), on_bad_update="raise", **settings)
        trainer(rule, rounds=2, **flags).fit(orchestrator, datamodule=Opposed())
        models.append(orchestrator.params.clone())
    assert bool(models[0].isfinite().all())
    assert not torch.allclose(models[0], models[1], atol=1e-6, rtol=0)
    assert not torch.allclose(models[0], models[2], atol=1e-6, rtol=0)


def test_stop_and_resume(tmp_path: Path) -> None:
    def saved(folder: Path, rounds: int, resume: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        orchestrator, rule = FederatedOrchestrator(TinyClassifier()), FedGAMCV()
        fit = trainer(rule, LastCheckpoint(), rounds=rounds, enable_checkpointing=True, default_root_dir=folder)
        last = folder / "checkpoints" / "last.ckpt"
        fit.fit(orchestrator, datamodule=TinyData(batch_size=4, participation=0.5), ckpt_path=last if resume else None)
        return orchestrator.params.clone(), dict(rule.state)

    whole, states = saved(tmp_path / "whole", 5)
    stopped, _ = saved(tmp_path / "parts", 3)
    resumed, restored = saved(tmp_path / "parts", 5, resume=True)
    assert torch.equal(resumed, whole)
    assert not torch.equal(stopped, whole)
    assert states.keys() == restored.keys()
    assert all(torch.equal(states[name], restored[name]) for name in states)


def test_refuses_another_rule_that_looks_elsewhere() -> None:
    for other in (FedSAM(), FedGAM()):
        with pytest.raises(ConfigurationError, match="both settle where clients evaluate their gradients"):
            train(FedGAMCV(), other)


@pytest.mark.parametrize("name", ["alpha", "rho", "rho_prime"])
def test_refuses_arguments_out_of_range(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be at least 0 and finite, got nan$"):
        FedGAMCV(**{name: float("nan")})


def test_the_default_is_what_the_papers_results_come_from() -> None:
    assert FedGAMCV().gam.variant == "released"
