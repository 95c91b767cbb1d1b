"""What serve refuses before it waits for a site."""

from pathlib import Path

import pytest

from fl_lightning.cli import main
from fl_lightning.errors import ConfigurationError
from fl_lightning.network.options import Network


def test_more_clients_than_sites_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected network\.min_clients to be 2 at most, .*, got 9"):
        Network("kit", ["anna", "berlin"], min_clients=9)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--model.clients_at_once 4", "expected model.clients_at_once to be 1 where clients train at sites"),
        ("--trainer.devices 2", "expected one device at the server"),
        ("--trainer.callbacks+=TrainingEvaluation", "TrainingEvaluation"),
    ],
)
def test_what_needs_one_machine_is_refused_at_once(
    options: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = "serve --config digits_gh.yaml --network.kit no_kit --network.sites [anna,berlin] --data.num_clients 2"
    assert main([*arguments.split(), *options.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fl-lightning: error: {told}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            "",
            "GradientHarmonization reads single updates; ConflictMonitor reads single updates, but secure aggregation",
        ),
        ("--trainer.callbacks=[FedNova]", "FedNova reads the steps of each client, but secure aggregation gives"),
        (
            "--trainer.callbacks=[FedAvg] --model.max_update_norm 3",
            "model.max_update_norm 3.0 compares the norms of single updates",
        ),
        (
            "--trainer.callbacks=[FedAvg] --network.sites [anna,berlin] --data.num_clients 2",
            "secure aggregation sums over at least 3 sites, got 2",
        ),
    ],
)
def test_what_needs_single_updates_is_refused_at_once(
    options: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = "serve --config digits_gh.yaml --network.kit no_kit --network.sites [anna,berlin,cork]"
    secure = "--data.num_clients 3 --network.secure_aggregation true"
    assert main([*arguments.split(), *secure.split(), *options.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fl-lightning: error: {told}")
    assert said.count("\n") == 1
