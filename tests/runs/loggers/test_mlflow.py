"""What MLflow holds of a run, read back from a real store by MLflow's own client.

All tests use one store, because making a store takes seconds; each has an experiment of its own in the store. MLflow is
imported within the tests, where it contacts nobody.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from lib.command import fit, process, rows, run
from lib.wandb_files import without_key
from lightning.pytorch.loggers import MLFlowLogger

from fl_lightning.runs.config.settings import settings_fingerprint
from fl_lightning.runs.loggers.mlflow import continue_mlflow

RUN = Path("runs", "tiny", "version_0")
WATCHED = (
    *("--trainer.callbacks+=FedProx", "--trainer.callbacks.mu", 0.1, "--trainer.callbacks+=GradientHarmonization"),
    *("--trainer.callbacks+=ConflictMonitor", "--trainer.callbacks.every", 1, "--trainer.callbacks.layers", "true"),
    *("--trainer.callbacks+=ClientMonitor", "--trainer.callbacks+=LearningRateMonitor"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_key(tmp_path, monkeypatch)


def options(store: str, experiment: str) -> tuple[str, ...]:
    settings = {"tracking_uri": store, "experiment_name": experiment}
    return (
        "--trainer.logger=MLFlowLogger",
        *(f"--trainer.logger.{name}={value}" for name, value in settings.items()),
    )


class Kept:
    """The only run of an experiment."""

    def __init__(self, store: str, experiment: str) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(store)
        (self.run,) = self.client.search_runs([self.client.get_experiment_by_name(experiment).experiment_id])
        self.id, self.params, self.tags = self.run.info.run_id, self.run.data.params, self.run.data.tags

    def history(self, name: str) -> dict[int, float]:
        """The values of a metric by step."""
        return {each.step: each.value for each in self.client.get_metric_history(self.id, name)}

    def artifacts(self, path: str | None = None) -> set[str]:
        """The paths of all files."""
        found = self.client.list_artifacts(self.id, path)
        return {file for each in found for file in (self.artifacts(each.path) if each.is_dir else {each.path})}

    def read(self, path: str) -> bytes:
        return Path(self.client.download_artifacts(self.id, path)).read_bytes()


@pytest.fixture(scope="module")
def watched(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """Two rounds with two rules and the monitors; the working directory is the one of the run."""
    with pytest.MonkeyPatch.context() as patch:
        without_key(tmp_path_factory.mktemp("watched"), patch)
        fit(*WATCHED, *options(store, "watched"))
        yield Kept(store, "watched")


def test_mlflow_has_all_of_metrics_csv_by_round(watched: Kept) -> None:
    """The same names, those of single clients and layers among them, to the seven digits of the file."""
    table = rows(RUN / "metrics.csv")
    assert {"val/top1", "clients/loss/3", "lr-SGD"} <= table[0].keys()
    for name in table[0].keys() - {"round"}:
        assert watched.history(name) == pytest.approx({row["round"]: row[name] for row in table}, rel=1e-6), name


def test_params_are_the_settings_by_their_names_and_tags_name_the_run(watched: Kept) -> None:
    saved = yaml.safe_load((RUN / "config.yaml").read_text())
    named = {
        "method": "FedProx(mu=0.1) + GradientHarmonization",
        "settings": settings_fingerprint(saved),
        "seed": "1",
    }
    assert named.items() <= watched.params.items()
    assert named.items() <= watched.tags.items()
    assert watched.run.info.run_name == "FedProx(mu=0.1) + GradientHarmonization, seed 1"
    found = {name: watched.params[name] for name in ("FedProx.mu", "data.partition.alpha", "model.client.optimizer.lr")}
    assert found == {"FedProx.mu": "0.1", "data.partition.alpha": "0.1", "model.client.optimizer.lr": "0.1"}


def test_figures_and_the_files_that_describe_the_run_are_artifacts(watched: Kept) -> None:
    figures = {"data/partition_0.png", "conflict/cosines_1.png", "conflict/cosines_2.png"}
    assert watched.artifacts() == {"config.yaml", "environment.yaml", *figures}
    for name in ("config.yaml", "environment.yaml"):
        assert watched.read(name) == (RUN / name).read_bytes()
    for name in figures:
        assert watched.read(name).startswith(b"\x89PNG")


def test_mlflow_changes_no_result(watched: Kept) -> None:
    """Although it draws names from Python's random numbers."""
    fit(*WATCHED, "--experiment", "without")
    assert Path("runs/without/version_0/metrics.csv").read_bytes() == (RUN / "metrics.csv").read_bytes()


