"""The command line: configs and overrides, the run folder, continuing and testing, loggers, a user's own rule."""

import filecmp
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
import torch
import yaml
from lib.command import TINY, fit, fit_on, process, rows, run
from lib.wandb_files import fit_with_wandb, wandb_history, without_key
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_lightning.fit.command import _several
from fl_lightning.fit.read_config import config_of

RUN = Path("runs", "tiny", "version_0")
LAST = RUN / "checkpoints" / "last.ckpt"
CHANGED = ("--resume_changed", "true")
MONITOR = "--trainer.callbacks+=ConflictMonitor"
TRAINED = {"round", "train/loss", "bytes/down", "bytes/up", "bytes/total", "clients/quarantined"}
FEDERATED = TRAINED | {"val/top1", "val/top3", "val/loss"}
CONFLICT = {f"conflict/{name}{when}" for name in ("ratio", "min_cosine", "mean_cosine") for when in ("", "_after")}
CONFLICT |= {"conflict/weighted_ratio", "conflict/removed", "conflict/angle"}

MY_RULE = '''

from fl_lightning import Cohort, FederatedCallback, FederatedOrchestrator


class MyRule(FederatedCallback):
    """Takes this share of every update."""

    def __init__(self, share: float = 0.0) -> None:
        self.share = share

    def aggregate(self, orchestrator: FederatedOrchestrator, cohort: Cohort) -> Cohort:
        return cohort.replace(weights=self.share * cohort.weights)
'''


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A working directory with a run of three rounds in runs/tiny/version_0, and what it has printed; copy it."""
    folder = tmp_path_factory.mktemp("trained")
    with chdir(folder):
        Path("tiny.yaml").write_text(TINY)
        result = fit("--trainer.max_epochs", 3, MONITOR)
    return folder, result.out


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with my_rule.py, which is the user's home, without a key for W&B."""
    without_key(tmp_path, monkeypatch)
    Path("my_rule.py").write_text(MY_RULE)


@pytest.fixture
def before(monitored: tuple[Path, str]) -> list[dict[str, float]]:
    """The rows of the run of three rounds, which is copied into the working directory."""
    shutil.copytree(monitored[0] / "runs", "runs")
    return rows(RUN / "metrics.csv")


def same_weights(*checkpoints: Path) -> bool:
    first, second = (torch.load(path, weights_only=True)["state_dict"] for path in checkpoints)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def losses(experiment: str) -> list[float]:
    return [row["val/loss"] for row in rows(f"runs/{experiment}/version_0/metrics.csv")]


# Configs and overrides


@pytest.mark.parametrize(
    "spelling", [("--config", "digits_gh.yaml"), ("--config=digits_gh.yaml",), ("-c", "digits_gh")]
)
def test_bare_name_finds_the_shipped_config(spelling: tuple[str, ...]) -> None:
    """Unless the working directory has a config of that name."""
    classes = [callback["class_path"] for callback in config_of(spelling)["trainer"]["callbacks"]]
    assert classes == [f"fl_lightning.callbacks.{name}" for name in ("GradientHarmonization", "ConflictMonitor")]
    Path(spelling[-1].removeprefix("--config=")).write_text(TINY.replace("num_clients: 4", "num_clients: 3"))
    assert config_of(spelling)["data"]["init_args"]["num_clients"] == 3


