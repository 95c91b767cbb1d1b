"""What W&B, TensorBoard and the run folder hold of a run, read back from real files."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lib.command import TINY, fit, process, rows
from lib.toy import Quadratic, ToyData, train, trainer
from lib.wandb_files import fit_with_wandb, wandb_config, wandb_history, wandb_records, without_key
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAccuracy

from fl_lightning import FederatedCallback, FederatedOrchestrator, Metric, RunFolder
from fl_lightning.runs.reader import read_runs
from fl_lightning.runs.record.environment import RunTracking, code_state

RUN = Path("runs", "tiny", "version_0")
LOGGERS = "  logger: [WandbLogger, {class_path: TensorBoardLogger, init_args: {save_dir: tb}}]\n  max_epochs"
WANDB = ("--trainer.logger", "WandbLogger")
EVERY = ("--trainer.callbacks.every", 1)
WATCHED = (
    *("--trainer.callbacks+=FedLAW", "--data.proxy_per_class", 2, "--trainer.callbacks+=LearningRateMonitor"),
    *("--trainer.callbacks+=ConflictMonitor", *EVERY, "--trainer.callbacks.layers", "true"),
    *("--trainer.callbacks+=ClientMonitor", "--trainer.callbacks+=CoherenceMonitor"),
    *("--trainer.callbacks+=HessianMonitor", *EVERY, "--trainer.callbacks.examples", 16),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_key(tmp_path, monkeypatch)


@dataclass(frozen=True)
class Run:
    """A run in the words of three loggers."""

    table: list[dict[str, float]]
    wandb: Path
    events: EventAccumulator
    folder: Path


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two rounds with FedLAW and the monitors."""
    with pytest.MonkeyPatch.context() as patch:
        without_key(tmp_path_factory.mktemp("watched"), patch)
        Path("tiny.yaml").write_text(TINY.replace("  max_epochs", LOGGERS))
        fit_with_wandb(*WATCHED)
        (file,) = Path().resolve().glob("wandb/offline-run-*/run-*.wandb")
        (event,) = Path("tb").rglob("events.out.tfevents.*")
        events = EventAccumulator(str(event.parent)).Reload()
        yield Run(rows(RUN / "metrics.csv"), file, events, RUN.resolve())


# The same names, values and rounds everywhere


def test_wandb_has_all_of_metrics_csv_by_round(watched: Run) -> None:
    """Merged by round, W&B's rows hold every value of the file, to the seven digits there; each names its round."""
    logged: dict[int, dict[str, Any]] = {}
    for row in wandb_history(watched.wandb):
        logged.setdefault(row["round"], {}).update(row)
    assert sorted(logged) == [0, 1, 2], "0 holds the partition's plot"
    for row in watched.table:
        assert len(row) > 50
        entry = logged[int(row["round"])]
        assert {name: entry[name] for name in row} == pytest.approx(row, rel=1e-6)


def test_tensorboard_has_all_of_metrics_csv_by_round(watched: Run) -> None:
    for name in watched.table[0].keys() - {"round"}:
        values = {scalar.step: scalar.value for scalar in watched.events.Scalars(name)}
        assert values == pytest.approx({row["round"]: row[name] for row in watched.table}, rel=1e-6), name


def test_the_round_is_wandbs_axis_of_everything(watched: Run) -> None:
    """Of several definitions of an axis the last one counts: Lightning's of trainer/global_step comes before."""
    metrics = [record.metric for record in wandb_records(watched.wandb) if record.WhichOneof("record_type") == "metric"]
    axes = [(metric.step_metric, metric.options.step_sync) for metric in metrics if metric.glob_name == "*"]
    assert axes[-1] == ("round", True)


def test_wandbs_own_steps_begin_at_a_thousand_times_the_round(watched: Run) -> None:
    first = {row["round"]: row["_step"] for row in reversed(wandb_history(watched.wandb))}
    assert first == {0: 0, 1: 1000, 2: 2000}


def test_pictures_are_in_wandb_and_tensorboard(watched: Run) -> None:
    """The partition before the first round, the cosines of each: W&B's files are where its rows say, and are PNG."""
    shown: dict[str, list[int]] = {}
    for row in wandb_history(watched.wandb):
        for key in [key for key in row if key.endswith(".path")]:
            assert (watched.wandb.parent / "files" / row[key]).read_bytes().startswith(b"\x89PNG")
            shown.setdefault(key.removesuffix(".path"), []).append(row["round"])
    assert shown == {"data/partition": [0], "conflict/cosines": [1, 2]}
    pictures = watched.events.Tags()["images"]
    assert shown == {name: [image.step for image in watched.events.Images(name)] for name in pictures}


# The run folder, and what W&B knows of it


