"""The papers' experiments: each has a config that says what the paper says, and runs a round, which is reported."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from lib.command import rows, run
from lib.generated import generated_data
from lib.reported import check_documented, check_reported
from torch import nn

from fl_lightning import datamodules
from fl_lightning.fit.configs import CONFIGS
from fl_lightning.fit.read_config import config_of
from fl_lightning.reproduce.experiments.experiment import Cell
from fl_lightning.reproduce.experiments.grid import grid
from fl_lightning.reproduce.experiments.papers import experiments

IDS = [id for id, each in experiments().items() if each.rows]  # the papers', without experiments of our own
# Run by day: between them, all data sets and networks whose round takes a second, and a rule of each kind.
QUICK = {
    *("fedgh-slides/table-1", "fedlaw/table-1", "fedlaw/table-2", "fedlaw/table-3"),
    *("fedmgc/fig-1", "fedmgc/fig-4", "fedgh-paper/fig-2", "fedgam/table-4"),
}
# The papers' tables as transcribed; where they are not at hand, the configs are not compared with them.
TABLES = Path(__file__).parents[3] / "shared" / "papers" / "tables.yaml"
ONE_ROUND = ["--trainer.max_epochs=1", "--trainer.limit_val_batches=1", "--trainer.accelerator=cpu"]
SMALL = ["--model.local_epochs=1", "--data.participation=3", "--trainer.check_val_every_n_epoch=1"]


def file_of(id: str) -> str:
    return f"papers/{id}.yaml"


def cells(id: str) -> list[Cell]:
    return grid(CONFIGS / file_of(id))


@cache
def parsed(id: str, *options: str) -> dict[str, Any]:
    return config_of([f"--config={file_of(id)}", *options])


@cache
def tables() -> dict[str, Any]:
    if not TABLES.is_file():
        pytest.skip("the papers' tables are not at hand")
    return {experiment["id"]: experiment for experiment in yaml.safe_load(TABLES.read_text())["experiments"]}


def transcribed(id: str) -> dict[str, Any]:
    if id not in tables():
        pytest.skip(f"{id} is not among the papers' tables as transcribed")
    return dict(tables()[id])


def test_every_experiment_of_the_papers_is_here() -> None:
    assert set(tables()) <= set(IDS)


@pytest.mark.parametrize("id", IDS)
def test_the_grid_has_a_cell_for_every_row_and_none_twice(id: str) -> None:
    """A row's cell has the row's value on each axis that the row names; rows of one run at two rounds share a cell."""
    labels = [dict(cell.labels) for cell in cells(id)]
    assert len({tuple(label.items()) for label in labels}) == len(labels)
    for row in transcribed(id)["rows"]:
        known = {axis: value for axis, value in row.items() if value is not None or axis == "balanced_sampling"}
        if known.get("local_epochs") == "1&5":  # a correlation over the runs of two cells
            continue
        shared = [axis for axis in labels[0] if axis in known]
        assert any(all(label[axis] == known[axis] for axis in shared if axis in label) for label in labels), row


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of the settings that tables.yaml names."""
    client, data = config["model"]["client"]["init_args"], config["data"]["init_args"]
    optimizer, partition = client["optimizer"]["init_args"], (data["partition"] or {}).get("init_args") or {}
    return {
        "rounds": config["trainer"]["max_epochs"],
        "local_epochs": config["model"]["local_epochs"],
        "batch_size": data["batch_size"],
        "num_clients": data["num_clients"],
        "participation": data["participation"],
        "alpha": partition.get("alpha"),
        "lr": optimizer["lr"],
        "momentum": optimizer["momentum"],
        "weight_decay": optimizer["weight_decay"],
        "proxy_size": data["proxy_per_class"] * client.get("num_classes", 10),
        "lr_decay": f"x{config['model']['local_lr_decay']} per round",
    }


