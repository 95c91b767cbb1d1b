"""Trials: what one round shows of a run, and which cells are of a kind."""

from pathlib import Path

import pytest
from command import TINY

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.jobs import Folders, Job, plan, train
from fl_lightning.reproduce.trials import Trial, kind_of, try_round


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


def planned(*options: str) -> Job:
    (job,) = plan(["tiny"], ["--config=tiny.yaml", *options], [1], Folders(Path("runs")), "tiny")
    return job


def test_numbers_of_a_run() -> None:
    trial = Trial(frozenset(), start=5.0, round=2.0, once=100.0, each=3.0)
    assert (trial.seconds(10), trial.size(10)) == (25.0, 130.0)


def test_a_round_shows_what_a_run_logs_and_writes() -> None:
    """The cosines of every other round, the cohorts of all: the files of a run of 20 rounds, to a few per cent."""
    callbacks = "[{class_path: ConflictMonitor, init_args: {every: 2}}, {class_path: SaveCohorts}]"
    job = planned("--trainer.max_epochs=20", f"--trainer.callbacks={callbacks}", "--trainer.logger=WandbLogger")
    trial = try_round(job)
    assert not Path("runs").exists()
    assert not Path("wandb").exists()
    assert train([planned("--trainer.max_epochs=20", f"--trainer.callbacks={callbacks}")], 1, lambda *_: None) == []
    done = planned("--trainer.max_epochs=20", f"--trainer.callbacks={callbacks}")
    assert trial.metrics == set(done.run.names)
    size = sum(path.stat().st_size for path in done.folder.rglob("*") if path.is_file())
    assert trial.size(20) == pytest.approx(size, rel=0.1)
    grown = [*done.run.folder.glob("*.csv"), *done.run.folder.glob("*.txt"), *done.run.folder.glob("arrays/cosines_*")]
    assert 20 * trial.each == pytest.approx(sum(path.stat().st_size for path in grown), rel=0.15)
    assert (done.run.folder / "arrays" / "cosines_2.npz").is_file()
    seconds = float(done.run.timings["seconds"].sum())
    assert 0 < trial.round < seconds
    assert trial.start > 0


def test_what_is_not_due_in_every_round_counts_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation and a monitor that take a second each, every fifth and every tenth round: 0.3 s a round."""
    Path("slow.py").write_text(
        "import time\nfrom fl_lightning import Monitor\n\n"
        "class Slow(Monitor):\n"
        "    def __init__(self, every: int = 10) -> None:\n        self.every = every\n"
        "    def on_round_end(self, orchestrator, cohort):\n        time.sleep(1)\n"
        "    def on_validation_start(self, trainer, pl_module):\n        time.sleep(1)\n"
    )
    monkeypatch.syspath_prepend(".")
    every_round = try_round(planned("--trainer.callbacks=[{class_path: slow.Slow, init_args: {every: 1}}]"))
    options = ["--trainer.callbacks=slow.Slow", "--trainer.check_val_every_n_epoch=5"]
    seldom = try_round(planned(*options))
    assert every_round.round > 2.0
    assert 0.3 <= seldom.round < 1.0


def test_a_round_that_fails() -> None:
    with pytest.raises(ConfigurationError, match=r"tiny: .*expected classes <= 10"):
        try_round(planned("--data.partition=ClassesPerClient", "--data.partition.classes=11"))


def test_cells_of_a_kind() -> None:
    """Other partitions and learning rates take as long; other rules, numbers of clients and data do not."""

    def kind(*options: str) -> str:
        return kind_of(planned(*options).config)

    prox = "--trainer.callbacks=[{class_path: FedProx, init_args: {mu: %s}}]"
    alike = ["--data.partition.alpha=5", "--data.partition=IID", "--model.client.optimizer.lr=0.5"]
    assert {kind(option) for option in alike} == {kind()}
    assert kind(prox % 0.1) == kind(prox % 1.0)
    others = [prox % 0.1, "--data.num_clients=8", "--data.participation=0.5", "--model.local_epochs=2"]
    others += ["--trainer.max_epochs=3", "--data.batch_size=16"]
    assert len({kind(), *map(kind, others)}) == 1 + len(others)
