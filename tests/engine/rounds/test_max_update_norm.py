"""Updates that are finite but absurd: who is left out by max_update_norm, and how those left out are counted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lib.command import rows
from lib.rules import SERVER_RULES, TinyClassifier, TinyData
from lib.toy import Capture, GivenData, Linear, close, trainer
from torch import nn

from fl_lightning import ClientFailure, ConfigurationError, FederatedCallback, FederatedOrchestrator, LocalRun, Server
from fl_lightning.runs.folder.run_folder import RunFolder

NAN = float("nan")


def kept(norms: list[float], limit: float | None) -> tuple[int, ...]:
    """The clients that count in a round in which client k sends (norms[k], 0)."""
    updates = torch.tensor([[norm, 0.0] for norm in norms], dtype=torch.float64)
    orchestrator, capture = FederatedOrchestrator(Linear(2), max_update_norm=limit), Capture()
    trainer(capture).fit(orchestrator, datamodule=GivenData(-updates))
    assert close(orchestrator.params, updates[list(capture.cohort.clients)].mean(0))
    return capture.cohort.clients


@pytest.mark.filterwarnings("ignore:.*left out")
def test_the_limit_is_a_multiple_of_the_median_norm() -> None:
    """Norms 1, 2, 3, 40, 50: the median is 3, and ten times that is 30; exactly the limit is allowed."""
    norms = [50.0, 1.0, 3.0, 2.0, 40.0]
    assert kept(norms, None) == kept(norms, 20) == (0, 1, 2, 3, 4)
    assert kept(norms, 10) == (1, 2, 3)
    assert kept([50.0, 1.0, 3.0, 2.0, 30.0], 10) == (1, 2, 3, 4)
    assert kept([1.0, 1e300], 10) == (0,)  # of two, the lower one is the median; the larger one's norm overflows


def test_nobody_is_left_out_where_most_send_nothing() -> None:
    assert kept([0.0, 0.0, 5.0], 10) == (0, 1, 2)


def test_the_message_names_client_and_norms() -> None:
    said = "round 1: client 1 is left out: the norm of its update is 50, more than 10 times the median, 2"
    with pytest.warns(UserWarning, match=said):
        kept([1.0, 50.0, 2.0], 10)
    orchestrator = FederatedOrchestrator(Linear(1), max_update_norm=10, on_bad_update="raise")
    with pytest.raises(RuntimeError, match=r"client 1 is left out: the norm of its update is 50"):
        trainer().fit(orchestrator, datamodule=GivenData(torch.tensor([[1.0], [50.0]], dtype=torch.float64)))


@pytest.mark.parametrize("limit", [0.5, -1.0, NAN])
def test_limits_below_the_median_are_refused(limit: float) -> None:
    with pytest.raises(ConfigurationError, match=f"max_update_norm must be at least 1, .*, got {limit}"):
        FederatedOrchestrator(Linear(1), max_update_norm=limit)


class Fails(FederatedCallback):
    """Client 0 raises in round 1, client 1 sends nan in round 1, client 2 something huge in rounds 1 and 3."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        match run.client, run.round:
            case 0, 1:
                raise ClientFailure("lost")
            case 1, 1:
                run.params.fill_(NAN)
            case 2, 1 | 3:
                run.params.fill_(1e9)


def test_all_who_are_left_out_are_counted(tmp_path: Path) -> None:
    orchestrator, folder = FederatedOrchestrator(Linear(1), max_update_norm=5), RunFolder(tmp_path)
    data = GivenData(torch.ones(6, 1, dtype=torch.float64))
    with pytest.warns(UserWarning, match=r"updates left out in this fit: 4, in 2 of 3 rounds \(see clients/quar"):
        trainer(Fails(), rounds=3, logger=folder).fit(orchestrator, datamodule=data)
    assert [row["clients/quarantined"] for row in rows(Path(folder.log_dir, "metrics.csv"))] == [3, 0, 1]
    assert close(orchestrator.params, [-3.0])


class Absurd(FederatedCallback):
    """Client 3 sends a finite update whose square is not."""

    def on_client_end(self, orchestrator: Server, run: LocalRun) -> None:
        if run.client == 3:
            run.params.fill_(1e300)


def loss_with_absurd_client(rule: Any, limit: float | None) -> float:
    """Loss of the tiny classifier on the proxy set after two rounds, in evaluation mode."""
    orchestrator = FederatedOrchestrator(TinyClassifier(), max_update_norm=limit)
    data = TinyData(batch_size=4, clients_per_batch=6)
    trainer(Absurd(), rule, rounds=2).fit(orchestrator, datamodule=data)
    x, y = data.proxy_dataloader().dataset.tensors  # type: ignore[attr-defined]  # a TensorDataset
    return float(nn.functional.cross_entropy(orchestrator.client.eval()(x), y))  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("name", ["FedAvg", "GradientHarmonization", "CoordinateMedian"])
def test_one_absurd_client_does_not_spoil_a_rule(name: str) -> None:
    assert loss_with_absurd_client(SERVER_RULES[name](), limit=10) < 10


def test_without_a_limit_one_absurd_client_spoils_the_average() -> None:
    assert not loss_with_absurd_client(SERVER_RULES["FedAvg"](), limit=None) < 10