def test_overrides_reach_what_they_name() -> None:
    options = (
        *("--config", "mnist_gh.yaml", "--data.root", "elsewhere", "--data.partition.alpha", "0.25"),
        *("--model.local_epochs", "3", "--trainer.max_epochs", "7", "--model.client.optimizer.lr", "0.5"),
        *("--trainer.callbacks+=FedNova", "--trainer.callbacks+=FedProx", "--trainer.callbacks.mu", "0.125"),
    )
    config = config_of(options)
    data = config["data"]["init_args"]
    assert data["root"] == "elsewhere"
    assert data["partition"]["init_args"] == {"alpha": 0.25, "form": "class", "min_samples": 10}
    assert data["num_clients"] == 20, "what is not overridden stays"
    assert config["model"]["local_epochs"] == 3
    assert config["model"]["client"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.5
    assert config["trainer"]["max_epochs"] == 7
    names = [callback["class_path"].rpartition(".")[2] for callback in config["trainer"]["callbacks"]]
    assert names == ["GradientHarmonization", "ConflictMonitor", "FedNova", "FedProx"], "+= appends"
    assert config["trainer"]["callbacks"][-1]["init_args"] == {"mu": 0.125}
    printed = run("fit", *options, "--print_config")
    assert printed.status == 0
    assert {**yaml.safe_load(printed.out), "experiment": None} == {**config, "experiment": None}


def test_seed_governs_model_and_data(before: list[dict[str, float]]) -> None:
    """Another seed: another partition, other initial weights, other numbers."""
    fit("--seed_everything", 2, "--experiment", "other", "--trainer.max_epochs", 1)
    assert losses("other") != losses("tiny")[:1]


def test_users_own_rule_in_the_working_directory(before: list[dict[str, float]]) -> None:
    """A rule that takes none of any update: every round measures the same. All of it: FedAvg."""
    fit("--trainer.callbacks+=my_rule.MyRule", "--experiment", "none")
    assert len({*losses("none")}) == 1
    fit("--trainer.callbacks+=my_rule.MyRule", "--trainer.callbacks.share", 1, "--experiment", "all")
    assert losses("all") == losses("tiny")[:2]


# The run folder


def test_run_folder_layout(monitored: tuple[Path, str]) -> None:
    folder, out = monitored
    assert sorted(str(path.relative_to(folder / RUN)) for path in (folder / RUN).rglob("*") if path.is_file()) == [
        "arrays/partition.npz",
        "better.yaml",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "config.yaml",
        "environment.yaml",
        "metrics.csv",
        "timings.csv",
    ]
    assert out.endswith(f"run folder: {RUN}\n")
    assert sorted(path.name for path in folder.iterdir()) == ["runs", "tiny.yaml"]


def test_every_run_has_a_folder_of_its_own_and_last_is_the_experiments_newest() -> None:
    for options in ([], [], ["--experiment", "other"], ["--trainer.default_root_dir", "elsewhere"]):
        fit("--trainer.max_epochs", 1, *options)
    fit("--ckpt_path", "last")
    assert {str(path.parent): len(rows(path)) for path in Path().glob("*/*/*/metrics.csv")} == {
        "elsewhere/tiny/version_0": 1,
        "runs/other/version_0": 1,
        "runs/tiny/version_0": 1,
        "runs/tiny/version_1": 2,
    }


def test_metrics_are_one_row_a_round(before: list[dict[str, float]]) -> None:
    """355 test images: a share of them is a whole number of 355ths."""
    lines = (RUN / "metrics.csv").read_text().splitlines()
    assert lines[0].startswith("round,val/top1,val/top3,val/loss,train/loss,bytes/")
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3"]
    for row in before:
        assert row.keys() == FEDERATED | CONFLICT
        assert row["val/top1"] * 355 == pytest.approx(round(row["val/top1"] * 355), abs=1e-3)
        assert row["conflict/ratio"] * 6 == pytest.approx(round(row["conflict/ratio"] * 6), abs=1e-5), "4 clients"


def test_evaluation_every_other_round_leaves_gaps_and_changes_nothing(before: list[dict[str, float]]) -> None:
    fit("--trainer.max_epochs", 3, "--trainer.check_val_every_n_epoch", 2)
    other = rows(RUN.with_name("version_1") / "metrics.csv")
    assert [row.keys() for row in other] == [TRAINED, FEDERATED, TRAINED]
    assert other == [{name: row[name] for name in kept} for row, kept in zip(before, other, strict=True)]


def test_saved_config_reproduces_the_run(before: list[dict[str, float]]) -> None:
    fit("--experiment", "again", config=str(RUN / "config.yaml"))
    assert filecmp.cmp(RUN / "metrics.csv", "runs/again/version_0/metrics.csv", shallow=False)
    assert same_weights(LAST, Path("runs/again/version_0/checkpoints/last.ckpt"))


def test_without_checkpoints_there_are_none() -> None:
    fit("--trainer.enable_checkpointing", "false", "--trainer.max_epochs", 1)
    assert (RUN / "metrics.csv").is_file()
    assert not list(Path("runs").rglob("*.ckpt"))


# Testing and continuing


@pytest.mark.parametrize("name", ["best", "last"])
def test_test_adds_its_metrics_to_the_row_of_the_round(name: str, before: list[dict[str, float]]) -> None:
    """``val/*`` is the test set too: the same numbers must come. The best round is that of the highest top-1."""
    config = (RUN / "config.yaml").read_bytes()
    tested = max(before, key=lambda row: row["val/top1"]) if name == "best" else before[-1]
    assert (tested["round"] == 3) == (name == "last"), "else this would not tell best.ckpt from last.ckpt"
    result = run("test", "--config", "tiny.yaml", MONITOR, "--ckpt_path", RUN / f"checkpoints/{name}.ckpt")
    assert result.status == 0, result.err
    measured = {f"test/{metric}": tested[f"val/{metric}"] for metric in ("top1", "top3", "loss")}
    assert rows(RUN / "metrics.csv") == [row | measured if row is tested else row for row in before]
    assert (RUN / "config.yaml").read_bytes() == config, "config.yaml is what trained the run, and must do so again"


def test_continued_run_equals_the_uninterrupted_one(monitored: tuple[Path, str]) -> None:
    """In its own folder: the same table byte for byte, the same weights bit for bit."""
    fit(MONITOR)
    result = fit("--trainer.max_epochs", 3, "--ckpt_path", "last", MONITOR)
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["version_0"]
    assert "round 3/3" in result.out
    assert "round 2/3" not in result.out, "rounds that are done are not run again"
    assert filecmp.cmp(RUN / "metrics.csv", monitored[0] / RUN / "metrics.csv", shallow=False)
    assert same_weights(LAST, monitored[0] / LAST)


def test_a_round_that_is_trained_again_keeps_nothing_of_the_first_time(before: list[dict[str, float]]) -> None:
    """Round 3 was tested; from round 1, the best, round 2 is trained anew, and clients stand still at a rate of 0.

    The rate of the command line wins over the checkpoint's, and config.yaml is that of the last start.
    """
    assert run("test", "--config", "tiny.yaml", MONITOR, "--ckpt_path", LAST).status == 0
    rate = ("--model.client.optimizer.lr", 0, *CHANGED)
    fit(MONITOR, "--trainer.max_epochs", 2, "--ckpt_path", RUN / "checkpoints/best.ckpt", *rate)
    first, second = rows(RUN / "metrics.csv")
    assert (first, second["round"]) == (before[0], 2)
    assert second["val/loss"] == first["val/loss"] != before[1]["val/loss"]
    assert not [name for name in second if name.startswith("test/")]
    config = yaml.safe_load((RUN / "config.yaml").read_text())
    assert config["model"]["client"]["init_args"]["optimizer"]["init_args"]["lr"] == 0


def test_the_servers_rate_of_the_command_line_wins_over_the_checkpoint(before: list[dict[str, float]]) -> None:
    """With a learning rate of 0, the model stays: round 4 measures what round 3 did."""
    rate = ("--model.server_optimizer.lr", 0, *CHANGED)
    fit(MONITOR, "--trainer.max_epochs", 4, "--ckpt_path", "last", *rate)
    assert losses("tiny")[2] == losses("tiny")[3]


# Loggers, and Lightning's own callbacks


def wandb_rounds() -> dict[int, dict[str, float]]:
    """What the one offline run in the working directory logged, by round."""
    (file,) = Path().glob("wandb/offline-run-*/run-*.wandb")
    logged: dict[int, dict[str, float]] = {}
    for row in wandb_history(file):
        logged.setdefault(int(row["round"]), {}).update(row)
    return logged


def check_wandb(out: str) -> None:
    """Says where the run is, and every value of metrics.csv is in it, to the digits there; the x-axis is the round."""
    assert "recorded offline" in out
    assert "wandb sync" in out
    project = "digits" if "project: digits" in Path("tiny.yaml").read_text() else "lightning_logs"
    hint = f"W&B: once the run is sent, fl-lightning dashboard --project {project} makes its dashboard"
    assert hint in out.splitlines()
    table, logged = rows(RUN / "metrics.csv"), wandb_rounds()
    assert sorted(logged) == [0, *(row["round"] for row in table)] == [0, 1, 2], "0 shows the partition"
    for row in table:
        entry = logged[int(row["round"])]
        assert row.keys() == FEDERATED | CONFLICT
        assert {name: entry[name] for name in row} == pytest.approx(row, rel=1e-6)
        assert entry["trainer/global_step"] == row["round"]


@pytest.mark.slow
def test_wandb_from_the_command_line_without_a_key_records_offline() -> None:
    """A process of its own: nobody but its end closes the run."""
    arguments = ["--trainer.logger", "WandbLogger", MONITOR]
    done = process("fit", "--config", "tiny.yaml", *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    check_wandb(done.stdout)


def test_wandb_from_yaml_without_a_key_records_offline() -> None:
    logger = "  logger: {class_path: WandbLogger, init_args: {project: digits}}\n  max_epochs"
    Path("tiny.yaml").write_text(TINY.replace("  max_epochs", logger))
    check_wandb(fit_with_wandb(MONITOR))


def test_tensorboard_and_callbacks_of_lightning_by_short_name() -> None:
    """TensorBoard's events read back: the step is the round, the values are those of metrics.csv.

    The server's learning rate is 1 for FedAvg, in every round's row; a ModelCheckpoint takes the place of best.ckpt.
    """
    fit(
        *("--trainer.logger", "TensorBoardLogger", "--trainer.logger.save_dir", "tb", MONITOR),
        *("--trainer.callbacks+=LearningRateMonitor", "--trainer.callbacks.logging_interval", "epoch"),
        *("--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.monitor", "val/loss"),
        *("--trainer.callbacks.filename", "lowest"),
    )
    (file,) = Path("tb").rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file.parent)).Reload()
    table = rows(RUN / "metrics.csv")
    for name in (FEDERATED | CONFLICT) - {"round"}:  # which comes twice a round, after training and after validation
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == [1, 2]
        assert [scalar.value for scalar in scalars] == pytest.approx([row[name] for row in table], rel=1e-6)
    assert [(row["round"], row.get("lr-SGD")) for row in table] == [(1, 1), (2, 1)]
    assert sorted(path.name for path in (RUN / "checkpoints").iterdir()) == ["last.ckpt", "lowest.ckpt"]


