"""FedBuff: which model a client begins with, what its update counts, and all ways to run it."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.rules import TinyClassifier, TinyData
from lib.toy import Capture, GivenData, InTurn, Linear, close, trainer
from lib.two_devices import on_two_devices

from fl_lightning import ArrivalSampler, Availability, ConfigurationError, FederatedOrchestrator, UniformSampler
from fl_lightning.callbacks import FedAsync, FedAvg, FedBuff, FedDyn, FedProx, PCGrad
from fl_lightning.runs.folder.checkpoints import LastCheckpoint

ROWS = torch.tensor([[-1.0, 0.0], [0.0, -2.0], [-4.0, 1.0], [2.0, 2.0]]).double()


def test_stale_updates_count_less() -> None:
    """(1 + s)^-1 / 2 of each update, which does not depend on the model it began with."""
    sampler, capture, orchestrator = ArrivalSampler(busy=3, seed=3), Capture(), FederatedOrchestrator(Linear(2))
    run = trainer(FedBuff(1.0), capture, rounds=8)
    run.fit(orchestrator, datamodule=GivenData(ROWS, participation=2, sampler=sampler))
    found = [sampler.arrivals(torch.ones(4), 2, round).versions for round in range(1, 9)]
    stale = [{client: round - version for client, version in each.items()} for round, each in enumerate(found, 1)]
    assert {s for each in stale for s in each.values()} >= {0, 1, 5}
    steps = [sum(-ROWS[client] / (1 + s) / 2 for client, s in each.items()) for each in stale]
    assert close(orchestrator.params, sum(steps))
    assert float(run.callback_metrics["async/staleness"]) == sum(stale[-1].values()) / 2
    assert float(run.callback_metrics["async/time"]) == pytest.approx(sampler.arrivals(torch.ones(4), 2, 8).time)


def fit(folder: Path, *more: Any, rounds: int = 6, resume: Any = None, model: Any = None, **flags: Any) -> Any:
    orchestrator = FederatedOrchestrator(TinyClassifier(), **(model or {}))
    data = TinyData(batch_size=4, participation=2, sampler=ArrivalSampler(busy=4, seed=2))
    flags |= {"rounds": rounds, "default_root_dir": folder, "enable_checkpointing": True}
    trainer(FedBuff(), FedProx(0.1), *more, LastCheckpoint(), **flags).fit(
        orchestrator, datamodule=data, ckpt_path=resume
    )
    return orchestrator.params.clone()


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_client_begins_with_the_model_of_its_version(tmp_path: Path, at_once: int) -> None:
    """Which is its anchor, too."""
    capture = Capture()
    fit(tmp_path, capture, model={"clients_at_once": at_once})
    sampler, sizes = ArrivalSampler(busy=4, seed=2), TinyData().sizes
    models = {cohort.round: cohort.anchor for cohort in capture.cohorts}
    stale = 0
    for run in capture.runs:
        version = sampler.arrivals(sizes, 2, run.round).versions[run.client]
        assert torch.equal(run.anchor, models[version])
        stale += version < run.round
    assert stale >= 3


def test_resumed_summed_and_on_two_devices(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole")
    fit(tmp_path / "part", rounds=3)
    last = tmp_path / "part" / "checkpoints" / "last.ckpt"
    assert torch.equal(whole, fit(tmp_path / "rest", resume=last))
    assert torch.equal(whole, fit(tmp_path / "summed", model={"cohort_memory": "1KiB"}))
    found = on_two_devices(tmp_path, {"fedbuff": partial(fit, tmp_path / "two")})["fedbuff"]
    assert all(torch.equal(whole, each) for each in found), found


def test_fedasync_moves_towards_the_clients_model() -> None:
    """W ← w + ½ (1 + s)^-1 (w_k - w), where w_k is the model that the client began with plus its update."""
    sampler, capture, orchestrator = ArrivalSampler(busy=3, seed=3), Capture(), FederatedOrchestrator(Linear(2))
    run = trainer(FedAsync(0.5, 1.0), capture, rounds=8)
    run.fit(orchestrator, datamodule=GivenData(ROWS, participation=1, sampler=sampler))
    models, stale = [torch.zeros(2).double()], 0
    for round in range(1, 9):
        ((client, version),) = sampler.arrivals(torch.ones(4), 1, round).versions.items()
        own = models[version - 1] - ROWS[client]
        models.append(models[-1] + 0.5 / (1 + round - version) * (own - models[-1]))
        stale += version < round
    assert stale >= 3
    assert close(orchestrator.params, models[-1])
    with pytest.raises(ConfigurationError, match=r"alpha must be in \(0, 1\]"):
        FedAsync(0.0)


def test_one_client_at_a_time_is_never_stale() -> None:
    """As FedAvg with the same cohorts of one."""
    sampler = ArrivalSampler(busy=1)
    cohorts = InTurn(*([*sampler.arrivals(torch.ones(4), 1, round).versions] for round in range(1, 7)))
    ends = []
    for chosen, rule in ((sampler, FedBuff()), (cohorts, FedAvg())):
        orchestrator = FederatedOrchestrator(Linear(2))
        data = GivenData(ROWS, participation=1, sampler=chosen)
        trainer(rule, rounds=6).fit(orchestrator, datamodule=data)
        ends.append(orchestrator.params.clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        ({"sampler": UniformSampler()}, "got UniformSampler"),
        ({"sampler": ArrivalSampler(busy=2), "availability": Availability()}, "got ArrivalSampler and availability"),
    ],
)
def test_it_needs_to_know_when_clients_arrive(settings: dict[str, Any], got: str) -> None:
    with pytest.raises(ConfigurationError, match=got):
        trainer(FedBuff()).fit(
            FederatedOrchestrator(Linear(2)), datamodule=GivenData(ROWS, participation=2, **settings)
        )
    with pytest.raises(ConfigurationError, match="power must be at least 0"):
        FedBuff(-1.0)


@pytest.mark.parametrize("other", [PCGrad, FedDyn])
def test_weights_by_staleness_are_not_undone(other: Any) -> None:
    """A rule that averages uniformly goes before."""
    data = GivenData(ROWS, sampler=ArrivalSampler(busy=2), participation=2)
    trainer(other(), FedBuff()).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
    with pytest.raises(ConfigurationError, match=rf"undoes the weights of FedBuff .*: put {other.__name__} before it"):
        trainer(FedBuff(), other()).fit(FederatedOrchestrator(Linear(2)), datamodule=data)
