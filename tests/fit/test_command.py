"""The command line: configs and overrides, the run folder, continuing and testing, loggers, a user's own rule."""

import filecmp
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command import TINY, fit, fit_on, process, rows, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_files import wandb_records

from fl_lightning.fit.command import _several

RUN = Path("runs", "tiny", "version_0")
LAST = RUN / "checkpoints" / "last.ckpt"
OTHER_RATE = ("--model.client.optimizer.lr", 0.05, "--resume_changed", "true")
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


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with tiny.yaml and my_rule.py, which is the user's home, without a key for W&B."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_CONFIG_DIR", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    Path("tiny.yaml").write_text(TINY)
    Path("my_rule.py").write_text(MY_RULE)


def printed(*args: object) -> dict[str, Any]:
    """The config that ``fit ARGS --print_config`` shows."""
    result = run("fit", *args, "--print_config")
    assert result.status == 0, result.err
    return dict(yaml.safe_load(result.out))


def same_weights(*checkpoints: Path) -> bool:
    first, second = (torch.load(path, weights_only=True)["state_dict"] for path in checkpoints)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# Configs and overrides


@pytest.mark.parametrize(
    "spelling", [("--config", "digits_gh.yaml"), ("--config=digits_gh.yaml",), ("-c", "digits_gh")]
)
def test_bare_name_finds_the_shipped_config(spelling: tuple[str, ...]) -> None:
    config = printed(*spelling)
    classes = [callback["class_path"] for callback in config["trainer"]["callbacks"]]
    assert classes == [f"fl_lightning.callbacks.{name}" for name in ("GradientHarmonization", "ConflictMonitor")]


def test_working_directory_goes_before_the_shipped_configs() -> None:
    Path("digits_gh.yaml").write_text(TINY.replace("num_clients: 4", "num_clients: 3"))
    assert printed("--config", "digits_gh.yaml")["data"]["init_args"]["num_clients"] == 3


def test_overrides_reach_what_they_name() -> None:
    config = printed(
        *("--config", "mnist_gh.yaml", "--data.root", "elsewhere", "--data.partition.alpha", 0.25),
        *("--model.local_epochs", 3, "--trainer.max_epochs", 7, "--model.client.optimizer.lr", 0.5),
        *("--trainer.callbacks+=FedNova", "--trainer.callbacks+=FedProx", "--trainer.callbacks.mu", 0.125),
    )
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


def test_short_and_full_class_names_are_the_same() -> None:
    full = "fl_lightning.callbacks.ConflictMonitor"
    short = printed("--config", "tiny.yaml", "--trainer.callbacks+=ConflictMonitor")
    assert short == printed("--config", "tiny.yaml", f"--trainer.callbacks+={full}")
    assert [callback["class_path"] for callback in short["trainer"]["callbacks"]] == [full]


def test_seed_governs_model_and_data() -> None:
    """Another seed: another partition, other initial weights, other numbers. The same: the same."""
    for experiment, seed in (("a", 1), ("b", 2), ("c", 2)):
        fit("--experiment", experiment, "--seed_everything", seed, "--trainer.max_epochs", 1)
    a, b, c = (rows(f"runs/{experiment}/version_0/metrics.csv") for experiment in "abc")
    assert b == c
    assert a != b


def test_users_own_rule_in_the_working_directory() -> None:
    """A rule that takes none of any update: the model stays as it was, so every round measures the same."""
    fit("--trainer.callbacks+=my_rule.MyRule")
    first, second = rows(RUN / "metrics.csv")
    assert [first[name] for name in ("val/top1", "val/loss")] == [second[name] for name in ("val/top1", "val/loss")]
    fit("--trainer.callbacks+=my_rule.MyRule", "--trainer.callbacks.share", 1, "--experiment", "all")
    fit("--experiment", "none")
    assert rows("runs/all/version_0/metrics.csv") == rows("runs/none/version_0/metrics.csv"), "all of it: FedAvg"


# The run folder


def test_run_folder_layout() -> None:
    result = fit()
    assert sorted(str(path.relative_to(RUN)) for path in RUN.rglob("*") if path.is_file()) == [
        "arrays/partition.npz",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "config.yaml",
        "environment.yaml",
        "metrics.csv",
        "timings.csv",
    ]
    assert result.out.endswith(f"run folder: {RUN}\n")
    assert not Path("lightning_logs").exists()