def test_early_stopping_by_short_name() -> None:
    """Any accuracy is above a threshold of 0: the first of five rounds is the last."""
    options = {"monitor": "val/top1", "mode": "max", "stopping_threshold": 0}
    flags = [part for name, value in options.items() for part in (f"--trainer.callbacks.{name}", value)]
    fit(
        "--trainer.max_epochs",
        5,
        "--trainer.callbacks+=LearningRateMonitor",
        "--trainer.callbacks+=EarlyStopping",
        *flags,
    )
    assert [(row["round"], row.get("lr-SGD")) for row in rows(RUN / "metrics.csv")] == [(1, 1)]


# The process


def test_two_devices_train_what_one_does() -> None:
    """Three clients a round, so that one device is padded. The process that starts the two takes no folder."""
    for devices in (1, 2):
        fit_on(devices, "--data.participation", 3, "--trainer.max_epochs", 1, "--experiment", f"on_{devices}")
    one, two = (Path("runs", f"on_{devices}", "version_0") for devices in (1, 2))
    assert filecmp.cmp(one / "metrics.csv", two / "metrics.csv", shallow=False)
    assert same_weights(one / "checkpoints/last.ckpt", two / "checkpoints/last.ckpt")
    assert [path.name for path in Path("runs/on_2").iterdir()] == ["version_0"]


