"""TrafficMonitor: bytes counted by hand on modules of a few numbers of eight bytes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lib.command import TINY, fit_on, rows
from lib.rules import CLIENT_RULES, PERSONAL, SERVER_RULES, TinyClassifier, TinyData
from lib.toy import Normalized, NormalizedData, Quadratic, ToyData, train, trainer
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn

from fl_lightning import ClientSampler, FederatedCallback, FederatedDataModule, FederatedOrchestrator, TrafficMonitor
from fl_lightning.callbacks import Scaffold
from fl_lightning.runs.folder.run_folder import RunFolder

RUN = Path("runs", "tiny", "version_0")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


def sent(
    *callbacks: Callback,
    module: LightningModule | None = None,
    data: FederatedDataModule | None = None,
    rounds: int = 1,
) -> list[tuple[float, ...]]:
    """Bytes down, up and in total, after each round; by default two clients with two parameters of eight bytes."""
    run = trainer(TrafficMonitor(), *callbacks, logger=(folder := RunFolder()), rounds=rounds)
    run.fit(FederatedOrchestrator(module or Quadratic()), datamodule=data or ToyData())
    return numbers(Path(folder.log_dir))


def numbers(folder: Path) -> list[tuple[float, ...]]:
    return [tuple(row[f"bytes/{name}"] for name in ("down", "up", "total")) for row in rows(folder / "metrics.csv")]


def test_fedavg_sends_the_parameters_to_each_client_and_back() -> None:
    """2 clients · 2 parameters · 8 bytes = 32 each way and round."""
    assert sent(rounds=3) == [(32, 32, 64), (32, 32, 128), (32, 32, 192)]


def test_scaffold_also_sends_down_its_control_variate() -> None:
    """Zero in round 1, c is sent from then on; the server reads the clients' variates off their updates."""
    assert sent(Scaffold(), rounds=3) == [(32, 32, 64), (64, 32, 160), (64, 32, 256)]


def test_what_rules_send_counts() -> None:
    """Option I of SCAFFOLD: every client's full gradient, beside its update."""
    assert sent(Scaffold(option="I"), rounds=2) == [(32, 64, 96), (64, 64, 224)]


class Adapted(Quadratic):
    """The two parameters beside a hundred frozen ones, and a buffer that nobody changes."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(10, 10).requires_grad_(False)
        self.register_buffer("mask", torch.ones(7))


class Teacher(Quadratic):
    """Its two frozen parameters follow the trained ones: 16 bytes more, each way."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Parameter(torch.zeros(2, dtype=torch.float64), requires_grad=False)

    def on_train_batch_end(self, *_: Any) -> None:
        self.teacher += self.w.detach()


def test_frozen_parameters_are_sent_only_if_they_move() -> None:
    assert sent(module=Adapted(), rounds=2) == [(32, 32, 64), (32, 32, 128)]
    assert sent(module=Teacher(), rounds=2) == [(64, 64, 128), (64, 64, 256)]


def test_buffers_are_sent_both_ways() -> None:
    """Two weights and biases of the normalisation, two and two of the head: 6 · 8 bytes. Mean, variance and an integer
    count: 3 · 8. Two clients: 2 · 72.
    """
    data = NormalizedData(batch_size=4)
    assert sent(module=Normalized(), data=data, rounds=2) == [(144, 144, 288), (144, 144, 576)]