def test_every_run_has_a_folder_of_its_own() -> None:
    for _ in range(2):
        fit("--trainer.max_epochs", 1)
    fit("--trainer.max_epochs", 1, "--experiment", "other")
    fit("--trainer.max_epochs", 1, "--trainer.default_root_dir", "elsewhere")
    files = sorted(str(path) for path in Path().glob("*/*/*/metrics.csv"))
    assert files == [
        "elsewhere/tiny/version_0/metrics.csv",
        "runs/other/version_0/metrics.csv",
        "runs/tiny/version_0/metrics.csv",
        "runs/tiny/version_1/metrics.csv",
    ]


def test_metrics_are_one_row_a_round() -> None:
    """355 test images: a share of them is a whole number of 355ths."""
    fit("--trainer.max_epochs", 3, "--trainer.callbacks+=ConflictMonitor")
    lines = (RUN / "metrics.csv").read_text().splitlines()
    assert lines[0].startswith("round,val/top1,val/top3,val/loss,train/loss,bytes/")
    table = rows(RUN / "metrics.csv")
    assert [row["round"] for row in table] == [1, 2, 3]
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3"]
    for row in table:
        assert row.keys() == FEDERATED | CONFLICT
        assert row["val/top1"] * 355 == pytest.approx(round(row["val/top1"] * 355), abs=1e-3)
        assert row["conflict/ratio"] * 6 == pytest.approx(round(row["conflict/ratio"] * 6), abs=1e-5), "4 clients"


def test_evaluation_every_other_round_leaves_gaps_and_changes_nothing() -> None:
    fit("--trainer.max_epochs", 4)
    fit("--trainer.max_epochs", 4, "--trainer.check_val_every_n_epoch", 2)
    every, other = rows(RUN / "metrics.csv"), rows(RUN.with_name("version_1") / "metrics.csv")
    assert [row.keys() for row in other] == [TRAINED, FEDERATED] * 2
    assert other == [{name: row[name] for name in kept} for row, kept in zip(every, other, strict=True)]


def test_saved_config_reproduces_the_run() -> None:
    fit("--data.participation", 0.5, "--trainer.callbacks+=GradientHarmonization", "--model.client.optimizer.lr", 0.05)
    fit("--experiment", "again", config=str(RUN / "config.yaml"))
    assert filecmp.cmp(RUN / "metrics.csv", "runs/again/version_0/metrics.csv", shallow=False)
    assert same_weights(LAST, Path("runs/again/version_0/checkpoints/last.ckpt"))


def test_best_checkpoint_is_of_the_round_with_the_highest_top1() -> None:
    fit("--trainer.max_epochs", 3)
    table = rows(RUN / "metrics.csv")
    best = max(table, key=lambda row: row["val/top1"])["round"]
    assert best != 3, "else this would not tell it from last.ckpt"
    assert torch.load(RUN / "checkpoints" / "best.ckpt", weights_only=True)["rounds_done"] == best
    assert torch.load(LAST, weights_only=True)["rounds_done"] == 3


def test_without_checkpoints_there_are_none() -> None:
    fit("--trainer.enable_checkpointing", "false")
    assert (RUN / "metrics.csv").is_file()
    assert not list(Path("runs").rglob("*.ckpt"))


# Testing and continuing


def test_test_adds_its_metrics_to_the_row_of_the_round() -> None:
    """``val/*`` is the test set too: the same numbers must come."""
    fit()
    before, config = rows(RUN / "metrics.csv"), (RUN / "config.yaml").read_bytes()
    result = run("test", "--config", "tiny.yaml", "--ckpt_path", LAST)
    assert result.status == 0, result.err
    after = rows(RUN / "metrics.csv")
    measured = {f"test/{name}": before[-1][f"val/{name}"] for name in ("top1", "top3", "loss")}
    assert after == [*before[:-1], before[-1] | measured]
    assert (RUN / "config.yaml").read_bytes() == config, "config.yaml is what trained the run, and must do so again"