def test_wandb_has_the_config_and_the_environment(watched: Run) -> None:
    config, known = wandb_config(watched.wandb), yaml.safe_load((watched.folder / "environment.yaml").read_text())
    saved = yaml.safe_load((watched.folder / "config.yaml").read_text())
    assert {name: config[name] for name in saved} == saved
    assert config["model"]["client"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.1
    assert config["environment"] | {"wandb": known["wandb"]} == known
    assert known["wandb"] == {"id": watched.wandb.stem.removeprefix("run-"), "project": "lightning_logs", "url": None}


def test_environment_says_on_what_and_how(watched: Run) -> None:
    known = yaml.safe_load((watched.folder / "environment.yaml").read_text())
    assert known["versions"]["torch"] == version("torch")
    assert known["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert known["device"].startswith("1 x cpu (")
    assert known["device"].endswith(f", {torch.backends.cpu.get_cpu_capability()})")
    assert known["rules"] == ["FedLAW"]  # of the callbacks, the one that is no monitor
    assert known["command"].split()[1:4] == ["fit", "--config", "tiny.yaml"], "as typed"
    assert len(known["data"]) == 16
    int(known["data"], 16)
    assert known["host"] == platform.node()
    assert timedelta(0) <= datetime.now().astimezone() - datetime.fromisoformat(known["started"]) < timedelta(hours=1)
    assert "resumed" not in known
    assert "code" not in known, "a temporary folder is in no repository"


def test_partition_is_in_the_run_folder(watched: Run) -> None:
    """A row of the counts adds up to its client's size; 4 clients, 10 digits."""
    with np.load(watched.folder / "arrays" / "partition.npz") as arrays:
        assert arrays["counts"].shape == (4, 10)
        assert (arrays["counts"].sum(1) == arrays["sizes"]).all()
        assert arrays["sizes"].sum() > 1000


def test_fast_dev_run_leaves_nothing_of_it(folder: None) -> None:
    made = trainer(RunTracking(), fast_dev_run=True)
    made.fit(FederatedOrchestrator(Quadratic()), datamodule=ToyData())
    assert [path.name for path in Path().iterdir()] == ["tiny.yaml"]


def test_tracking_changes_no_result(folder: None) -> None:
    assert torch.equal(train(rounds=2), train(RunTracking(), rounds=2))


@pytest.mark.skipif(shutil.which("git") is None, reason="git makes the repository")
def test_the_state_of_the_users_code(folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Untracked files, such as a run's, do not count; a folder within the repository is as good as its root."""

    def git(*args: str) -> str:
        who = ("-c", "user.name=me", "-c", "user.email=me@localhost")
        return subprocess.run(["git", *who, *args], check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    assert code_state() == {}, "no commit yet"
    git("add", "tiny.yaml")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD")
    train(RunTracking())
    assert yaml.safe_load(Path("environment.yaml").read_text())["code"] == {"commit": commit, "dirty": False}
    Path("tiny.yaml").write_text(TINY + "\n")
    monkeypatch.chdir("arrays")
    assert code_state() == {"commit": commit, "dirty": True}
    monkeypatch.setenv("PATH", "")
    assert code_state() == {}, "no git"


# Which values of metrics are better

TWICE = DataLoader(TensorDataset(torch.ones(2, 1)), batch_size=1)


class Judged(Quadratic):
    """Says of one metric that lower values are better, of another one by an object, and of a third one nothing."""

    lower_is_better = ("val/bce", "test/bce")

    def __init__(self) -> None:
        super().__init__()
        self.right = BinaryAccuracy()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/bce", self.w.sum())
        self.log("val/loss", self.w.sum())
        self.right.update(batch[0][:, 0], torch.ones(1).long())
        self.log_dict({"val/right": self.right}, on_step=True, on_epoch=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test/bce", self.w.sum())


class Evaluated(ToyData):
    def val_dataloader(self) -> Any:
        return TWICE

    def test_dataloader(self) -> Any:
        return TWICE


class Counts(FederatedCallback):
    """Declares two metrics, one of which is neither better nor worse."""

    metrics = (Metric("mine/gain/<k>", "Gain", better="higher"), Metric("mine/size", "Size"))


def test_a_run_folder_holds_which_values_are_better(folder: None) -> None:
    """For a report in another process: a user's module, its objects, his callbacks; null where the module says nothing.

    A run that goes on, and a test, add what they log.
    """

    def made(version: str | None, *callbacks: Any) -> Any:
        own = trainer(RunTracking(), *callbacks, logger=RunFolder("runs", "mine", version), num_sanity_val_steps=2)
        own.fit(FederatedOrchestrator(Judged()), datamodule=Evaluated())
        return own

    made(None, Counts())
    file = Path("runs/mine/version_0/better.yaml")
    expected = {"val/bce": "lower", "val/loss": None, "mine/gain/*": "higher"}
    expected |= {f"val/right{fork}": "higher" for fork in ("", "_step", "_epoch")}
    assert yaml.safe_load(file.read_text()) == expected
    again = made("version_0")
    assert yaml.safe_load(file.read_text()) == expected, "what the second fit does not log stays"
    again.test(again.lightning_module, datamodule=Evaluated(), verbose=False)
    assert yaml.safe_load(file.read_text()) == expected | {"test/bce": "lower"}
    (read,) = read_runs([file.parent])
    assert [read.better(name) for name in ("val/bce", "val/loss", "val/right_epoch", "mine/gain/3", "train/loss")] == [
        *("lower", None, "higher", "higher", "lower")
    ]


@pytest.mark.slow
def test_the_command_line_records_shipped_modules_and_their_clients(folder: None) -> None:
    fit("--data.held_out", 0.3, "--trainer.callbacks", "PersonalEvaluation", "--trainer.max_epochs", 1)
    known = yaml.safe_load((RUN / "better.yaml").read_text())
    assert known["val/top1"] == known["own/top1_worst"] == known["personal/top1/*"] == "higher"
    assert known["val/loss"] == known["held_out/loss_mean"] == "lower"
    assert None not in known.values()


# Going on


def test_a_run_keeps_the_time_of_its_start_and_its_ids(folder: None) -> None:
    """Each resumption adds its time; without environment.yaml, the start is unknown. This fit has no W&B logger."""
    file, earlier = RUN / "environment.yaml", {"time": "2001-01-02T00:00:00+00:00", "round": 1}
    fit("--trainer.max_epochs", 1)
    before = yaml.safe_load(file.read_text()) | {"started": "2001-01-01", "wandb": {"id": "abc"}, "resumed": [earlier]}
    file.write_text(yaml.safe_dump(before))
    fit("--ckpt_path", "last", "--trainer.max_epochs", 2)
    known = yaml.safe_load(file.read_text())
    assert (known["started"], known["wandb"]) == ("2001-01-01", {"id": "abc"})
    first, second = known["resumed"]
    assert (first, second["round"]) == (earlier, 2)
    assert datetime.fromisoformat(second["time"]).tzinfo is not None
    file.unlink()
    fit("--ckpt_path", "last", "--trainer.max_epochs", 3)
    known = yaml.safe_load(file.read_text())
    assert ("started" in known, [each["round"] for each in known["resumed"]]) == (False, [3])


def test_a_run_that_goes_on_is_the_same_in_wandb(folder: None) -> None:
    """Two files of one run: rounds 1 and 2, then 3 and 4; W&B's steps go up over both, as wandb sync needs it."""
    fit_with_wandb(*WANDB)
    fit_with_wandb(*WANDB, "--ckpt_path", "last", "--trainer.max_epochs", 4)
    first, second = sorted(Path().glob("wandb/offline-run-*/run-*.wandb"))
    assert first.name == second.name
    before, after = wandb_history(first), wandb_history(second)
    assert {row["round"] for row in before} == {0, 1, 2}
    assert {row["round"] for row in after} == {3, 4}
    steps = [row["_step"] for row in before + after]
    assert steps == sorted(set(steps))
    assert yaml.safe_load((RUN / "config.yaml").read_text())["trainer"]["logger"]["init_args"]["id"] is None


@pytest.mark.slow
def test_an_id_that_was_given_wins(folder: None) -> None:
    fit_with_wandb(*WANDB, "--trainer.max_epochs", 1)
    fit_with_wandb(*WANDB, "--trainer.logger.id", "mine", "--ckpt_path", "last")
    assert len(list(Path().glob("wandb/offline-run-*/run-mine.wandb"))) == 1


@pytest.mark.slow
def test_two_devices_write_as_one(folder: None) -> None:
    done = process("fit", "--config", "tiny.yaml", *WANDB, "--trainer.devices", 2, "--trainer.callbacks+=ClientMonitor")
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = Path().glob("wandb/offline-run-*/run-*.wandb")
    assert {row["round"] for row in wandb_history(file)} == {0, 1, 2}
    known = yaml.safe_load((RUN / "environment.yaml").read_text())
    assert known["device"].startswith("2 x cpu (")
    fit("--experiment", "one")
    assert known["data"] == yaml.safe_load(Path("runs/one/version_0/environment.yaml").read_text())["data"]
    assert (RUN / "arrays" / "partition.npz").is_file()


def test_no_classes_no_counts(folder: None) -> None:
    """The toy's clients have n = (1, 3) examples without classes; without a logger the Trainer's own folder serves."""
    train(RunTracking())
    with np.load("arrays/partition.npz") as arrays:
        assert arrays.files == ["sizes"]
        assert arrays["sizes"].tolist() == [1, 3]
    known = yaml.safe_load(Path("environment.yaml").read_text())
    assert list(known) == ["versions", "device", "rules", "data", "command", "host", "started"]