class Failing(Quadratic):
    """Client 0, the one of a single example, fails in round 2."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if self.trainer.lightning_module.round == 2 and float(batch[0].sum()) == 3.0:  # type: ignore[operator]
            raise ValueError("lost")
        return super().training_step(batch, batch_idx)


class OnlyFirst(ClientSampler):
    def draw(self, sizes: Tensor, num_clients: int, round: int, generator: torch.Generator) -> Tensor:
        return torch.tensor([0])


@pytest.mark.filterwarnings("ignore:round 2")
def test_a_client_that_fails_has_received_and_sends_nothing() -> None:
    """In round 2: one of two clients, then the only one, so that the round is skipped."""
    assert sent(module=Failing(), rounds=3) == [(32, 32, 64), (32, 16, 112), (32, 32, 176)]
    alone = sent(module=Failing(), data=ToyData(participation=1, sampler=OnlyFirst()), rounds=3)
    assert alone == [(16, 16, 32), (16, 0, 48), (16, 16, 80)]


# How many times the model goes down and up in round 2, with what rules add.
TRAFFIC = {"Scaffold": (2, 1), "FedGAMCV": (2, 1), "FedSMOO": (2, 2), "FedCM": (2, 1)}
TRAFFIC["MoFedSAM"] = (2, 1)
TRAFFIC["AveragedMoments"] = (24 / 23, 24 / 23)  # the number of steps: SGD without momentum has no moments
TRAFFIC |= dict.fromkeys(("AFL", "FAMO", "FedLF", "QFedAvg"), (1, 24 / 23))  # a loss beside 23 numbers


@pytest.mark.parametrize("name", [*CLIENT_RULES, *SERVER_RULES, *PERSONAL])
def test_multiples_of_the_model_by_rule(name: str) -> None:
    """Round 2 of all shipped rules, as docs/reference/measures.md says.

    There are 23 parameters, of which the rules make multiples, and buffers of 4 + 4 + 1 numbers, both ways for six
    clients. The last layer has 15, BatchNorm 8.
    """
    down, up = TRAFFIC.get(name, (1, 1))
    stay = {"LocalPart": 15, "FedBN": 8 + 9}.get(name, 0)
    rule = (CLIENT_RULES | SERVER_RULES | PERSONAL)[name]()
    *_, last = sent(rule, module=TinyClassifier(), data=TinyData(batch_size=4), rounds=2)
    assert last[:2] == (6 * (23 * down + 9 - stay) * 8, 6 * (23 * up + 9 - stay) * 8)


class Broadcasting(FederatedCallback):
    """Sends down three numbers of four bytes, which are in its state from the start."""

    broadcasts = ("hint",)

    def on_train_start(self, *_: Any) -> None:
        self.state["hint"] = torch.zeros(3)


def test_a_rule_of_the_users_own() -> None:
    assert sent(Broadcasting()) == [(32 + 2 * 12, 32, 88)]


def test_a_resumed_run_counts_on() -> None:
    """Round 2 goes on from the checkpoint of round 1, in which 32 bytes went each way."""
    first = trainer(TrafficMonitor(), rounds=1)
    first.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    first.save_checkpoint("first.ckpt")
    second = trainer(monitor := TrafficMonitor(), rounds=2)
    second.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData(), ckpt_path="first.ckpt")
    assert monitor.total == 2 * 64


def test_two_devices_count_what_one_counts() -> None:
    """Real processes over gloo; three of four clients take part. A model of 64, 512, 256 and 10 units has 167,178
    numbers of four bytes.
    """
    for devices in 1, 2:
        settings = ("--data.participation", 3, "--trainer.callbacks+=Scaffold")
        fit_on(devices, "--experiment", f"on{devices}", *settings)
    one, two = (numbers(Path("runs", f"on{devices}", "version_0")) for devices in (1, 2))
    assert one == two
    assert one[1][0] == 2 * one[1][1] == 2 * 3 * 4 * 167_178


def test_another_fit_counts_anew_and_the_same_trainer_counts_on() -> None:
    monitor = TrafficMonitor()
    for _ in range(2):
        run = trainer(monitor)
        run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
        assert monitor.total == 64
    run.fit_loop.max_epochs = 2
    run.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    assert monitor.total == 128


def test_it_changes_nothing() -> None:
    assert torch.equal(train(Scaffold(), rounds=3), train(TrafficMonitor(), Scaffold(), rounds=3))
