"""What TensorBoard and W&B hold of a run's settings, read back from real files; tests of MLflow are in test_mlflow."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lib.command import fit
from lib.wandb_files import fit_with_wandb, wandb_config, without_key

from fl_lightning.runs.config.settings import settings_fingerprint

TENSORBOARD = ("--trainer.logger", "TensorBoardLogger", "--trainer.logger.save_dir", "tb")
PROX = ("--trainer.callbacks+=FedProx", "--trainer.callbacks.mu", 0.1, "--trainer.callbacks+=ConflictMonitor")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_key(tmp_path, monkeypatch)


def hparams(folder: str) -> list[dict[str, Any]]:
    """The rows of TensorBoard's tab HPARAMS, made by TensorBoard: hyper-parameters, and the metrics' last values."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2
    from tensorboard.plugins.hparams.backend_context import Context
    from tensorboard.plugins.hparams.list_session_groups import Handler

    files = EventMultiplexer().AddRunsFromDirectory(folder).Reload()
    known = Context(TBContext(logdir=folder, data_provider=MultiplexerDataProvider(files, folder)))
    asked = api_pb2.ListSessionGroupsRequest(slice_size=9, allowed_statuses=[api_pb2.STATUS_UNKNOWN])
    found = Handler(RequestContext(), known, "all", asked).run()
    return [
        {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}
        | {each.name.tag: each.value for each in group.metric_values}
        for group in found.session_groups
    ]


def test_tensorboard_compares_runs_by_method_seed_and_every_setting() -> None:
    """Also by settings that only one of two runs has."""
    fit(*TENSORBOARD, *PROX, "--trainer.max_epochs", 1)
    fit(*TENSORBOARD, "--trainer.max_epochs", 1, "--seed_everything", 2)
    prox, plain = sorted(hparams("tb"), key=lambda row: float(row["seed"]))
    assert (prox["method"], prox["seed"], prox["FedProx.mu"]) == ("FedProx(mu=0.1)", 1, 0.1)
    assert (plain["method"], plain["seed"], plain.get("FedProx.mu")) == ("FedAvg", 2, None)
    assert len({prox["settings"], plain["settings"]}) == 2
    assert {row["data.partition.alpha"] for row in (prox, plain)} == {0.1}
    assert all(0 < row["val/top1"] < 1 and "hp_metric" not in row for row in (prox, plain))


def test_wandb_has_the_method_and_the_arguments_of_rules() -> None:
    fit_with_wandb("--trainer.logger", "WandbLogger", *PROX, "--trainer.max_epochs", 1)
    (file,) = Path().glob("wandb/offline-run-*/run-*.wandb")
    config = wandb_config(file)
    assert (config["method"], config["seed"]) == ("FedProx(mu=0.1)", 1)
    assert config["rules"] == {"FedProx": {"mu": 0.1}}
    saved = yaml.safe_load(Path("runs/tiny/version_0/config.yaml").read_text())
    assert config["settings"] == settings_fingerprint(saved)


def test_any_other_logger_gets_them_too() -> None:
    fit("--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "csv", *PROX, "--trainer.max_epochs", 1)
    (file,) = Path("csv").rglob("hparams.yaml")
    assert "method: FedProx(mu=0.1)" in file.read_text()
