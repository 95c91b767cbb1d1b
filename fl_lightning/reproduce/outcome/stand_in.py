"""What runs have in place of a paper's setting: a config says the setting, and its scale says what stands in for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fl_lightning.fit.configs import PARTS, layers
from fl_lightning.reproduce.experiments.experiment import Claim, Experiment
from fl_lightning.reproduce.experiments.grid import grid
from fl_lightning.reproduce.experiments.scale import scale_of
from fl_lightning.reproduce.outcome.claims import Labels, has
from fl_lightning.runs.config.settings import short
from fl_lightning.runs.folder.yaml_text import read_yaml

# Settings that say how runs are computed and looked at, and change no result.
HARMLESS = (
    "trainer.accelerator",
    "trainer.check_val_every_n_epoch",
    "model.channels_last",
    "model.clients_at_once",
)
COUNTED = {"data.num_clients": "clients", "model.local_epochs": "local epochs", "trainer.max_epochs": "rounds"}
RATE = "model.client.optimizer.lr"
NETWORK = "model.client.network"
PERCEPTRON = "perceptron"
NAMES = {"MultilayerPerceptron": PERCEPTRON, "CIFAR10": "CIFAR-10", "CIFAR100": "CIFAR-100"}  # of classes, for readers

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class StandIn:
    """Says what stands in for a paper's setting in the runs that a claim is about.

    Attributes:
        data: the data set, such as "4,000 images of MNIST at 8×8".
        network: the network, such as "perceptron".
        parts: clients, local epochs and rounds that are not the paper's, such as "25 of 100 rounds".
        rate: the learning rate, as "rate ×3"; empty for the paper's.
        is_other_data: whether another data set stands for one of the paper's.
    """

    data: str
    network: str
    parts: tuple[str, ...]
    rate: str
    is_other_data: bool

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.data, self.network, *self.parts, self.rate)))


@dataclass(frozen=True)
class At:
    """Holds a cell's labels, and its settings by dotted names: the paper's, and ours at a scale."""

    labels: Labels
    paper: Settings
    ours: Settings


def settings_at(experiment: Experiment) -> list[At]:
    """Read the settings of the cells that an experiment's scale keeps; none for the paper's own scale."""
    if not experiment.scale:
        return []
    scale = scale_of(experiment.config, experiment.scale)
    found = []
    shared = _settings({}, [(part, file.get(part) or {}) for _, file in layers(experiment.config) for part in PARTS])
    for cell in grid(experiment.config):
        smaller = scale.cell(cell)
        if smaller is not None:
            paper, ours = (_settings(shared, map(_read, options)) for options in (cell.options, smaller.options))
            found.append(At(cell.labels, paper, ours))
    return found


@cache
def _read(argument: str) -> tuple[str, Any]:
    name, _, value = argument.removeprefix("--").partition("=")
    return name, read_yaml(argument, value)


def _settings(shared: Settings, changes: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Name settings by dots, as options do: a class's arguments stand below it, and the last of two values counts."""
    found = dict(shared)
    for name, value in changes:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                path = name if key == "init_args" else f"{name}.{key}"
                found = _settings(found, [(path, inner)])
        else:
            found[name] = value
    return found


def stand_in(claim: Claim, settings: Sequence[At]) -> StandIn | None:
    """Say what stands in for the paper's setting in a claim's cells; None if nothing does.

    Args:
        claim: the claim.
        settings: settings of all cells, see :func:`settings_at`.
    """
    meant = [at for at in settings if _is_meant(claim, at.labels)]
    return in_place_of(meant or settings)  # of a cell that the scale leaves out, the others tell


def in_place_of(meant: Sequence[At]) -> StandIn | None:
    """Say what stands in for the paper's setting in some cells; None if nothing does."""
    if all(_differing(at) <= {*HARMLESS} for at in meant):
        return None
    data = _each(_data(at.ours) for at in meant)
    network = _each(_network(at.ours) for at in meant)
    parts = [_each(_part(at, name) for at in meant) for name in COUNTED]
    is_other_data = any("data.class_path" in _differing(at) for at in meant)
    return StandIn(data, network, tuple(filter(None, parts)), _rate(meant), is_other_data)


def _is_meant(claim: Claim, labels: Labels) -> bool:
    """Tell whether a claim is about a cell, which has no label for the round."""
    sides = [_without_round(side) for side in (claim.higher, claim.than or claim.higher)]
    return has(labels, _without_round(claim.at)) and any(has(labels, side) for side in sides)


def _without_round(labels: Labels) -> Labels:
    return {axis: label for axis, label in labels.items() if axis != "round"}


def _differing(at: At) -> set[str]:
    return {name for name in {*at.paper, *at.ours} if at.paper.get(name) != at.ours.get(name)}


def _each(words: Iterable[str]) -> str:
    """Join words, each once; empty words are left out."""
    return " and ".join(dict.fromkeys(filter(None, words)))


def _data(ours: Settings) -> str:
    words = _named(ours.get("data.class_path", ""))
    images, size = ours.get("data.train_examples"), ours.get("data.resize")
    if images:
        words = f"{images:,} images of {words}"
    return f"{words} at {size}×{size}" if size else words


def _network(ours: Settings) -> str:
    """Name the network: of one that wraps another, the inner one; of a library's, its name there."""
    wrapped = f"{NETWORK}.network.class_path"
    name = _named(ours.get(wrapped) or ours.get(f"{NETWORK}.class_path", ""))
    return str(ours[f"{NETWORK}.name"]) if name == "TimmNetwork" else name


def _named(class_path: str) -> str:
    name = short(class_path)
    return NAMES.get(name, name)


def _part(at: At, name: str) -> str:
    """Say how many clients, epochs or rounds there are for the paper's; empty for as many."""
    ours, paper = at.ours.get(name), at.paper.get(name)
    return "" if ours == paper else f"{ours:,} of {paper:,} {COUNTED[name]}"


def _rate(meant: Sequence[At]) -> str:
    """Name the factors between our learning rates and the paper's; empty if all are 1."""
    factors = [at.ours[RATE] / at.paper[RATE] for at in meant if RATE in at.ours and RATE in at.paper]
    words = [f"×{factor:,g}" for factor in sorted(factors, reverse=True)]
    return f"rate {_each(words)}" if {*words} - {"×1"} else ""