def test_a_run_that_goes_on_is_the_same_in_mlflow(store: str, folder: None) -> None:
    """Params stay as they were, since MLflow changes none; the tag with the hash of the settings changes."""
    fit(*options(store, "on"), "--trainer.max_epochs", 1, "--trainer.logger.run_name", "mine")
    before = Kept(store, "on")
    known = yaml.safe_load((RUN / "environment.yaml").read_text())["mlflow"]
    assert known == {"id": before.id, "store": store}
    fit(*options(store, "on"), "--ckpt_path", "last", "--trainer.max_epochs", 3)
    assert run("test", "--config", "tiny.yaml", *options(store, "on"), "--ckpt_path", "last").status == 0
    after = Kept(store, "on")
    assert after.id == before.id
    assert after.run.info.run_name == "mine"
    assert list(after.history("val/top1")) == [1, 2, 3]
    assert list(after.history("test/top1")) == [3]
    assert after.params == before.params
    assert after.tags["settings"] != before.tags["settings"]
    saved = yaml.safe_load((RUN / "config.yaml").read_text())["trainer"]["logger"]["init_args"]
    assert saved["run_id"] is None, "a new run with this config is a new run in MLflow"


@pytest.mark.parametrize(("own", "continued"), [(None, "known"), ("mine", "mine")])
def test_continue_mlflow(store: str, own: str | None, continued: str) -> None:
    """The id that the logger asks the store for when it is first used."""
    logger = MLFlowLogger(tracking_uri=store, run_id=own)
    continue_mlflow(logger, "known")
    with pytest.raises(Exception, match=f"Run with id={continued} not found"):
        _ = logger.experiment


def test_a_store_without_the_run_gets_a_new_one(store: str, folder: None) -> None:
    fit("--trainer.max_epochs", 1)
    with (RUN / "environment.yaml").open("a") as file:
        file.write("mlflow: {id: gone}\n")
    result = fit(*options(store, "new"), "--ckpt_path", "last")
    assert f"MLflow: run gone is not in {store}" in result.out
    assert list(Kept(store, "new").history("val/top1")) == [2]


@pytest.mark.slow
def test_without_a_store_there_is_a_file(folder: None) -> None:
    fit("--trainer.logger", "MLFlowLogger", "--trainer.max_epochs", 1)
    assert Path("mlflow.db").is_file()
    assert list(Kept("sqlite:///mlflow.db", "lightning_logs").history("val/top1")) == [1]


@pytest.mark.parametrize(
    ("uri", "words"),
    [("file:./mlruns", ("file:./mlruns cannot be used", "sqlite:///")), ("what://else", ("what://else", "sqlite"))],
)
def test_a_store_that_cannot_be_used_takes_one_line(folder: None, uri: str, words: tuple[str, ...]) -> None:
    result = run("fit", "--config", "tiny.yaml", *options(uri, "none"))
    assert result.status == 2
    assert result.err.count("\n") == 1
    assert all(word in result.err for word in words), result.err


def test_without_mlflow_one_line_names_the_extra(folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    result = run("fit", "--config", "tiny.yaml", "--trainer.logger", "MLFlowLogger")
    assert result.status == 2
    assert result.err == "fl-lightning: error: MLFlowLogger needs mlflow: pip install 'fl-lightning[mlflow]'\n"


@pytest.mark.slow
def test_jobs_of_a_sweep_that_begin_together_share_a_new_store(folder: None) -> None:
    """MLflow itself would make the tables of the store twice."""
    done = process("sweep", "--config", "tiny.yaml", "--seeds", 4, "--jobs", 4, "--trainer.logger", "MLFlowLogger")
    assert done.returncode == 0, done.stdout[-2000:]
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")
    found = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert sorted(each.info.run_name for each in found) == [f"FedAvg, seed {seed}" for seed in (1, 2, 3, 4)]
