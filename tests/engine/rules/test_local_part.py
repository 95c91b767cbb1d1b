"""What stays with a client: its start, its update, its traces, and all ways to run a round with it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import Capture, GivenData, InTurn, Linear, Normalized, NormalizedData, close, trainer
from lib.two_devices import on_two_devices
from lib.two_numbers import ROWS, Two

from fl_lightning import (
    ClientFailure,
    Cohort,
    ConfigurationError,
    FederatedCallback,
    FederatedOrchestrator,
    LocalRun,
    Server,
    TrafficMonitor,
)
from fl_lightning.callbacks import FedBN, FedProx, FocalLoss, LocalPart, Scaffold, TopK
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

PART = ["own"]
pytestmark = [
    pytest.mark.filterwarnings("error:clients_at_once"),
    pytest.mark.filterwarnings("error:client . of round . trained a second time"),
]


def fit(*rules: Any, rounds: int = 2, data: Any = None, module: Any = None, **settings: Any) -> Any:
    """The global model, and the cohorts."""
    orchestrator, capture = FederatedOrchestrator(module or Two(), **settings), Capture()
    trainer(*rules, capture, rounds=rounds).fit(orchestrator, datamodule=data or GivenData(ROWS))
    return orchestrator, capture.cohorts


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_part_goes_on_where_it_was_and_the_update_is_zero_there(at_once: int) -> None:
    """In two rounds the shared number grows by (1 + 3) / 2 = 2 each, the own ones to 2 and -4."""
    rule = LocalPart(PART)
    orchestrator, cohorts = fit(rule, clients_at_once=at_once)
    assert close(orchestrator.params, [4.0, 0.0])
    assert all(close(cohort.deltas, [[1.0, 0.0], [3.0, 0.0]]) for cohort in cohorts)
    assert {name: float(value) for name, value in rule.state.items()} == {"local/0": 2.0, "local/1": -4.0}


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_pull_is_to_the_clients_own_start(at_once: int) -> None:
    """Two steps of 1 under a pull of ½: own grows by 1 and then by 1 - ½, as in every round, and never back to 0."""
    data = GivenData(ROWS, samples=[2, 2], steps=[2, 2])
    rule = LocalPart(PART)
    fit(rule, FedProx(0.5), data=data, rounds=3, clients_at_once=at_once)
    assert float(rule.state["local/0"]) == pytest.approx(3 * 1.5)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_control_variates_leave_the_part_alone(at_once: int, option: Any) -> None:
    """SCAFFOLD draws the shared number of both clients to the mean gradient, and not their own numbers.

    With option I clients send gradients of all of the model.
    """
    rule, scaffold = LocalPart(PART), Scaffold(option)
    _, cohorts = fit(rule, scaffold, rounds=2, clients_at_once=at_once)
    assert close(cohorts[1].deltas, [[2.0, 0.0], [2.0, 0.0]])
    assert {name: float(value) for name, value in rule.state.items()} == {"local/0": 2.0, "local/1": -4.0}
    assert all(float(value[1]) == 0 for value in scaffold.state.values())


class Noise(FederatedCallback):
    """Moves all of the model."""

    def update(self, orchestrator: Server, cohort: Cohort, update: Any) -> Any:
        return update + 10


def test_the_server_does_not_move_the_part() -> None:
    def optimizer(params: Any) -> Any:
        return torch.optim.SGD(params, lr=1.0, weight_decay=0.5)

    orchestrator, _ = fit(LocalPart(PART), Noise(), rounds=1, server_optimizer=optimizer)
    assert close(orchestrator.params, [12.0, 0.0])


@pytest.mark.parametrize("at_once", [1, 2])
def test_buffers_that_stay_are_neither_averaged_nor_sent(at_once: int) -> None:
    """After two rounds client 0's mean is 0.2 + 0.1 (2 - 0.2), client 1's 0.3 + 0.1 (3 - 0.3); the global one is 0."""
    rule, traffic = FedBN(), TrafficMonitor()
    data = NormalizedData(batch_size=4)
    orchestrator, _ = fit(rule, traffic, data=data, module=Normalized(), clients_at_once=at_once)
    assert float(orchestrator.client.norm.running_mean) == 0.0
    assert float(rule.state["local.norm.running_mean/0"]) == pytest.approx(0.38)
    assert float(rule.state["local.norm.running_mean/1"]) == pytest.approx(0.57)
    assert int(rule.state["local.norm.num_batches_tracked/1"]) == 2
    assert traffic.total == 2 * 2 * 2 * 4 * 8  # rounds, clients, ways, the head's four numbers


@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_client_that_is_left_out_leaves_no_trace() -> None:
    class Loses(FederatedCallback):
        def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
            if run.client == run.round == 1:
                raise ClientFailure("lost")

    rule = LocalPart(PART)
    fit(rule, Loses())
    assert {name: float(value) for name, value in rule.state.items()} == {"local/0": 2.0, "local/1": -2.0}


def test_a_client_that_has_not_taken_part_is_served_by_the_global_model() -> None:
    class Look(FederatedCallback):
        def on_round_end(self, orchestrator: Server, cohort: Cohort) -> None:
            assert orchestrator.personal_model is not None
            self.found = [orchestrator.personal_model(client)[0].tolist() for client in (0, 1)]

    look = Look()
    fit(LocalPart(PART), look, rounds=1, data=GivenData(ROWS, participation=1, sampler=InTurn([1])))
    assert look.found == [[3.0, 0.0], [3.0, -2.0]]


@pytest.mark.parametrize(
    ("name", "near"), [("net.2", "net.1|net.0"), ("nets", "net"), ("weights", r"'\*\.weight\.\*'")]
)
def test_a_name_that_the_module_lacks(name: str, near: str) -> None:
    line = rf"LocalPart: TinyClassifier has no parameter, buffer or submodule '{name}': did you mean ({near})\?"
    with pytest.raises(ConfigurationError, match=line):
        fit(LocalPart([name]), module=TinyClassifier(), data=TinyData(batch_size=4))


class Sends(FederatedCallback):
    """Changes what leaves the client: ten times as much, and two bytes."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def upload(self, orchestrator: Server, run: LocalRun, update: Any) -> Any:
        run.upload_bytes = 2
        self.keep(run, "sent", update)
        return update * self.factor + 1


