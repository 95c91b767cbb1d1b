"""ClientMonitor on clients with given updates, losses and predictions, by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lib.command import TINY, fit, rows
from lib.hand_made import Row, serve
from lib.toy import UPDATES, trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from torchmetrics import MeanMetric

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import ClientMonitor, FedGAM, FedSAM, FocalLoss, GradientHarmonization
from fl_lightning.callbacks.monitors.clients import top1

NAMES = ("clients/", "updates/", "train/top1")


def of_clients(row: Mapping[str, float]) -> dict[str, float]:
    """What the monitor logs."""
    return {name: value for name, value in row.items() if name.startswith(NAMES) and name != "clients/quarantined"}


def measured(updates: Any, *rules: Any, **settings: Any) -> dict[str, float]:
    return of_clients(serve(updates, *rules, **settings)[0].logged)


def fitted(module: LightningModule, *rules: Any) -> dict[str, float]:
    """A round of clients that train on the ballots below."""
    logged: dict[str, float] = {}
    run = trainer(*rules, logger=Row(logged))
    run.fit(FederatedOrchestrator(module, on_bad_update="raise"), datamodule=Ballots(batch_size=1))
    return of_clients(logged)


def test_norms_and_losses() -> None:
    """(2, 0), (-1, 1), (-1, -2) by n = (1, 1, 2): ū = (-1/4, -3/4); squared distances 5.625, 3.625, 2.125."""
    found = measured(UPDATES, ClientMonitor(), samples=[1, 1, 2], losses=[0.5, 2.0, 3.0])
    expected = {f"clients/loss/{k}": loss for k, loss in enumerate([0.5, 2.0, 3.0])}
    expected |= {f"clients/update_norm/{k}": norm for k, norm in enumerate([2.0, 2**0.5, 5**0.5])}
    expected |= {f"clients/removed/{k}": 0.0 for k in range(3)}
    expected |= {"updates/norm_mean": (2 + 2**0.5 + 5**0.5) / 3, "updates/norm_max": 5**0.5}
    expected |= {"updates/drift": (5.625**0.5 + 3.625**0.5 + 2.125**0.5) / 3}
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("monitor_first", [False, True])
def test_drift_is_from_the_corrected_sum(monitor_first: bool) -> None:
    """Harmonised in ascending order, they sum up to (-1/2, -1/2): squared distances 6.5, 2.5, 2.5. Norms stay.

    They become (0.4, -0.2), (-0.4, 0.2), (-1, -1); (1.6, 0.2), (-0.6, 0.8), (0, -1) are gone, of norms √2.6, 1, 1.
    """
    chain = [GradientHarmonization(order="ascending"), ClientMonitor()]
    logged = measured(UPDATES, *(chain[::-1] if monitor_first else chain), samples=[1, 1, 2])
    assert logged["updates/drift"] == pytest.approx((6.5**0.5 + 2 * 2.5**0.5) / 3)
    assert logged["updates/norm_mean"] == pytest.approx((2 + 2**0.5 + 5**0.5) / 3)
    removed = [logged[f"clients/removed/{k}"] for k in range(3)]
    assert removed == pytest.approx([2.6**0.5 / 2, 0.5**0.5, 0.2**0.5], abs=1e-6)


def test_one_client_does_not_drift() -> None:
    assert measured(UPDATES[:1], ClientMonitor())["updates/drift"] == 0.0


class Votes(LightningModule):
    """The logits are the inputs plus w, which stays zero: it learns at rate 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        logits = batch[0] + self.w
        return {"loss": F.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Ballots(FederatedDataModule):
    """One example a batch. Client 0: votes 0, 0, 1 and all are of class 0; client 1: votes 1, and is."""

    num_clients = 2

    def client_dataset(self, client: int) -> Dataset[Any]:
        votes, targets = ([0, 0, 1], [0, 0, 0]) if client == 0 else ([1], [1])
        return TensorDataset(torch.eye(2)[votes], torch.tensor(targets))


CHAINS: list[Any] = [
    [ClientMonitor()],
    [ClientMonitor(), FocalLoss()],
    [ClientMonitor(), FedSAM(rho=10.0)],
    [FedSAM(rho=10.0), ClientMonitor()],
    [FedGAM(rho=10.0), ClientMonitor()],
]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: ", ".join(type(rule).__name__ for rule in chain))
def test_accuracy_at_the_clients_own_model(chain: Any) -> None:
    """2/3 and 1; by n = (3, 1) they average to 3/4. At the points 10 uphill, where SAM and GAM look, all is wrong."""
    logged = fitted(Votes(), *chain)
    assert {key: logged[key] for key in logged if "top1" in key} == pytest.approx(
        {"clients/top1/0": 2 / 3, "clients/top1/1": 1.0, "train/top1": 0.75}
    )


