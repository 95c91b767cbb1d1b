"""PersonalEvaluation of clients that never train: by hand, and that the training does not know of them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from lib.command import TINY, fit, fit_on
from lib.hand_made import Row
from lib.resumed import assert_same
from lib.toy import Capture, GivenData, InTurn, Linear, trainer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fl_lightning import ConfigurationError, FederatedCallback, FederatedDataModule, FederatedOrchestrator, LocalRun
from fl_lightning.callbacks import (
    Ditto,
    FedBABU,
    FedLC,
    FedRep,
    FedRS,
    FineTuning,
    LocalPart,
    PerFedAvg,
    PersonalEvaluation,
    Scaffold,
)
from fl_lightning.models import ImageClassifier

UPDATES = torch.tensor([[2.0, 0.0], [0.0, 4.0], [-1.0, 0.0], [0.0, -2.0]], dtype=torch.float64)
POINTS = [[1.0, 0.0], [0.0, 0.0], [3.0, 2.0], [1.0, 6.0]]  # that clients hold out


class Distance(Linear):
    """Logs the squared distance of w to a point."""

    lower_is_better = ("val/error",)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/error", ((self.w - batch[0]) ** 2).sum(1).mean())


class Newcomers(GivenData):
    """Clients 0 and 1 train, clients 2 and 3 are new; a step moves w by the client's row of UPDATES."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(-UPDATES, samples=[1, 3, 1, 4], sampler=InTurn([0, 1]), **settings)
        self.num_clients, self.num_new = 2, 2

    def held_out_batches(self, client: int) -> Iterator[list[Tensor]]:
        return iter([[torch.tensor([POINTS[client]], dtype=torch.float64)]])


def logged(*rules: Any, epochs: int = 1, data: FederatedDataModule | None = None, **settings: Any) -> dict[str, float]:
    """What one round logs of new clients, without the group in front of the names of those that are fine-tuned."""
    made = trainer(*rules, PersonalEvaluation(new_epochs=epochs), logger=Row(row := {}))
    made.fit(FederatedOrchestrator(Distance(2), **settings), datamodule=data or Newcomers())
    return {name: value for name, value in row.items() if name.startswith("new")}


def test_before_and_after_by_hand() -> None:
    """The model after the round is (2 + 0, 0 + 3 · 4) / 4 = (0.5, 3). Distances to (3, 2): 6.25 + 1; to (1, 6): 9.25.

    Two epochs of one step each: client 2 ends at (-1.5, 3), which is 20.25 + 1 away; client 3 at (0.5, -1), 0.25 + 49.
    """
    found = logged(epochs=2)
    before, after = (7.25, 9.25), (21.25, 49.25)
    for group, (first, second) in (("new", before), ("new_tuned", after)):
        mean = (first + second) / 2
        expected = {"error/2": first, "error/3": second, "error_mean": mean, "error_worst": second}
        expected |= {"error": (first + 4 * second) / 5, "error_spread": (second - first) / 2}
        expected |= {"error_gini": (second - first) / 4 / mean}
        assert {name: found.pop(f"{group}/{name}") for name in expected} == pytest.approx(expected)
    assert found == {}


class Away(FederatedCallback):
    """Starts client k from (k, 0)."""

    def start(self, orchestrator: Any, client: int, params: Tensor, buffers: Any) -> Any:
        return torch.tensor([float(client), 0.0], dtype=torch.float64), buffers


class Halfway(FederatedCallback):
    """Serves a client by the mean of the global model and the one that it has kept."""

    def on_client_end(self, orchestrator: Any, run: LocalRun) -> None:
        assert self.recall(f"own/{run.client}", run.anchor) is run.anchor, "a new client is new each time"
        self.keep(run, "own", run.params)

    def personal(self, orchestrator: Any, client: int, params: Tensor, buffers: Any) -> Any:
        return (params + self.recall(f"own/{client}", params)) / 2, buffers


def test_rules_start_and_serve_new_clients() -> None:
    """(2, 0) to (3, 2): 1 + 4; a step of (-1, 0) on: 4 + 4. (3, 0) to (1, 6): 4 + 36; a step of (0, -2) on: 4 + 64.

    Halfway from (0.5, 3) to (-0.5, 3) is (0, 3), 9 + 1 from (3, 2); to (0.5, 1) is (0.5, 2), 0.25 + 16 from (1, 6).
    """
    started = logged(Away())
    assert [started[f"{group}/error/{client}"] for group in ("new", "new_tuned") for client in (2, 3)] == [5, 40, 8, 68]
    halfway = Halfway()
    served = logged(halfway)
    errors = [served[f"{group}/error/{client}"] for group in ("new", "new_tuned") for client in (2, 3)]
    assert errors == [7.25, 9.25, 10, 16.25]
    assert [*halfway.state] == ["own/0", "own/1"], "nothing of a new client stays"


def test_per_fedavg_takes_its_step() -> None:
    """The gradient is -UPDATES: half a step from (0.5, 3) leads to (0, 3) and (0.5, 2), whatever the epochs."""
    served = logged(PerFedAvg(0.5), epochs=3)
    assert [served[f"new_tuned/error/{client}"] for client in (2, 3)] == [10, 16.25]


class Fails(Newcomers):
    def client_batches(self, client: int, order: Any) -> Any:
        if client == 2:
            raise ValueError("no disk")
        return super().client_batches(client, order)


def test_a_new_client_that_fails_is_left_out() -> None:
    with pytest.warns(UserWarning, match="round 1: new client 2 is left out: .*no disk"):
        found = logged(data=Fails())
    assert found["new_tuned/error_mean"] == found["new_tuned/error/3"]


class Silent(Newcomers):
    def held_out_batches(self, client: int) -> Iterator[list[Tensor]]:
        return super().held_out_batches(client) if client < 2 else iter(())


