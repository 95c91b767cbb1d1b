"""A run whose folder has moved, was copied, or is called by another path goes on as it would have where it was."""

import os
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.command import contents, fit, rows
from lib.toy import Quadratic, ToyData, trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning import FederatedOrchestrator, RunFolder, run_callbacks

RUN = Path("runs/tiny/version_0")
# Two rounds that learn, then one that unlearns: the best round, by metrics.csv, is not the last one.
WORSE = ("--resume_changed", "true", "--model.client.optimizer.lr", "100", "--trainer.max_epochs", "3")
TWO_BEST = (
    *("--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.monitor=val/loss", "--trainer.callbacks.mode=min"),
    *("--trainer.callbacks.save_top_k=2", "--trainer.callbacks.filename={epoch}"),
    *("--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss", "--trainer.callbacks.patience=5"),
)


def renamed() -> Path:
    return RUN.rename(RUN.with_name("baseline"))


def copied() -> Path:
    return Path(shutil.copytree(RUN, "elsewhere/tiny/copy"))


def called_from_another_folder() -> Path:
    Path("project").mkdir()
    os.chdir("project")
    shutil.copy("../tiny.yaml", ".")
    return Path("..") / RUN


PLACES = (renamed, copied, called_from_another_folder)


def best_round(folder: Path, metric: str, best: Callable[[Any], Any]) -> int:
    """The round that a table of the run shows as the best, the first of several, by NumPy."""
    return 1 + int(best([row[metric] for row in rows(folder / "metrics.csv")]))


def saved_round(file: Path) -> int:
    return int(torch.load(file, weights_only=True)["rounds_done"])


@pytest.mark.parametrize("place", PLACES)
def test_best_ckpt_stays_the_best_round(last: Path, place: Callable[[], Path]) -> None:
    """As metrics.csv shows it; and best.ckpt keeps its bytes, while last.ckpt goes on."""
    folder = place()
    before = (folder / "checkpoints/best.ckpt").read_bytes()
    done = fit("--ckpt_path", folder / "checkpoints/last.ckpt", *WORSE)
    assert not [text for text in done.warnings if "dirpath" in text], "nothing is forgotten"
    assert best_round(folder, "val/top1", np.argmax) == saved_round(folder / "checkpoints/best.ckpt") < 3
    assert saved_round(folder / "checkpoints/last.ckpt") == 3
    assert (folder / "checkpoints/best.ckpt").read_bytes() == before


@pytest.mark.parametrize("place", PLACES)
def test_callbacks_of_lightning_keep_their_scores_and_files(place: Callable[[], Path]) -> None:
    """A ModelCheckpoint of the two best rounds, and EarlyStopping, as in a run that stays where it is."""
    fit(*TWO_BEST)
    shutil.copytree("runs", "stays/runs")
    shutil.copy("tiny.yaml", "stays")
    with chdir("stays"):
        fit("--ckpt_path", RUN / "checkpoints/last.ckpt", *TWO_BEST, *WORSE)
        control = torch.load(RUN / "checkpoints/last.ckpt", weights_only=True)["callbacks"]
        files = {path.name for path in (RUN / "checkpoints").iterdir()}
    folder = place()
    fit("--ckpt_path", folder / "checkpoints/last.ckpt", *TWO_BEST, *WORSE)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == files
    assert files == {"last.ckpt", "epoch=0.ckpt", "epoch=1.ckpt"}, "the third round is the worst"
    found = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["callbacks"]
    assert _without_folders(found) == _without_folders(control)


def _without_folders(states: Any) -> Any:
    """Callbacks' states with the names of files in place of their paths."""
    if isinstance(states, dict):
        return {_without_folders(name): _without_folders(each) for name, each in states.items() if name != "dirpath"}
    return Path(states).name if isinstance(states, str) and states.endswith(".ckpt") else states


def test_a_script_that_goes_on_in_a_renamed_folder_keeps_its_best_round(tmp_path: Path) -> None:
    """The loss of T falls from round to round, so that with mode "max" the first round stays the best."""

    def go_on(version: str | None, rounds: int, ckpt_path: Path | None = None) -> Path:
        logger = RunFolder("runs", "mine", version)
        callbacks = run_callbacks([ModelCheckpoint(filename="first", monitor="train/loss", mode="max")], progress=False)
        fitted = trainer(*callbacks, logger=logger, rounds=rounds, enable_checkpointing=True)
        fitted.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData(), ckpt_path=ckpt_path)
        return Path(logger.log_dir)

    folder = go_on(None, 1)
    moved = folder.rename(folder.with_name("baseline"))
    go_on("baseline", 2, moved / "checkpoints/last.ckpt")
    losses = [row["train/loss"] for row in rows(moved / "metrics.csv")]
    assert losses[0] > losses[1]
    assert {path.name for path in (moved / "checkpoints").iterdir()} == {"first.ckpt", "last.ckpt"}
    assert saved_round(moved / "checkpoints/first.ckpt") == 1


def test_a_new_folder_begins_with_the_best_of_its_own_rounds(last: Path) -> None:
    """A checkpoint outside of a run folder begins a run folder, in which there is no better round yet."""
    alone = Path(shutil.copy(last, "alone.ckpt"))
    fit("--ckpt_path", alone, "--trainer.max_epochs", "3")
    assert saved_round(RUN.with_name("version_1") / "checkpoints/best.ckpt") == 3


def test_last_says_that_it_is_not_the_run_whose_config_is_given(last: Path) -> None:
    """The copy's config names the experiment, whose last run is the original."""
    shutil.copytree(RUN, "runs/COPY")
    before = contents("runs/COPY")
    done = fit("--ckpt_path", "last", "--trainer.max_epochs", "3", config="runs/COPY/config.yaml")
    expected = (
        "--ckpt_path last goes on with runs/tiny/version_0, the experiment's last run, and not with the run of "
        "runs/COPY/config.yaml: to go on with that run, give --ckpt_path runs/COPY/checkpoints/last.ckpt"
    )
    assert expected in done.warnings
    assert contents("runs/COPY") == before
    again = fit("--ckpt_path", "last", "--trainer.max_epochs", "4", config=str(RUN / "config.yaml"))
    assert not [text for text in again.warnings if "--ckpt_path last" in text]