@pytest.mark.parametrize("at_once", [1, 2])
def test_uploads_in_the_order_of_the_list(at_once: int) -> None:
    """1 and 3 become 10 · 1 + 1 = 11 and 31, then 2 · 11 + 1 = 23 and 63; the clients' own models stay."""

    class Last(Sends):
        """Another class, so that both may be in one list."""

    class Own(FederatedCallback):
        stacks = True

        def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
            self.keep(run, "model", run.params)

    last, own, traffic = Last(2), Own(), TrafficMonitor()
    rows = torch.tensor([[-1.0], [-3.0]], dtype=torch.float64)
    orchestrator, _ = fit(
        own, Sends(10), last, traffic, rounds=1, module=Linear(1), data=GivenData(rows), clients_at_once=at_once
    )
    assert close(orchestrator.params, [43.0])
    assert [float(last.state[f"sent/{k}"]) for k in (0, 1)] == [11.0, 31.0]
    assert [float(own.state[f"model/{k}"]) for k in (0, 1)] == [1.0, 3.0]
    assert traffic.total == 2 * 8 + 2 * 2


class Losses(FederatedCallback):
    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        self.keep(run, "loss", orchestrator.client_loss(run.client, torch.full_like(run.anchor, 2.0)))


def test_the_loss_of_a_clients_examples_anywhere() -> None:
    """At 2: 2 · (-1 - 1) + ½ and 2 · (-3 + 2) + ½; the clients go on as without it."""
    rule, data = Losses(), GivenData(ROWS, losses=[0.5, 0.5])
    orchestrator, _ = fit(rule, rounds=1, data=data)
    assert [float(rule.state[f"loss/{k}"]) for k in (0, 1)] == [-3.5, -1.5]
    assert close(orchestrator.params, [2.0, -0.5])


def classifiers(folder: Path, rounds: int = 4, resume: bool = False, states: Any = "memory", **flags: Any) -> Any:
    """Four rounds of four of six clients, with BatchNorm and the bias at home, a compressed rest, and a pull.

    Returns:
        The model, and what is kept.
    """
    rules: list[FederatedCallback] = [LocalPart(["net.1.bias"]), FedBN(), TopK(0.4), FedProx(0.1)]
    orchestrator = FederatedOrchestrator(TinyClassifier(), on_bad_update="raise", client_states=states)
    last = folder / "checkpoints" / "last.ckpt" if resume else None
    saving = {"default_root_dir": folder, "enable_checkpointing": True}
    data = TinyData(batch_size=4, participation=4, clients_per_batch=2)
    trainer(*rules, LastCheckpoint(), rounds=rounds, **saving, **flags).fit(
        orchestrator, datamodule=data, ckpt_path=last
    )
    kept = {f"{rule.state_key}/{name}": rule.state[name].clone() for rule in rules for name in rule.state}
    return orchestrator.params.clone(), dict(sorted(kept.items()))


def same(one: Any, other: Any) -> bool:
    kept = zip(one[1].items(), other[1].items(), strict=True)
    return torch.equal(one[0], other[0]) and all(a == b and torch.equal(x, y) for (a, x), (b, y) in kept)


@pytest.mark.parametrize("states", ["memory", "disk"])
def test_resumed_and_on_disk(states: str, tmp_path: Path) -> None:
    whole = classifiers(tmp_path / "whole")
    classifiers(tmp_path / "parts", rounds=2, states=states)
    resumed = classifiers(tmp_path / "parts", resume=True, states=states)
    assert len(whole[1]) >= 6
    assert same(whole, resumed)


def test_two_devices_end_in_the_bits_of_one(tmp_path: Path) -> None:
    jobs = {
        states: lambda states=states, **flags: classifiers(tmp_path / states, states=states, **flags)
        for states in ("memory", "disk")
    }
    found = on_two_devices(tmp_path, jobs)
    whole = classifiers(tmp_path / "whole")
    for states in ("memory", "disk"):
        for end in found[states]:
            assert not isinstance(end, str), end
            assert same(whole, end)


def test_two_rules_that_replace_the_loss() -> None:
    class Other(FocalLoss):
        """Another rule that does so."""

    with pytest.raises(ConfigurationError, match="both replace the training loss; keep one"):
        fit(FocalLoss(), Other())
