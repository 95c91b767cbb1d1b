"""What W&B, TensorBoard and the run folder hold of a run, read back from real files."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from command import TINY, fit, process, rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import Dataset, TensorDataset
from toy import train
from wandb_files import wandb_config, wandb_history, wandb_records

from fl_lightning import FederatedDataModule
from fl_lightning.datamodules import Digits
from fl_lightning.datamodules.partition import Dirichlet
from fl_lightning.tracking import RunTracking, continue_wandb, fingerprint, has_wandb_key

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


def enter(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Work in a folder with tiny.yaml, which is the user's home, without a key for W&B."""
    patch.chdir(folder)
    patch.setenv("HOME", str(folder))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "WANDB_DIR", "WANDB_RUN_ID", "NETRC"):
        patch.delenv(name, raising=False)
    Path("tiny.yaml").write_text(TINY)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)


def fit_with_wandb(*args: object) -> str:
    """What a fit said whose W&B run is closed as the process's end would close it."""
    import wandb

    try:
        return fit(*args).out
    finally:
        wandb.finish()
        wandb.teardown()  # its service would stay in this working directory


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
        enter(tmp_path_factory.mktemp("watched"), patch)
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
    assert known["command"].split()[1:4] == ["fit", "--config", "tiny.yaml"], "as typed"
    assert len(known["data"]) == 16
    int(known["data"], 16)


def test_partition_is_in_the_run_folder(watched: Run) -> None:
    """A row of the counts adds up to its client's size; 4 clients, 10 digits."""
    with np.load(watched.folder / "arrays" / "partition.npz") as arrays:
        assert arrays["counts"].shape == (4, 10)
        assert (arrays["counts"].sum(1) == arrays["sizes"]).all()
        assert arrays["sizes"].sum() > 1000


def test_settings_differ_between_configs_not_between_seeds(folder: None) -> None:
    """They are what W&B puts seeds into one group by."""
    found = []
    for option in ("--seed_everything=2", "--seed_everything=3", "--data.batch_size=16"):
        fit_with_wandb(*WANDB, "--trainer.max_epochs", 1, "--trainer.logger.id", option[-2:], option)
        (file,) = Path().glob(f"wandb/offline-run-*/run-{option[-2:]}.wandb")
        found.append(wandb_config(file)["settings"])
    assert found[0] == found[1] != found[2]


def test_tracking_changes_no_result(folder: None) -> None:
    assert torch.equal(train(rounds=2), train(RunTracking(), rounds=2))


def test_fast_dev_run_leaves_nothing_of_it(folder: None) -> None:
    fit("--trainer.fast_dev_run", "true")
    assert not list(Path().rglob("environment.yaml")) + list(Path().rglob("partition.npz"))


# Going on


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


def test_an_id_that_was_given_wins(folder: None) -> None:
    fit_with_wandb(*WANDB, "--trainer.max_epochs", 1)
    fit_with_wandb(*WANDB, "--trainer.logger.id", "mine", "--ckpt_path", "last")
    assert len(list(Path().glob("wandb/offline-run-*/run-mine.wandb"))) == 1


def test_a_run_without_wandb_in_between_keeps_the_id(folder: None) -> None:
    fit_with_wandb(*WANDB, "--trainer.max_epochs", 1)
    known = yaml.safe_load((RUN / "environment.yaml").read_text())["wandb"]
    fit("--ckpt_path", "last")
    assert yaml.safe_load((RUN / "environment.yaml").read_text())["wandb"] == known


@pytest.mark.parametrize(("rounds", "continued"), [(3, True), (None, True), (2, False)])
def test_wandb_takes_no_rounds_back(
    folder: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    rounds: int | None,
    continued: bool,
) -> None:
    """Round 3 was trained to its end, round 4 not: after 3 it is the same run, and so in a test; after 2, another."""
    monkeypatch.setenv("WANDB_RUN_ID", "")
    del os.environ["WANDB_RUN_ID"]
    Path("environment.yaml").write_text("wandb: {id: abc}")
    Path("metrics.csv").write_text("round,val/loss,train/loss\n1,1,1\n2,1,1\n3,1,1\n4,1,\n")
    continue_wandb(Path(), rounds)
    assert os.environ.get("WANDB_RUN_ID") == ("abc" if continued else None)
    assert ("round 3 is there already" in capsys.readouterr().out) != continued


