"""SaveCohorts: what it writes, where, and that FixedSchedule makes the same run of it."""

from pathlib import Path

import pytest
import torch
from lib.command import TINY, fit
from lib.resumed import assert_same
from lib.toy import GivenData, Linear, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator, RoundRobinSampler
from fl_lightning.callbacks import SaveCohorts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


def train(callback: SaveCohorts, rounds: int) -> None:
    """Three clients, two a round in turn."""
    data = GivenData(torch.ones(3, 2, dtype=torch.float64), participation=2, sampler=RoundRobinSampler())
    trainer(callback, rounds=rounds).fit(FederatedOrchestrator(Linear(2)), datamodule=data)


def test_writes_a_line_a_round(folder: Path) -> None:
    """0 1 | 2 0 | 1 2; without a run folder, into the working directory, whole."""
    train(SaveCohorts(), rounds=3)
    assert (folder / "cohorts.txt").read_text() == "0 1\n0 2\n1 2\n"
    assert {path.name for path in folder.iterdir()} == {"cohorts.txt", "tiny.yaml"}


def test_a_run_on_the_saved_cohorts_is_the_same_run(folder: Path) -> None:
    """Bit for bit, and it writes the same file; with other cohorts it is another run."""
    settings = ["--data.participation", 2, "--data.partition.alpha", 10, "--trainer.callbacks", "SaveCohorts"]
    fit("--experiment", "drawn", *settings)
    drawn, read, turned = (folder / "runs" / name / "version_0" for name in ("drawn", "read", "turned"))
    lines = (drawn / "cohorts.txt").read_text()
    for name, given in (("read", lines), ("turned", "".join(reversed(lines.splitlines(keepends=True))))):
        (folder / "given.txt").write_text(given)
        fit("--experiment", name, *settings, "--data.sampler", "FixedSchedule", "--data.sampler.path", "given.txt")
        assert (folder / "runs" / name / "version_0/cohorts.txt").read_text() == given
    assert_same(drawn / "checkpoints/last.ckpt", read / "checkpoints/last.ckpt")
    assert (drawn / "metrics.csv").read_text() == (read / "metrics.csv").read_text()
    with pytest.raises(AssertionError):
        assert_same(drawn / "checkpoints/last.ckpt", turned / "checkpoints/last.ckpt")


@pytest.mark.slow
def test_a_resumed_run_writes_the_rounds_to_come(folder: Path) -> None:
    settings = ["--data.participation", 2, "--trainer.callbacks", "SaveCohorts"]
    fit(*settings)
    path = folder / "runs/tiny/version_0/cohorts.txt"
    before = path.read_text()
    fit(*settings, "--trainer.max_epochs", 5, "--ckpt_path", "last")
    assert path.read_text().startswith(before)
    assert len(path.read_text().splitlines()) == 5


def test_refuses_a_run_without_end(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"SaveCohorts writes .* trainer.max_epochs sets no last round"):
        train(SaveCohorts(), rounds=-1)
    assert not list(folder.glob("*.txt"))
