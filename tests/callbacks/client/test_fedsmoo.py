"""FedSMOO on the toy problem, in its released form."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lib.command import fit_on
from lib.resumed import assert_same, tensors
from lib.toy import A, B, Capture, InTurn, Quadratic, ToyData, close, train, trainer
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import FedAvg, FedDyn, FedSAM, FedSMOO


@pytest.mark.parametrize(
    ("rounds", "by_hand"),
    [(1, (-1.1644200833513647, -0.10373693086501701)), (2, (-1.8914506821378052, -0.1930751714179216))],
)
def test_the_toy_problem(rounds: int, by_hand: Any) -> None:
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
    assert close(w, by_hand)
    rule = FedSMOO(penalty, r)
    assert close(train(rule, rounds=rounds), w)
    assert close(rule.state["s"], s)
    assert close(torch.stack([rule.state["mu/0"], rule.state["mu/1"]]), torch.stack([mu_0, mu_1]))
    # The rule keeps FedDyn's variables, -0.1 h.
    assert close(-10 * torch.stack([rule.state["lambda/0"], rule.state["lambda/1"]]), torch.stack([h_0, h_1]))
    assert close(-10 * rule.state["h"], (h_0 + h_1) / 2)


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


def test_partial_participation() -> None:
    """Client 0 keeps its states when it is not drawn; client 1 begins with μ = λ = 0, but with the s of the day.

    s is along the one μ of the round; norms gain 1e-7. Client 1 takes one step: d = g - s, μ = ŝ - s.
    """
    runs = {}
    for rounds in (2, 3):
        orchestrator, rule, capture = FederatedOrchestrator(Quadratic(), local_steps=1), FedSMOO(), Capture()
        data = ToyData(participation=1, sampler=InTurn([0], [0], [1]))
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


@pytest.mark.slow
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
