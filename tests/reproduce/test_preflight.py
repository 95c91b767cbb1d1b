"""What would make runs fail is found before anything is trained; unknown measures, as soon as a run tells."""

from pathlib import Path

import pytest
from command import TINY, run

from fl_lightning.datamodules.published import data_folder

MINE = """
from fl_lightning.models import ImageClassifier

class Mine(ImageClassifier):
    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.log("val/mine", 1.0)
"""

REGRESSION = """
import torch
from lightning import LightningModule
from torch.nn.functional import mse_loss

class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(64, 1)
    def training_step(self, batch, batch_idx):
        return mse_loss(self.line(batch[0].flatten(1))[:, 0], batch[1].float())
    def validation_step(self, batch, batch_idx):
        self.log("val/rmse", 2.0)
        self.log("val/mae", 1.0)
        self.log("val/errors/0", 3.0)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)
"""


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("mine.py").write_text(MINE)
    Path("own_regression.py").write_text(REGRESSION)


def sweep(*options: object) -> list[object]:
    return ["sweep", "--config", "tiny.yaml", "--seeds", 1, "--rounds", 1, *options]


def test_measures_that_nothing_logs_are_named() -> None:
    """After the first round, and at the end; the runs are kept, and tabulated by another measure without training."""
    log = "bytes/down, bytes/total, bytes/up, clients/quarantined, train/loss, val/loss, val/top1, val/top3"
    lines = [
        f"tiny: the runs log no conflict/ratio, but {log}",
        f"tiny: the runs log no val/topp1, but {log}; did you mean val/top1?",
    ]
    result = run(*sweep("--measures", "val/topp1", "val/top1", "conflict/ratio"))
    assert result.status == 2
    assert result.err.splitlines() == [f"fl-lightning: error: {line}" for line in lines]
    for line in lines:
        assert f"{line}; another command with other --measures trains nothing again" in result.out.splitlines()
    again = run(*sweep("--measures", "val/top1"))
    assert again.status == 0
    assert "1 run, finished before" in again.out
    unknown = run(*sweep("--measures", "val/topp1"))
    assert (unknown.status, unknown.err) == (2, f"fl-lightning: error: {lines[1]}\n")


def test_what_some_cells_log_is_known() -> None:
    """The first cell lacks ConflictMonitor, the second has it."""
    grid = "trainer.callbacks=[[], [{class_path: ConflictMonitor}]]"
    assert run(*sweep("--grid", grid, "--measures", "conflict/ratio")).status == 0


def test_clients_that_are_not_in_the_first_round_are_known() -> None:
    """The first cohort has one of four clients."""
    options = ["--data.participation", 1, "--trainer.callbacks", "ClientMonitor"]
    measures = [f"clients/update_norm/{client}" for client in range(4)]
    result = run(*sweep(*options, "--measures", *measures))
    assert result.status == 0, result.err
    assert "the runs log no" not in result.out


def test_what_a_module_of_ones_own_logs_is_known() -> None:
    result = run(*sweep("--model.client", "mine.Mine", "--measures", "val/mine"))
    assert result.status == 0, result.err
    assert "val/mine" in Path("runs/sweep/tiny/results.csv").read_text().splitlines()[0]


def test_a_sweep_that_names_no_measure_takes_that_of_the_report() -> None:
    """A regression logs no accuracy: the first of its own validation metrics is tabulated, and a line says so."""
    config = TINY.partition("    init_args:")[0].replace("ImageClassifier", "own_regression.Regression")
    Path("tiny.yaml").write_text(config + "data:" + TINY.partition("data:")[2])
    result = run(*sweep())
    assert result.status == 0, result.err
    assert "tiny seed 1: val/mae 1.0000" in result.out
    assert "tiny: measured by val/mae, since the runs log no val/top1; --measures names others" in result.out
    assert Path("runs/sweep/tiny/results.csv").read_text().splitlines()[0] == "round,seed,val/mae,seconds,folder"
    assert "val/mae" in Path("runs/sweep/tiny/table.md").read_text()
    assert "measured by" not in run(*sweep("--measures", "val/rmse")).out


def test_missing_data_are_told_once_each() -> None:
    """Six cells, of two data sets that are not there."""
    data = (
        "data=[{class_path: MNIST, init_args: {download: false}}, {class_path: CIFAR10, init_args: {download: false}}]"
    )
    config = TINY.replace("in_features: 64", "in_features: 784").partition("data:")[0]
    Path("tiny.yaml").write_text(config)
    result = run(*sweep("--grid", data, "--grid", "model.local_epochs=1,2,3"))
    assert result.status == 2
    first, second = sorted(result.err.splitlines())
    assert first.startswith(f"fl-lightning: error: expected CIFAR10 in {data_folder()}/cifar-10-batches-py")
    assert second.startswith(f"fl-lightning: error: expected MNIST in {data_folder()}/MNIST/raw")
    assert not Path("runs").exists()


def test_files_of_ones_own_that_are_missing() -> None:
    """Nobody can download these."""
    data = "data: {class_path: ImageFolder, init_args: {root: mine, image_size: 8, cache: null}}"
    Path("tiny.yaml").write_text(TINY.partition("data:")[0] + data)
    for dry in ([], ["--dry-run"]):
        result = run(*sweep(*dry))
        assert result.status == 2
        lines = [line for line in (result.out if dry else result.err).splitlines() if "mine" in line]
        assert [line.partition(": ")[0] for line in lines] == ["pre-flight failed" if dry else "fl-lightning"]


def test_arguments_of_the_data_are_looked_at_before_training() -> None:
    """The other cell is not trained either."""
    result = run(*sweep("--grid", "data.batch_size=-1,32"))
    assert result.status == 2
    assert result.err.startswith("fl-lightning: error: tiny -1: batch_size must be at least 1")
    assert not Path("runs").exists()


def test_arguments_of_callbacks_are_looked_at_before_training() -> None:
    """In every cell."""
    rules = [f"[{{class_path: FedProx, init_args: {{mu: {mu}}}}}]" for mu in (0.1, -1.0)]
    result = run(*sweep("--grid", f"trainer.callbacks=[{', '.join(rules)}]"))
    assert result.status == 2
    assert result.err == "fl-lightning: error: tiny FedProx(mu=-1.0): mu must be at least 0 and finite, got -1.0\n"
    assert not Path("runs").exists()