def test_test_of_the_best_checkpoint_belongs_to_its_round() -> None:
    fit("--trainer.max_epochs", 3)
    before = rows(RUN / "metrics.csv")
    run("test", "--config", "tiny.yaml", "--ckpt_path", RUN / "checkpoints" / "best.ckpt")
    best = max(before, key=lambda row: row["val/top1"])
    assert [row for row in rows(RUN / "metrics.csv") if "test/top1" in row] == [
        best | {f"test/{name}": best[f"val/{name}"] for name in ("top1", "top3", "loss")}
    ]


def test_continued_run_equals_the_uninterrupted_one() -> None:
    """In its own folder: the same table byte for byte, the same weights bit for bit."""
    options = ["--trainer.callbacks+=ConflictMonitor", "--data.participation", 0.5]
    fit("--trainer.max_epochs", 4, "--experiment", "whole", *options)
    fit("--trainer.max_epochs", 2, *options)
    result = fit("--trainer.max_epochs", 4, "--ckpt_path", "last", *options)
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["version_0"]
    assert "round 3/4" in result.out
    assert "round 2/4" not in result.out, "rounds that are done are not run again"
    assert [row["round"] for row in rows(RUN / "metrics.csv")] == [1, 2, 3, 4]
    assert filecmp.cmp(RUN / "metrics.csv", "runs/whole/version_0/metrics.csv", shallow=False)
    assert same_weights(LAST, Path("runs/whole/version_0/checkpoints/last.ckpt"))


def test_continuing_from_an_earlier_round_drops_the_later_rows() -> None:
    """From round 1 of 3: rounds 2 and 3 are trained again, here with another learning rate, and stop at 2."""
    fit("--trainer.max_epochs", 3)
    before = rows(RUN / "metrics.csv")
    assert before[0]["val/top1"] == max(row["val/top1"] for row in before), "best.ckpt is of round 1"
    fit("--trainer.max_epochs", 2, "--ckpt_path", RUN / "checkpoints/best.ckpt", *OTHER_RATE)
    after = rows(RUN / "metrics.csv")
    assert after[0] == before[0]
    assert [row["round"] for row in after] == [1, 2]
    assert after[1] != before[1]


def test_a_round_that_is_trained_again_keeps_nothing_of_the_first_time() -> None:
    """Round 2 was tested; then it is trained anew from round 1: its ``test/*`` were another model's."""
    fit()
    assert run("test", "--config", "tiny.yaml", "--ckpt_path", LAST).status == 0
    assert torch.load(RUN / "checkpoints" / "best.ckpt", weights_only=True)["rounds_done"] == 1
    fit("--ckpt_path", RUN / "checkpoints" / "best.ckpt", *OTHER_RATE)
    assert [row.keys() for row in rows(RUN / "metrics.csv")] == [FEDERATED, FEDERATED]


def test_last_is_the_newest_run_of_the_experiment() -> None:
    fit("--trainer.max_epochs", 1)
    fit("--trainer.max_epochs", 1)
    fit("--trainer.max_epochs", 1, "--experiment", "other")
    fit("--ckpt_path", "last")
    lengths = {path.parent.name: len(rows(path)) for path in Path("runs/tiny").glob("*/metrics.csv")}
    assert lengths == {"version_0": 1, "version_1": 2}
    assert len(rows("runs/other/version_0/metrics.csv")) == 1


@pytest.mark.parametrize("option", ["--model.client.optimizer.lr", "--model.server_optimizer.lr"])
def test_command_line_wins_over_the_checkpoint(option: str) -> None:
    """With a learning rate of 0, local or of the server, the model stays: round 3 measures what round 2 did."""
    fit()
    fit("--ckpt_path", "last", "--trainer.max_epochs", 3, option, 0, "--resume_changed", "true")
    table = rows(RUN / "metrics.csv")
    assert table[-1]["round"] == 3
    assert table[-1]["val/loss"] == table[-2]["val/loss"]


