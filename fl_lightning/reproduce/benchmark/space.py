"""The space of a search: options of ``fit``, each with the distribution from which every method draws its values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from fl_lightning.errors import ConfigurationError
from fl_lightning.reproduce.experiments.grid import option

LOG, EVEN = "log", "even"  # in what a range is evenly drawn from: in the logarithm, or in the value itself
DIGITS = 3  # significant digits of a drawn value
RATE = "model.client.optimizer.lr"
DECAY = "model.local_lr_scheduler"
CONSTANT, COSINE = "constant", "cosine"  # values of DECAY; a cosine falls to 0 at the end of the run

Space = Mapping[str, Any]  # for each option {log: [low, high]}, {even: [low, high]}, or a list of values
Settings = dict[str, Any]  # a value for each option


def draw(shared: Space, own: Space, method: str, seed: int, count: int) -> list[Settings]:
    """Draw settings at random, each from another part of every range: Latin hypercube sampling (McKay et al., 1979).

    All methods of a search draw the same values of the options that they share, so that none is lucky with the learning
    rate.

    >>> space = {"lr": {"log": [0.01, 1.0]}}
    >>> draw(space, {}, "FedAvg", seed=1, count=2) == draw(space, {}, "FedAvgM", seed=1, count=2)
    True

    Args:
        shared: the options that every method draws.
        own: the options that this method draws beside them.
        method: the method's name.
        seed: the search's seed.
        count: number of draws.

    Raises:
        ConfigurationError: a distribution is of none of the three forms.
    """
    columns = _columns(shared, [seed], count) | _columns(own, [seed, crc32(method.encode())], count)
    drawn = []
    for at in range(count):
        drawn.append({name: values[at] for name, values in columns.items()})
    return drawn


def _columns(space: Space, stream: Sequence[int], count: int) -> dict[str, list[Any]]:
    """Draw the values of each option."""
    if not space:
        return {}
    places = stats.qmc.LatinHypercube(len(space), rng=np.random.default_rng(stream)).random(count)
    columns = {}
    for (name, spec), column in zip(space.items(), places.T, strict=True):
        columns[name] = [value_at(spec, place) for place in column.tolist()]
    return columns


def value_at(spec: Any, place: float) -> Any:
    """Return the value at a place in a distribution, from 0 at its beginning to 1 at its end.

    >>> value_at({"log": [0.01, 1.0]}, 0.5), value_at({"even": [0, 2]}, 0.25), value_at(["mean", "sum"], 0.5)
    (0.1, 0.5, 'sum')

    Raises:
        ConfigurationError: the distribution is of none of the three forms.
    """
    match spec:
        case list() if spec:
            return spec[min(int(place * len(spec)), len(spec) - 1)]
        case {"log": [low, high]} if 0 < low < high:
            return float(f"{low * (high / low) ** place:.{DIGITS}g}")
        case {"even": [low, high]} if low < high:
            return float(f"{low + (high - low) * place:.{DIGITS}g}")
    raise ConfigurationError(
        f"expected a list of values, {{log: [low, high]}} above 0, or {{even: [low, high]}}, got {spec}"
    )


def place_of(spec: Any, value: float) -> float:
    """Return where a value lies in a range, the inverse of :func:`value_at`; nan in a list of values.

    >>> place_of({"log": [0.01, 1.0]}, 0.1), place_of({"even": [0, 2]}, 0.5)
    (0.5, 0.25)
    """
    match spec:
        case {"log": [low, high]}:
            return math.log(value / low) / math.log(high / low)
        case {"even": [low, high]}:
            return float(value - low) / float(high - low)
    return math.nan


def name_of(settings: Mapping[str, Any]) -> str:
    """Name settings by the last two words of options, as "optimizer.lr=0.1"; :func:`values_in` reads it.

    >>> name_of({"model.client.optimizer.lr": 0.1, "trainer.callbacks.mu": 0.01})
    'optimizer.lr=0.1 callbacks.mu=0.01'
    """
    return " ".join(f"{_short(name)}={value}" for name, value in settings.items())


def values_in(name: str, space: Space) -> dict[str, str]:
    """Read the values of a space's options from the name of some settings.

    >>> values_in("optimizer.lr=0.1 callbacks.mu=0.01", {"trainer.callbacks.mu": [0.01, 0.1]})
    {'trainer.callbacks.mu': '0.01'}
    """
    given = dict(part.split("=", 1) for part in name.split())
    return {key: given[_short(key)] for key in space if _short(key) in given}


def _short(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def as_options(settings: Mapping[str, Any], rounds: int) -> list[str]:
    """Write settings as arguments of ``fit`` for a run of some rounds.

    >>> as_options({"model.local_lr_scheduler": "constant", "trainer.callbacks.mu": 0.01}, rounds=40)
    ['--trainer.callbacks.mu=0.01']
    """
    arguments = []
    for name, value in settings.items():
        if name != DECAY:
            arguments.append(option(name, value))
        elif value == COSINE:
            cosine = {"class_path": "torch.optim.lr_scheduler.CosineAnnealingLR", "init_args": {"T_max": rounds}}
            arguments.append(option(name, cosine))
    return arguments


def typical(names: Sequence[str], space: Space) -> Settings:
    """Return the means of the numbers of several settings, of those that share the most frequent other values.

    Numbers have geometric means, over these settings alone: with a decay another rate is good than without.

    >>> names = ["optimizer.lr=0.1 local_lr_scheduler=cosine", "optimizer.lr=0.9 local_lr_scheduler=constant"]
    >>> names.append("optimizer.lr=0.4 local_lr_scheduler=cosine")
    >>> typical(names, {"optimizer.lr": {"log": [0.01, 1]}, "local_lr_scheduler": ["constant", "cosine"]})
    {'optimizer.lr': 0.2, 'local_lr_scheduler': 'cosine'}
    """
    lists = [key for key, spec in space.items() if not isinstance(spec, Mapping)]
    by_kind: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for name in names:
        values = values_in(name, space)
        by_kind.setdefault(tuple(values[key] for key in lists), []).append(values)
    alike = max(by_kind.values(), key=len)
    found: Settings = dict(alike[0])
    for key in found:
        if key not in lists:
            found[key] = float(f"{stats.gmean([float(values[key]) for values in alike]):.{DIGITS}g}")
    return found


def placed(name: str, space: Space) -> str:
    """Write settings by their names, each number with its place in its range.

    >>> placed("optimizer.lr=0.1 callbacks.mu=2", {"client.optimizer.lr": {"log": [0.01, 1]}, "callbacks.mu": [1, 2]})
    'optimizer.lr=0.1 (0.50) callbacks.mu=2'
    """
    words = []
    for key, value in values_in(name, space).items():
        place = place_of(space[key], float(value)) if isinstance(space[key], Mapping) else math.nan
        words.append(f"{_short(key)}={value}" + ("" if math.isnan(place) else f" ({place:.2f})"))
    return " ".join(words)