class OwnTop1(Votes):
    """Logs a train/top1 of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = MeanMetric()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        self.mean.update(0.125)
        self.log("train/top1", self.mean)
        return super().training_step(batch, batch_idx)


def test_leaves_the_modules_own_accuracy_alone() -> None:
    assert fitted(OwnTop1(), ClientMonitor())["train/top1"] == 0.125


def test_top1_of_what_a_training_step_may_return() -> None:
    """(2, 0), (0, 1), (0, 1) for classes 0, 0, 1: two of three; an image's pixels 1, 1, 0, 0 for 1, 0, 0, 0."""
    logits, targets = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    found = top1({"loss": 0, "logits": logits.requires_grad_(), "targets": targets})
    assert found is not None
    assert float(found) == pytest.approx(2 / 3)
    assert not found.requires_grad
    pixels = F.one_hot(torch.tensor([[[1, 1], [0, 0]]])).movedim(-1, 1)  # (1, C, 2, 2)
    found = top1({"logits": pixels, "targets": torch.tensor([[[1, 0], [0, 0]]])})
    assert found is not None
    assert float(found) == 0.75


@pytest.mark.parametrize(
    "outputs",
    [
        None,
        torch.ones(()),
        {"loss": torch.ones(())},
        {"logits": torch.ones(3, 2)},
        {"logits": torch.ones(3, 2), "targets": torch.ones(3)},
        {"logits": torch.ones(3, 2), "targets": torch.ones(3, 2, dtype=torch.int64)},
        {"logits": torch.ones(3), "targets": torch.ones(3, dtype=torch.int64)},
        {"logits": torch.ones(3, 1), "targets": torch.ones(3, dtype=torch.int64)},  # of a sigmoid
        {"logits": [1, 2], "targets": [0, 1]},
    ],
)
def test_no_accuracy_of_anything_else(outputs: Any) -> None:
    assert top1(outputs) is None


MONITORS = ["--trainer.callbacks", "[FedNova, ConflictMonitor, CoherenceMonitor, ClientMonitor]"]


def test_a_stopped_run_logs_what_a_whole_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the command line, with half of the clients in a round: those alone have values. Stopped after round 2 of 4."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    half = ["--data.participation", 0.5, *MONITORS]
    fit("--experiment", "whole", *half, "--trainer.max_epochs", 4)
    fit("--experiment", "stopped", *half, "--trainer.max_epochs", 2)
    fit("--experiment", "stopped", *half, "--trainer.max_epochs", 4, "--ckpt_path", "last")
    whole, stopped = (Path("runs", name, "version_0", "metrics.csv") for name in ("whole", "stopped"))
    assert whole.read_text() == stopped.read_text()
    for row in rows(whole):
        drawn = {name.rpartition("/")[2] for name in row if name.startswith("clients/loss/")}
        assert len(drawn) == 2
        kinds = ("loss", "top1", "update_norm", "removed")
        assert {f"clients/{kind}/{k}" for kind in kinds for k in drawn} | {"clients/quarantined"} == {
            name for name in row if name.startswith("clients/")
        }
        assert {"train/top1", "coherence/heterogeneity", "cohort/share/9", "conflict/angle"} <= row.keys()
