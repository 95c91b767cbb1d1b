"""SaveCohorts: what it writes, where, and that FixedSchedule makes the same run of it."""

from pathlib import Path

import pytest
import torch
from command import TINY, fit, run
from resumed import assert_same
from toy import GivenData, Linear, trainer

from fl_lightning import ConfigurationError, FederatedOrchestrator
from fl_lightning.callbacks import SaveCohorts
from fl_lightning.engine.federation.sampling import RoundRobinSampler


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
    train(SaveCohorts("some/where.txt"), rounds=3)
    assert (folder / "some/where.txt").read_text() == "0 1\n0 2\n1 2\n"
    assert [path.name for path in (folder / "some").iterdir()] == ["where.txt"]


def test_an_absolute_path_stays(folder: Path) -> None:
    train(SaveCohorts(str(folder / "there.txt")), rounds=1)
    assert (folder / "there.txt").read_text() == "0 1\n"


def test_a_run_on_the_saved_cohorts_is_the_same_run(folder: Path) -> None:
    """Bit for bit, and it writes the same file; with another seed's cohorts it is another run."""
    settings = ["--data.participation", 2, "--data.partition.alpha", 10, "--trainer.max_epochs", 4]
    settings += ["--trainer.callbacks", "SaveCohorts"]
    for experiment, seed in (("drawn", 1), ("other", 2)):
        fit("--experiment", experiment, "--seed_everything", seed, *settings)
    drawn, read, other, mixed = (folder / "runs" / n / "version_0" for n in ("drawn", "read", "other", "mixed"))
    for name, source in (("read", drawn), ("mixed", other)):
        given = ["--data.sampler", "FixedSchedule", "--data.sampler.path", source / "cohorts.txt"]
        fit("--experiment", name, *settings, *given)
        assert (folder / "runs" / name / "version_0/cohorts.txt").read_text() == (source / "cohorts.txt").read_text()
    assert_same(drawn / "checkpoints/last.ckpt", read / "checkpoints/last.ckpt")
    assert (drawn / "metrics.csv").read_text() == (read / "metrics.csv").read_text()
    with pytest.raises(AssertionError):
        assert_same(drawn / "checkpoints/last.ckpt", mixed / "checkpoints/last.ckpt")


def test_a_resumed_run_writes_the_rounds_to_come(folder: Path) -> None:
    settings = ["--data.participation", 2, "--trainer.callbacks", "SaveCohorts"]
    fit(*settings)
    path = folder / "runs/tiny/version_0/cohorts.txt"
    before = path.read_text()
    fit(*settings, "--trainer.max_epochs", 5, "--ckpt_path", "last")
    assert path.read_text().startswith(before)
    assert len(path.read_text().splitlines()) == 5


def test_a_schedule_that_is_too_short_ends_before_the_first_round(folder: Path) -> None:
    (folder / "short.txt").write_text("0 1\n")
    given = ["--data.sampler", "FixedSchedule", "--data.sampler.path", "short.txt"]
    result = run("fit", "--config", "tiny.yaml", *given, "--trainer.callbacks", "SaveCohorts")
    assert result.status == 2
    assert "short.txt ends at line 1, there is none for round 2" in result.err
    assert "round 1" not in result.out


def test_refuses_a_run_without_end(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"SaveCohorts writes .* trainer.max_epochs sets no last round"):
        train(SaveCohorts(), rounds=-1)
    assert not list(folder.glob("*.txt"))