def test_new_clients_must_hold_out() -> None:
    with pytest.raises(ConfigurationError, match="new clients hold out, but none of the 2 of Silent does: define held"):
        logged(data=Silent())
    with pytest.raises(ConfigurationError, match="new_epochs"):
        PersonalEvaluation(new_epochs=0)


class Two(nn.Module):
    """A layer below and a head, so that rules can keep the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(inputs)))  # type: ignore[no-any-return]


CLIENTS = 5


def opposed(new: int) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Two inputs, whose classes are exchanged at one client: the inputs, the classes, the rows of each client."""
    side = torch.arange(40 * CLIENTS) % 2
    owner = torch.arange(40 * CLIENTS) // 40
    inputs = (2.0 * side - 1)[:, None].repeat(1, 4)
    labels = torch.where(owner == new, 1 - side, side)
    return inputs, labels, [(owner == client).nonzero().flatten().tolist() for client in range(CLIENTS)]


def data_of(parts: list[list[int]], inputs: Tensor, labels: Tensor, **settings: Any) -> FederatedDataModule:
    whole = {"batch_size": 8, "held_out": 0.25, "participation": 0.5, **settings}
    return FederatedDataModule.from_loaders(TensorDataset(inputs, labels), partition=parts, labels=labels, **whole)


def drawn() -> int:
    """The client of five that is drawn as new, by the seed 0."""
    inputs, labels, parts = opposed(0)
    data = data_of(parts, inputs, labels, new_clients=0.2, client_names="abcde")
    data.setup("fit")
    assert data.client_names is not None
    return "abcde".index(data.client_names[data.num_clients])


def trained(data: FederatedDataModule, *rules: Any, **settings: Any) -> tuple[FederatedOrchestrator, dict[str, float]]:
    torch.manual_seed(0)
    orchestrator = FederatedOrchestrator(
        ImageClassifier(Two(), num_classes=2, optimizer=partial(torch.optim.SGD, lr=0.5)), local_epochs=2, **settings
    )
    made = trainer(*rules, rounds=3, logger=Row(row := {}))
    made.fit(orchestrator, datamodule=data)
    return orchestrator, row


@pytest.mark.parametrize(
    "rule",
    [
        None,
        lambda: LocalPart(["network.head"]),
        lambda: FedRep(["network.head"]),
        lambda: FedBABU(["network.head"]),
        FineTuning,
        lambda: Ditto(0.1),
        FedLC,
        FedRS,
        Scaffold,
    ],
)
@pytest.mark.parametrize("settings", [{}, {"clients_at_once": 2}])
def test_all_wrong_before_and_right_after(rule: Any, settings: dict[str, Any]) -> None:
    """The new client's classes are the others' exchanged. The training ends in the bits of data without this client."""
    new = drawn()
    inputs, labels, parts = opposed(new)
    rules = [] if rule is None else [rule()]
    data = data_of(parts, inputs, labels, new_clients=0.2)
    one, row = trained(data, *rules, PersonalEvaluation(new_epochs=8), **settings)
    assert row["personal/top1_mean"] == 1
    assert row["new/top1"] == row["new/top1_worst"] == row[f"new/top1/{CLIENTS - 1}"]
    if not isinstance(rules and rules[0], LocalPart | FedBABU):  # whose global head is not trained
        assert row["new/top1"] == 0
    assert row["new_tuned/top1"] == row["new_tuned/top1_worst"] == 1
    assert row["new_tuned/loss"] < row["new/loss"]
    del parts[new]
    rules = [] if rule is None else [rule()]
    other, _ = trained(data_of(parts, inputs, labels), *rules, **settings)
    assert torch.equal(one.params, other.params)
    assert one.data.fingerprint() == other.data.fingerprint()


def test_a_new_client_is_in_no_cohort_and_has_no_share() -> None:
    new = drawn()
    inputs, labels, parts = opposed(new)
    capture = Capture()
    orchestrator, row = trained(data_of(parts, inputs, labels, new_clients=0.2, participation=1.0), capture)
    assert [*capture.cohort.clients] == [0, 1, 2, 3]
    assert capture.cohort.num_samples.tolist() == [30] * 4
    assert orchestrator.data.sizes.tolist() == [30] * 4
    assert not any(name.startswith("new") for name in row)


NEW = (
    *("--data.num_clients", 10, "--data.new_clients", 0.3, "--data.held_out", 0.3, "--data.train_examples", 500),
    *("--trainer.callbacks+=Ditto", "--trainer.callbacks+=PersonalEvaluation", "--trainer.callbacks.new_epochs", 2),
)


def assert_same_runs(whole: Path, other: Path) -> None:
    assert_same(whole / "checkpoints" / "last.ckpt", other / "checkpoints" / "last.ckpt")
    first, second = (pd.read_csv(folder / "metrics.csv") for folder in (whole, other))
    columns = [name for name in first if name.startswith(("new", "val/", "held_out/"))]
    assert {"new/top1_worst", "new_tuned/top1_worst", "new_tuned/loss/9"} <= {*columns}
    pd.testing.assert_frame_equal(first[columns], second[columns], check_exact=True)


def test_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    fit("--experiment", "whole", *NEW)
    fit("--experiment", "parts", *NEW, "--trainer.max_epochs", 1)
    fit("--experiment", "parts", *NEW, "--ckpt_path", "last")
    assert_same_runs(Path("runs/whole/version_0"), Path("runs/parts/version_0"))


@pytest.mark.slow
def test_two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    for devices in 1, 2:
        fit_on(devices, "--experiment", f"on{devices}", *NEW)
    assert_same_runs(Path("runs/on1/version_0"), Path("runs/on2/version_0"))