@pytest.mark.parametrize("id", IDS)
def test_the_config_says_what_the_paper_says(id: str) -> None:
    """Every single number of the table's setting is the config's; of what varies, the config has one of the values."""
    said, config = transcribed(id)["setting"], parsed(id)
    for name, ours in settled(config).items():
        theirs = said.get(name)
        values = list(theirs.values()) if isinstance(theirs, dict) else theirs if isinstance(theirs, list) else [theirs]
        flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
        if theirs is not None:
            assert ours in flat, f"{name}: the paper says {theirs}, the config {ours}"
    if said.get("seeds") and isinstance(said["seeds"], list):
        assert config["seed_everything"] in said["seeds"]
    assert config["experiment"] == id


@pytest.mark.parametrize("id", IDS)
def test_begins_with_what_it_is_and_how_to_launch_it(id: str) -> None:
    name = file_of(id)
    header = re.match(r"(#[^\n]*\n)+", (CONFIGS / name).read_text())
    assert header is not None
    assert re.search(r"\b(Table \d|Fig\. \d|YOLOv8n)", header[0])
    launches = re.findall(rf"^#   fl-lightning fit --config {re.escape(name)}(.*)$", header[0], flags=re.MULTILINE)
    assert len(launches) >= 2
    assert any(re.search(r"--(data|trainer|model)\.(?!root|download)", launch) for launch in launches[1:])
    assert "val/*" in header[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory of all runs; at the end, one page reports those in it."""
    with chdir(folder := tmp_path_factory.mktemp("papers")):
        yield folder
        check_reported(Path("runs"))


@pytest.mark.parametrize("id", [id if id in QUICK else pytest.param(id, marks=pytest.mark.slow) for id in IDS])
def test_runs_a_round_and_is_reported(id: str, folder: Path) -> None:
    """The end of the grid on generated data, with three clients: finite numbers, every client taken in.

    The last rule of robust/attacks, Krum, needs more clients than three; of that grid, it is the first one.
    """
    options = cells(id)[0 if id == "robust/attacks" else -1].options
    data = generated_data(parsed(id, *options), folder / id)
    first = ["--trainer.callbacks.points=3"] if id == "fedgam/fig-4" else []  # of LossSurface, the config's last one
    few = ["--trainer.callbacks.epochs=14"] if id in QUICK and "FedLAW'" in str(parsed(id, *options)) else []
    result = run("fit", "--config", file_of(id), *first, *options, *few, *data, *ONE_ROUND, *SMALL)
    assert result.status == 0, result.err
    assert not [text for text in result.warnings if "left out" in text]
    (row,) = rows(Path("runs", id, "version_0", "metrics.csv"))
    assert row["round"] == 1
    assert all(math.isfinite(row[name]) for name in ("val/loss", "train/loss"))
    check_documented(Path("runs", id, "version_0"))


def network_of(config: dict[str, Any]) -> nn.Module:
    parser = ArgumentParser()
    parser.add_subclass_arguments(nn.Module, "network")
    network = config["model"]["client"]["init_args"]["network"]
    return cast(nn.Module, parser.instantiate(parser.parse_object({"network": network})).network)


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_the_network_of_every_label_fits_its_data(id: str) -> None:
    """A network that takes the place of another by an option may keep what was said of that one: channels, classes.

    Every label once, and those that may change data or network in every combination.
    """
    seen: set[Any] = set()
    for cell in cells(id):
        together = tuple(cell.labels.get(axis) for axis in ("dataset", "model", "method"))
        if (new := {*cell.labels.items(), together}) <= seen:
            continue
        seen |= new
        config = parsed(id, *cell.options)
        data = getattr(datamodules, config["data"]["class_path"].rpartition(".")[2])
        if data is datamodules.BoxFolder:
            continue  # its network gives maps: test_detector.py
        images = torch.zeros(2, len(data.mean), *data.image_size)
        with torch.no_grad():
            logits = network_of(config).eval()(images)
        assert logits.shape == (2, data.num_classes), cell.labels
        assert config["model"]["client"]["init_args"]["num_classes"] == data.num_classes