@pytest.mark.parametrize("file", [None, "data: 0123456789abcdef"])
def test_a_folder_that_names_no_run_of_wandb(folder: None, file: str | None) -> None:
    if file:
        Path("environment.yaml").write_text(file)
    continue_wandb(Path(), 1)
    assert "WANDB_RUN_ID" not in os.environ


@pytest.mark.slow
def test_a_killed_process_leaves_a_file_that_can_be_read(folder: None) -> None:
    """W&B writes 32 KiB at a time: of rows of some 300 bytes, those of the last rounds are lost, no earlier ones."""
    command = [str(Path(sys.executable).with_name("fl-lightning")), "fit", "--config", "tiny.yaml", *WANDB]
    started = subprocess.Popen([*command, "--trainer.max_epochs", "100000"], stdout=subprocess.DEVNULL)
    while sum(file.stat().st_size for file in Path().glob("wandb/offline-run-*/run-*.wandb")) < 32768:
        assert started.poll() is None
        time.sleep(0.1)
    started.send_signal(signal.SIGKILL)
    started.wait()
    (file,) = Path().glob("wandb/offline-run-*/run-*.wandb")
    found = sorted({row["round"] for row in wandb_history(file)})
    assert found == list(range(len(found)))
    assert len(found) > 2


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


# The key


def test_a_key_is_found_where_wandb_login_puts_it(folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_wandb_key()
    Path(".netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123\n")
    assert has_wandb_key()
    Path(".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "0123")
    assert has_wandb_key()


# Fingerprints


def digits(seed: int = 1, alpha: float = 0.5, num_clients: int = 4) -> Digits:
    data = Digits(num_clients=num_clients, partition=Dirichlet(alpha=alpha), seed=seed)
    data.prepare_data()
    data.setup("fit")
    return data


def test_same_data_same_fingerprint() -> None:
    assert fingerprint(digits()) == fingerprint(digits())


@pytest.mark.parametrize("change", [{"seed": 2}, {"alpha": 0.6}, {"num_clients": 5}])
def test_other_data_other_fingerprint(change: dict[str, Any]) -> None:
    assert fingerprint(digits()) != fingerprint(digits(**change))


class Examples(Dataset[Any]):
    """Two examples, made by what is given."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Two(FederatedDataModule):
    """Two clients with the same two examples."""

    num_clients = 2

    def __init__(self, dataset: Dataset[Any]) -> None:
        super().__init__()
        self.dataset = dataset

    def client_dataset(self, client: int) -> Dataset[Any]:
        return self.dataset


def of(make: Any) -> str:
    return fingerprint(Two(Examples(make)))


def test_one_number_of_an_example_makes_a_difference() -> None:
    images = torch.zeros(2, 1, 8, 8)
    before = fingerprint(Two(TensorDataset(images)))
    images[1, 0, 7, 7] = 1e-6
    assert fingerprint(Two(TensorDataset(images))) != before


def test_what_is_in_dicts_and_lists_makes_a_difference() -> None:
    first, again, other = (of(lambda i, word=word: {"words": [word, i], "x": torch.ones(2)}) for word in "aab")
    assert first == again != other


def fail(index: int) -> Any:
    raise OSError("the file is gone")


def test_examples_that_tell_nothing_are_left_out() -> None:
    """Those that cannot be read, that differ from one reading to the next, or that are objects without bytes."""
    draws = np.random.default_rng(0)
    sizes_alone = of(fail)
    assert of(lambda index: draws.random()) == sizes_alone
    assert of(lambda index: object()) == sizes_alone
    assert of(lambda index: 1.0) != sizes_alone


def test_augmentation_makes_no_difference_and_no_draws() -> None:
    """It draws from global generators: the same for each reading, which are then as they were."""
    torch.manual_seed(1)
    first = of(lambda index: torch.rand(3) + np.random.rand())
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert of(lambda index: torch.rand(3) + np.random.rand()) == first != of(fail)
    assert torch.equal(torch.get_rng_state(), state)


def test_no_classes_no_counts(folder: None) -> None:
    """The toy's clients have n = (1, 3) examples without classes; without a logger the Trainer's own folder serves."""
    train(RunTracking())
    with np.load("arrays/partition.npz") as arrays:
        assert arrays.files == ["sizes"]
        assert arrays["sizes"].tolist() == [1, 3]
    assert set(yaml.safe_load(Path("environment.yaml").read_text())) == {"versions", "device", "data", "command"}
