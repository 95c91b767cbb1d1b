"""The run folder: one row a round, no two runs in one folder, where to go on."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from lib.command import rows
from lib.toy import Quadratic, ToyData, trainer
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from torch.utils.data import DataLoader

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.runs.folder.run_folder import RunFolder, newest_in, next_version, rounds_in

FOUR = "round,val/top1,train/loss\n1,0.5,2\n2,0.6,1.5\n3,0.7,1.25\n4,0.8,1.125\n"


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The metrics.csv of a run that was stopped after round 4, in ``tmp_path/e/version_0``."""
    file = tmp_path / "e" / "version_0" / "metrics.csv"
    file.parent.mkdir(parents=True)
    file.write_text(FOUR)
    return file


LOGGED: dict[str, tuple[list[tuple[dict[str, Any], int | None]], str]] = {
    "several calls make a row, whose columns have one order": (
        [
            ({"conflict/ratio": 0.25, "train/loss": torch.tensor(1.5), "round": 1.0}, 1),
            ({"val/top1": 0.5, "round": 1.0}, 1),
            ({"val/top1": 0.75, "round": 2.0, "epoch": 1}, 2),
        ],
        "round,val/top1,train/loss,conflict/ratio\n1,0.5,1.5,0.25\n2,0.75,,\n",
    ),
    "metrics without a round belong to that of their step, or else to the last": (
        [({"lr-SGD": 1.0}, 1), ({"lr-SGD": 0.5}, 2), ({"own": 0.25}, None)],
        "round,lr-SGD,own\n1,1,\n2,0.5,0.25\n",
    ),
    "an evaluation may be of a round without a row": (
        [({"test/top1": round / 8, "round": float(round)}, None) for round in (2, 6, 4, 1)],
        "round,test/top1\n1,0.125\n2,0.25\n4,0.5\n6,0.75\n",
    ),
    "seven digits, as many as float32 has": (
        [({"val/top1": torch.tensor(1 / 3), "train/loss": 3.14159265e-5, "round": 1.0}, None)],
        "round,val/top1,train/loss\n1,0.3333333,3.141593e-05\n",
    ),
    "before the first round there is no row": ([({"val/top1": 0.1, "round": 0.0}, 0)], ""),
}


@pytest.mark.parametrize("case", LOGGED)
def test_a_row_a_round(case: str, tmp_path: Path) -> None:
    """Training, validation and monitors log at different times."""
    calls, expected = LOGGED[case]
    folder = RunFolder(tmp_path, "e")
    for metrics, step in calls:
        folder.log_metrics(metrics, step=step)
    folder.finalize("success")
    file = tmp_path / "e" / "version_0" / "metrics.csv"
    assert (file.read_text() if file.exists() else "") == expected


class Silent(Quadratic):
    """Manual optimization without a loss to report; the evaluation logs every batch's number."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:  # type: ignore[override]  # returns no loss
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val/batch", float(batch_idx), on_step=True, on_epoch=False)

    def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("test/batch", float(batch_idx), on_step=True, on_epoch=True)


class Evaluated(ToyData):
    """Three batches to evaluate on."""

    def val_dataloader(self) -> Any:
        return DataLoader(torch.zeros(3))  # type: ignore[arg-type]  # a tensor is a dataset

    test_dataloader = val_dataloader


class EveryClient(Callback):
    """Logs the module's round before and after each client, to the loggers alone."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        trainer.logger.log_metrics({"before": pl_module.round}, step=trainer.fit_loop.epoch_loop._batches_that_stepped)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.log("after", float(trainer.current_epoch + 1), on_step=True, on_epoch=False)


def test_rows_of_a_module_that_reports_no_loss(tmp_path: Path) -> None:
    """Two clients a round: batches are counted neither in training nor in evaluations."""
    folder, orchestrator = RunFolder(tmp_path, "e"), FederatedOrchestrator(Silent())
    run = trainer(LearningRateMonitor(), EveryClient(), logger=folder, rounds=3, log_every_n_steps=1)
    run.fit(orchestrator, datamodule=Evaluated())
    run.test(orchestrator, datamodule=Evaluated())
    assert rows(Path(folder.log_dir, "metrics.csv")) == [
        {"round": r, "lr-SGD": 1, "lr-client": 0.1, "before": r, "after": r, "val/batch": 2, "clients/quarantined": 0}
        | ({"test/batch_step": 2, "test/batch_epoch": 1} if r == 3 else {})
        for r in (1, 2, 3)
    ]


def test_a_row_is_one_write_at_the_end_of_the_file(tmp_path: Path) -> None:
    """The same inode from round to round, and its old bytes; a new name, and a late value, make a new file."""
    folder, inodes, content = RunFolder(tmp_path, "e"), [], b""
    file = Path(folder.log_dir, "metrics.csv")
    for round in (1, 2, 3):
        folder.log_metrics({"train/loss": 1.0 / round, "round": float(round)})
        folder.save()
        folder.write()
        folder.write()
        assert file.read_bytes().startswith(content)
        content = file.read_bytes()
        assert [row["round"] for row in rows(file)] == list(range(1, round + 1))
        inodes.append(file.stat().st_ino)
    assert len({*inodes}) == 1
    folder.log_metrics({"train/loss": 0.25, "val/top1": 0.5, "round": 4.0})
    folder.write()
    assert content.count(b",") == 4
    assert file.read_bytes().count(b",") == 10
    folder.log_metrics({"test/top1": 0.5, "round": 2.0})
    folder.write()
    assert rows(file)[1] == {"round": 2, "train/loss": 0.5, "test/top1": 0.5}
    assert [path.name for path in Path(folder.log_dir).iterdir()] == ["metrics.csv"]