@pytest.mark.slow
def test_two_processes_train_what_one_does() -> None:
    """Two processes share the clients and one run folder; three clients a round, so that one device is padded."""
    options = ["fit", "--config", "tiny.yaml", "--data.participation", "3", "--model.local_epochs", "2"]
    assert run(*options, "--experiment", "one").status == 0
    done = process(*options, "--trainer.devices", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [done.stdout.count(word) for word in ("loading", "round 1/2")] == [1, 1], "one device alone reports"
    assert "local_epochs: 2\n" in (RUN / "config.yaml").read_text(), "no float, whatever was imported first"
    assert done.stdout.endswith(f"run folder: {RUN}\n")
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["version_0"]
    assert filecmp.cmp(RUN / "metrics.csv", "runs/one/version_0/metrics.csv", shallow=False)
    assert same_weights(LAST, Path("runs/one/version_0/checkpoints/last.ckpt"))


def test_several_devices() -> None:
    one = [("cpu", "auto", 1), ("cpu", 1, 1), ("gpu", [0], 1), ("gpu", "0,", 1)]
    more = [("cpu", 2, 1), ("cpu", "2", 1), ("cpu", 1, 2), ("gpu", [0, 1], 1), ("gpu", "0,1", 1)]
    assert [arguments for arguments in [*one, *more] if _several(*arguments)] == more