def test_continued_run_saves_the_config_that_it_ran_with() -> None:
    fit()
    fit("--ckpt_path", "last", "--trainer.max_epochs", 3, *OTHER_RATE)
    config = yaml.safe_load((RUN / "config.yaml").read_text())
    assert config["model"]["client"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.05


# Loggers, and Lightning's own callbacks


def wandb_rounds() -> dict[int, dict[str, float]]:
    """What the one offline run in the working directory logged, by round."""
    (file,) = Path().glob("wandb/offline-run-*/run-*.wandb")
    logged: dict[int, dict[str, float]] = {}
    for record in wandb_records(file):
        if record.WhichOneof("record_type") == "history":
            entry = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            logged.setdefault(int(entry["round"]), {}).update(entry)
    return logged


def check_wandb(out: str) -> None:
    """Says where the run is, and every value of metrics.csv is in it, to the digits there; the x-axis is the round."""
    assert "recorded offline" in out
    assert "wandb sync" in out
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
    arguments = ["--trainer.logger", "WandbLogger", "--trainer.callbacks+=ConflictMonitor"]
    done = process("fit", "--config", "tiny.yaml", *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    check_wandb(done.stdout)


def test_wandb_from_yaml_without_a_key_records_offline() -> None:
    import wandb

    logger = "  logger: {class_path: WandbLogger, init_args: {project: digits}}\n  max_epochs"
    Path("tiny.yaml").write_text(TINY.replace("  max_epochs", logger))
    try:
        result = fit("--trainer.callbacks+=ConflictMonitor")
    finally:
        wandb.finish()
        wandb.teardown()  # its service would stay in this working directory
    check_wandb(result.out)


def test_tensorboard_from_the_command_line() -> None:
    """Its events read back: the step is the round, the values are those of metrics.csv."""
    logger = ("--trainer.logger", "TensorBoardLogger", "--trainer.logger.save_dir", "tb")
    fit(*logger, "--trainer.callbacks+=ConflictMonitor")
    (file,) = Path("tb").rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file.parent)).Reload()
    table = rows(RUN / "metrics.csv")
    for name in (FEDERATED | CONFLICT) - {"round"}:  # which comes twice a round, after training and after validation
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == [1, 2]
        assert [scalar.value for scalar in scalars] == pytest.approx([row[name] for row in table], rel=1e-6)


def test_early_stopping_by_short_name() -> None:
    """Any accuracy is above a threshold of 0: the first of five rounds is the last."""
    options = {"monitor": "val/top1", "mode": "max", "stopping_threshold": 0}
    flags = [part for name, value in options.items() for part in (f"--trainer.callbacks.{name}", value)]
    fit("--trainer.max_epochs", 5, "--trainer.callbacks+=EarlyStopping", *flags)
    assert [row["round"] for row in rows(RUN / "metrics.csv")] == [1]


@pytest.mark.parametrize("interval", ["null", "epoch"])
def test_learning_rate_monitor_by_short_name(interval: str) -> None:
    """The server's learning rate, 1 for FedAvg, in every round's row."""
    fit("--trainer.callbacks+=LearningRateMonitor", "--trainer.callbacks.logging_interval", interval)
    assert [(row["round"], row.get("lr-SGD")) for row in rows(RUN / "metrics.csv")] == [(1, 1), (2, 1)]


def test_users_own_model_checkpoint_takes_the_place_of_the_best() -> None:
    options = ["--trainer.callbacks.monitor", "val/loss", "--trainer.callbacks.filename", "lowest"]
    fit("--trainer.callbacks+=ModelCheckpoint", *options)
    assert sorted(path.name for path in (RUN / "checkpoints").iterdir()) == ["last.ckpt", "lowest.ckpt"]


# The process


def test_two_devices_train_what_one_does() -> None:
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


def test_forked_devices_leave_no_empty_folder() -> None:
    """The process that starts them takes no folder of its own."""
    fit_on(2, "--trainer.max_epochs", 1)
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["version_0"]


@pytest.mark.parametrize(
    ("accelerator", "devices", "nodes", "several"),
    [
        ("cpu", "auto", 1, False),
        ("cpu", 1, 1, False),
        ("cpu", 2, 1, True),
        ("cpu", "2", 1, True),
        ("cpu", 1, 2, True),
        ("gpu", [0], 1, False),
        ("gpu", [0, 1], 1, True),
        ("gpu", "0,1", 1, True),
        ("gpu", "0,", 1, False),
    ],
)
def test_several_devices(accelerator: str, devices: Any, nodes: int, several: bool) -> None:
    assert _several(accelerator, devices, nodes) is several
