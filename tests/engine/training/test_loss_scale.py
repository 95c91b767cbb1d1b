"""16-mixed: every client has a GradScaler of its own, and the module's hooks run under it as under the Trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lib.toy import Capture, Net, close, trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset
from zoo.optimizers import SkipsBatches, WarmUp
from zoo.runs import ends_where_the_trainer_does
from zoo.table import Row

from fl_lightning import FederatedDataModule, FederatedOrchestrator


def scaled(scale: float = 1024.0) -> MixedPrecision:
    """16-mixed with a scaler on the CPU, which doubles its scale after two good steps."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2))


class Overflows(Net):
    """A loss too large for half precision on the second batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch) * (1e9 if batch_idx == 1 else 1)


@pytest.mark.parametrize("make", [Net, WarmUp, SkipsBatches, Overflows])
def test_ends_where_the_trainer_does(make: type[Net]) -> None:
    """The server's step has no loss scale."""
    client, ends = ends_where_the_trainer_does(Row(make), make_flags=lambda: {"plugins": [scaled()]})
    assert close(torch.cat([p.detach().reshape(-1) for p in client.parameters()]), ends.params[0], 1e-6)


class Linear(Net):
    """w·x, whose gradient is x."""

    def build(self) -> None:
        self.net = torch.nn.Linear(1, 1, bias=False)

    def loss(self, batch: Any) -> Tensor:
        return self.net(batch[0]).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Gradients(FederatedDataModule):
    """Client 0: gradients of 1 on four batches; client 1: 200, too large for scales above 327; client 2 is like 0."""

    num_clients = 3

    def __init__(self, clients: list[int] | None = None, **settings: Any) -> None:
        super().__init__(batch_size=1, **settings)
        self.clients = clients or [0, 1, 2]

    def cohort(self, round: int) -> list[int]:
        return self.clients

    def client_dataset(self, client: int) -> Dataset[Any]:
        return TensorDataset(torch.full((4, 1), 200.0 if client == 1 else 1.0))


class Scales(Capture):
    """The scale at each client's start and end."""

    def __init__(self) -> None:
        super().__init__()
        self.scales: list[tuple[int, float, float]] = []

    def on_client_start(self, orchestrator: Any, run: Any) -> None:
        self.start = orchestrator.client_training.local.steps.scaler.get_scale()

    def on_client_end(self, orchestrator: Any, run: Any) -> None:
        super().on_client_end(orchestrator, run)
        self.scales.append((run.client, self.start, orchestrator.client_training.local.steps.scaler.get_scale()))


def fit(rounds: int, clients: list[int] | None = None, resume: Path | None = None, save: Path | None = None) -> Any:
    scales, run = Scales(), trainer(rounds=rounds, plugins=[scaled()])
    run.callbacks.append(scales)
    orchestrator = FederatedOrchestrator(Linear(), on_bad_update="raise")
    run.fit(orchestrator, datamodule=Gradients(clients), ckpt_path=resume)
    if save:
        run.save_checkpoint(save)
    return orchestrator.params.clone(), scales


def test_every_client_starts_from_the_scale_of_the_round() -> None:
    """Client 0 doubles 1024 twice in its four steps. Client 1 halves 1024 and 512, since 200 times either is too large
    for half precision; its third and fourth step, at 256, double it. So round 2 starts from the smallest, 512, which
    client 1 halves; two good steps double 256, and the fourth step, at 512, halves it again.
    """
    _, scales = fit(2)
    assert scales.scales[:3] == [(0, 1024.0, 4096.0), (1, 1024.0, 512.0), (2, 1024.0, 4096.0)]
    assert scales.scales[3:] == [(0, 512.0, 2048.0), (1, 512.0, 256.0), (2, 512.0, 2048.0)]
    assert [result.num_steps for result in scales.cohorts[0].results] == [4, 2, 4]


def test_skipped_steps_do_not_depend_on_the_order_of_clients(tmp_path: Path) -> None:
    model, _ = fit(2)
    assert torch.equal(model, fit(2, [1, 2, 0])[0])
    fit(1, save=tmp_path / "one.ckpt")
    assert torch.equal(model, fit(2, resume=tmp_path / "one.ckpt")[0])