# What is in the file, the number of rounds to keep, what is logged, and the file's lines after the first.
CONTINUED: dict[str, tuple[str, int | None, dict[str, float], str]] = {
    **{
        f"a torn row {torn!r}": (FOUR + torn, 4, {"train/loss": 1.0, "val/top1": 0.9, "round": 5.0}, FOUR + "5,0.9,1")
        for torn in ("5,0.", "5", "5,0.9,1", "\r")
    },
    "rounds 3 and 4 are done again": (FOUR, 2, {"train/loss": 1.0, "round": 3.0}, FOUR[:44] + "3,,1"),
    "a test of an earlier round": (
        FOUR,
        None,
        {"test/top1": 0.25, "round": 2.0},
        "round,val/top1,train/loss,test/top1\n1,0.5,2,\n2,0.6,1.5,0.25\n3,0.7,1.25,\n4,0.8,1.125,",
    ),
    "the file is gone": ("", 4, {"train/loss": 1.0, "round": 5.0}, "round,train/loss\n5,1"),
}


@pytest.mark.parametrize("case", CONTINUED)
def test_a_run_goes_on_in_its_file(case: str, tmp_path: Path, stopped: Path) -> None:
    """Lightning asks every logger for its ``experiment`` at the start; CSVLogger's would delete the file."""
    content, rounds, metrics, expected = CONTINUED[case]
    stopped.write_text(content)
    if not content:
        stopped.unlink()
    folder = RunFolder(tmp_path, "e", "version_0", rounds=rounds)
    _ = folder.experiment
    assert not content or stopped.read_bytes().decode() == content
    folder.log_metrics(metrics)
    folder.write()
    assert stopped.read_text().splitlines() == expected.splitlines()
    folder.log_metrics({"val/top1": 0.875, "round": metrics["round"]})
    folder.write()
    assert rows(stopped)[int(metrics["round"]) - 1 if content else 0]["val/top1"] == 0.875


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1 has no names of columns that begin with round"),
        ("\0\0\n1\n", "line 1 has no names of columns that begin with round"),
        ("round,a,a\n", "line 1 has no names of columns that begin with round"),
        (FOUR[:40], "its last whole line is that of round 1, and the run has done 4"),
        (FOUR.replace("3,0.7", "3;0.7"), "line 4 is not a row of numbers after round 2"),
        (FOUR.replace("3,0.7", "2,0.7"), "line 4 is not a row of numbers after round 2"),
        (FOUR.replace("0.7,", "0.7"), "line 4 is not a row of numbers after round 2"),
        (FOUR.replace("0.7", "O.7"), "line 4 is not a row of numbers after round 2"),
    ],
)
def test_a_damaged_file_is_refused_as_it_is(tmp_path: Path, stopped: Path, content: str, message: str) -> None:
    stopped.write_text(content)
    with pytest.raises(ConfigurationError) as refused:
        RunFolder(tmp_path, "e", "version_0", rounds=4)
    assert str(refused.value) == (
        f"{stopped} is damaged, {message}: restore the file from a copy, or move the file away to continue "
        "without the metrics of earlier rounds"
    )
    assert stopped.read_text() == content


def test_bytes_that_are_no_text_are_refused(tmp_path: Path, stopped: Path) -> None:
    stopped.write_bytes(FOUR.encode().replace(b"0.7", b"\xff.7"))
    with pytest.raises(ConfigurationError, match="is damaged, line 4 is not a row of numbers"):
        RunFolder(tmp_path, "e", "version_0")


def test_version_is_taken_at_first_use_and_kept(tmp_path: Path) -> None:
    """A command that fails before it runs leaves no folder."""
    folder = RunFolder(tmp_path, "e")
    assert not (tmp_path / "e").exists()
    assert folder.version == folder.version == "version_0"
    assert RunFolder(tmp_path, "e").version == "version_1"
    assert RunFolder(tmp_path, "other").version == "version_0"


def test_first_free_version_is_taken(tmp_path: Path) -> None:
    for name in ("version_0", "version_2"):
        (tmp_path / name).mkdir()
    assert next_version(tmp_path, take=False) == "version_1"
    assert not (tmp_path / "version_1").exists()
    assert [next_version(tmp_path) for _ in range(2)] == ["version_1", "version_3"]


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    """Eight threads, at one barrier, each four times."""
    barrier = threading.Barrier(8)

    def take(_: int) -> list[str]:
        barrier.wait()
        return [next_version(tmp_path / "e") for _ in range(4)]

    with ThreadPoolExecutor(8) as threads:
        taken = [name for names in threads.map(take, range(8)) for name in names]
    assert sorted(taken) == sorted(f"version_{number}" for number in range(32))


@pytest.mark.parametrize(
    ("content", "rounds", "top1"),
    [
        (FOUR, 4, 0.8),
        (FOUR + "5,,1\n", 5, 0.8),  # this round is not evaluated
        (FOUR + "5", 4, 0.8),  # half written
        ("round,val/top1\n" + "".join(f"{r},{'0.5' if r == 1 else ''}\n" for r in range(1, 30_000)), 29_999, 0.5),
        ("round,val/to", 0, None),
        ("", 0, None),
        ("round,train/loss\n1,2\n", 1, None),
    ],
)
def test_a_run_under_way_is_read_while_it_is_written(
    tmp_path: Path, stopped: Path, content: str, rounds: int, top1: float | None
) -> None:
    stopped.write_text(content)
    assert rounds_in(stopped.parent) == rounds
    assert newest_in(stopped.parent, "val/top1") == pytest.approx(math.nan if top1 is None else top1, nan_ok=True)
    assert rounds_in(tmp_path) == 0, "a run that has not begun"
    assert math.isnan(newest_in(tmp_path, "val/top1"))
