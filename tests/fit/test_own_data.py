"""A user's own data in place of those of a shipped config."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from lib.command import fit, refused, run

from fl_lightning.fit.read_config import config_of

OWN = ["--data=Tensors", "--data.path=my.npz", "--trainer.max_epochs=1"]


@pytest.fixture(autouse=True)
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """90 images of 3x16x16 in four classes, 30 of them to test on, in the working directory."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (90, 3, 16, 16), dtype=np.uint8)
    labels = np.arange(90) % 4
    np.savez("my.npz", train_x=pixels[:60], train_y=labels[:60], test_x=pixels[60:], test_y=labels[60:])


def config() -> Any:
    """The config of the last run."""
    *_, path = sorted(Path().glob("runs/mnist_gh/*/config.yaml"))
    return yaml.safe_load(path.read_text())


def network(*options: str) -> Any:
    """The arguments of a run's network."""
    fit(*OWN, *options, config="mnist_gh.yaml")
    return config()["model"]["client"]["init_args"]["network"]["init_args"]


def test_the_settings_of_the_configs_data_do_not_follow() -> None:
    out = fit(*OWN, config="mnist_gh.yaml").out
    assert (
        "the data start from their own defaults: the config's num_clients, partition, batch_size are for MNIST" in out
    )
    data = config()["data"]["init_args"]
    assert (data["num_clients"], data["batch_size"], data["partition"]) == (20, 32, None)


def test_the_network_has_the_sizes_of_the_data() -> None:
    """Also those of another network, of a run that goes on, and of the package's data; what is stated stays."""
    assert network() == {"num_classes": 4, "in_features": 3 * 16 * 16}
    assert network("--ckpt_path=last", "--trainer.max_epochs=2")["in_features"] == 3 * 16 * 16
    assert network("--model.client.network=LeNet") == {"num_classes": 4, "in_channels": 3, "image_size": 16}
    fit("--data=Digits", "--data.partition.alpha=1", "--trainer.max_epochs=1", config="mnist_gh.yaml")
    assert config()["model"]["client"]["init_args"]["network"]["init_args"] == {"num_classes": 10, "in_features": 64}
    stated = run("fit", "--config=mnist_gh.yaml", *OWN, "--model.client.network.in_features=5")
    assert "768" in stated.err


def test_data_of_the_package_take_the_configs_settings_over() -> None:
    """And a run's own config, which names the same class, keeps its settings."""
    for data in (
        "--data=Digits",
        "--data={class_path: Digits}",
        '--data={"class_path": "fl_lightning.datamodules.Digits"}',
    ):
        shown = run("data", "--config=mnist_gh.yaml", data, "--data.partition.alpha=0.5")
        assert shown.status == 0, shown.err
        assert "own defaults" not in shown.out
    fit(*OWN, "--data.num_clients=3", config="mnist_gh.yaml")
    fit("--data=Tensors", config="runs/mnist_gh/version_0/config.yaml")
    assert Path("runs/mnist_gh/version_1").is_dir()
    assert config()["data"]["init_args"]["num_clients"] == 3


@pytest.mark.parametrize("value", ["{class_path: ", "x" * 5000, "nowhere.Data"])
def test_a_value_that_names_no_data_is_the_parsers_to_refuse(value: str) -> None:
    assert refused("data", "--config=mnist_gh.yaml", f"--data={value}").startswith("data: ")


def test_an_experiment_is_planned_as_its_runs_are_made() -> None:
    """A setting that a run would refuse is refused before the first run; the plan's settings are the run's."""
    sweep = ["sweep", "--config=mnist_gh.yaml", "--data=Tensors", "--data.path=my.npz", "--seeds=1", "--rounds=1"]
    assert "alpha without a class: name one, --data.partition CLASS" in refused(
        *sweep, "--grid", "data.partition.alpha=1"
    )
    result = run(*sweep, "--data.num_clients=2", "--grid", "data.batch_size=8,16")
    assert result.status == 0, result.err
    planned = config_of(["--config=mnist_gh.yaml", "--data=Tensors", "--data.path=my.npz", "--data.num_clients=2"])
    made = [yaml.safe_load(path.read_text())["data"] for path in Path("runs/sweep").rglob("config.yaml")]
    assert sorted(data["init_args"]["batch_size"] for data in made) == [8, 16]
    for data in made:
        assert data["init_args"] == planned["data"]["init_args"] | {"batch_size": data["init_args"]["batch_size"]}
