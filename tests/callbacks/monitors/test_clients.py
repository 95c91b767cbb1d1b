"""ClientMonitor on clients with given updates, losses and predictions, by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from command import TINY, fit, rows
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from torchmetrics import MeanMetric
from toy import UPDATES, GivenData, Linear, trainer

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.callbacks import ClientMonitor, FedGAM, FedSAM, FocalLoss, GradientHarmonization
from fl_lightning.callbacks.monitors.clients import top1
from fl_lightning.runs.folder import RunFolder

GIVEN = -torch.tensor(UPDATES, dtype=torch.float64)
NAMES = ("clients/", "updates/", "train/top1")


def measured(module: LightningModule, data: FederatedDataModule, folder: Path, *rules: Any) -> dict[str, float]:
    """What the monitor logs in metrics.csv."""
    run = trainer(*rules, logger=RunFolder(folder))
    run.fit(FederatedOrchestrator(module, on_bad_update="raise"), datamodule=data)
    (row,) = rows(Path(str(run.log_dir), "metrics.csv"))
    return {n: value for n, value in row.items() if n.startswith(NAMES) and n != "clients/quarantined"}


def test_norms_and_losses(tmp_path: Path) -> None:
    """(2, 0), (-1, 1), (-1, -2) by n = (1, 1, 2): ū = (-1/4, -3/4); squared distances 5.625, 3.625, 2.125.

    Client 0 takes two steps of (1, 0), its loss 1 - w₁: 1 at w = 0, then 0.
    """
    halves = GIVEN / torch.tensor([[2.0], [1.0], [1.0]])
    data = GivenData(halves, samples=[1, 1, 2], losses=[1.0, 2.0, 3.0], steps=[2, 1, 1])
    assert measured(Linear(2), data, tmp_path, ClientMonitor()) == pytest.approx(
        {
            "clients/loss/0": 0.5,
            "clients/loss/1": 2.0,
            "clients/loss/2": 3.0,
            "clients/update_norm/0": 2.0,
            "clients/update_norm/1": 2**0.5,
            "clients/update_norm/2": 5**0.5,
            "clients/removed/0": 0.0,
            "clients/removed/1": 0.0,
            "clients/removed/2": 0.0,
            "updates/norm_mean": (2 + 2**0.5 + 5**0.5) / 3,
            "updates/norm_max": 5**0.5,
            "updates/drift": (5.625**0.5 + 3.625**0.5 + 2.125**0.5) / 3,
        },
        abs=1e-6,
    )


@pytest.mark.parametrize("monitor_first", [False, True])
def test_drift_is_from_the_corrected_sum(monitor_first: bool, tmp_path: Path) -> None:
    """Harmonised in ascending order, they sum up to (-1/2, -1/2): squared distances 6.5, 2.5, 2.5. Norms stay.

    They become (0.4, -0.2), (-0.4, 0.2), (-1, -1); (1.6, 0.2), (-0.6, 0.8), (0, -1) are gone, of norms √2.6, 1, 1.
    """
    chain = [GradientHarmonization(order="ascending"), ClientMonitor()]
    logged = measured(
        Linear(2), GivenData(GIVEN, samples=[1, 1, 2]), tmp_path, *(chain[::-1] if monitor_first else chain)
    )
    assert logged["updates/drift"] == pytest.approx((6.5**0.5 + 2 * 2.5**0.5) / 3)
    assert logged["updates/norm_mean"] == pytest.approx((2 + 2**0.5 + 5**0.5) / 3)
    removed = [logged[f"clients/removed/{k}"] for k in range(3)]
    assert removed == pytest.approx([2.6**0.5 / 2, 0.5**0.5, 0.2**0.5], abs=1e-6)


def test_one_client_does_not_drift(tmp_path: Path) -> None:
    assert measured(Linear(2), GivenData(GIVEN[:1]), tmp_path, ClientMonitor())["updates/drift"] == 0.0


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


RULES: dict[str, Any] = {
    "plain": lambda: [],
    "FocalLoss": lambda: [FocalLoss()],
    "FedSAM": lambda: [FedSAM(rho=10.0)],
    "FedGAM": lambda: [FedGAM(rho=10.0)],
    "FedGAM, paper": lambda: [FedGAM("paper", rho=10.0)],
}


@pytest.mark.parametrize("monitor_first", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_accuracy_at_the_clients_own_model(name: str, monitor_first: bool, tmp_path: Path) -> None:
    """2/3 and 1; by n = (3, 1) they average to 3/4. At the points 10 uphill, where SAM and GAM look, all is wrong."""
    chain = [ClientMonitor(), *RULES[name]()]
    logged = measured(Votes(), Ballots(batch_size=1), tmp_path, *(chain if monitor_first else chain[::-1]))
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


def test_leaves_the_modules_own_accuracy_alone(tmp_path: Path) -> None:
    logged = measured(OwnTop1(), Ballots(batch_size=1), tmp_path, ClientMonitor())
    assert {key: logged[key] for key in logged if "top1" in key} == pytest.approx(
        {"clients/top1/0": 2 / 3, "clients/top1/1": 1.0, "train/top1": 0.125}
    )


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
        of_clients = {name for name in row if name.startswith("clients/")} - {"clients/quarantined"}
        drawn = {name.rpartition("/")[2] for name in of_clients}
        assert len(drawn) == 2
        assert of_clients == {
            f"clients/{name}/{k}" for name in ("loss", "top1", "update_norm", "removed") for k in drawn
        }
        assert {
            "train/top1",
            "coherence/local",
            "coherence/heterogeneity",
            "cohort/share/9",
            "conflict/angle",
        } <= row.keys()
        assert row["train/loss"] > 0
