"""Run: reads the files of a run folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_lightning.better import VALUES, Better
from fl_lightning.commands import some
from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.inside import inside, within
from fl_lightning.runs.catalogue import better_values, is_item
from fl_lightning.runs.config.settings import RULES, method_name, named_settings, seed_of
from fl_lightning.runs.folder.files import (
    ARRAYS,
    BETTER,
    CONFIG,
    ENVIRONMENT,
    MEND,
    METRICS,
    TIMINGS,
    RoundTime,
    array_file,
    folders_in,
    read_mapping,
)

# The values of config.yaml and environment.yaml that more is done with than to show them, each after what holds it.
CONFIG_KINDS = {"seed_everything": int, "trainer": dict, "model": dict, "data": dict}
CONFIG_KINDS |= {"trainer.max_epochs": int, "model.init_from": str, "model.client": dict}
ENVIRONMENT_KINDS = {RULES: list}
NOUNS = {int: "a whole number", str: "a text", list: "a list", dict: "names and values"}
NUM_CLIENTS = "data.num_clients"
NAMES = "names"  # the array of the clients' names in arrays/partition.npz
OWNER = 5  # levels from a run of sweep or reproduce, <name>/runs/<cell>/seed_<n>/run/version_0, up to <name>


@dataclass(frozen=True, eq=False)
class Run:
    """Reads a run folder, each file on first access. A missing file other than ``metrics.csv`` reads as empty.

    Attributes:
        folder: the run folder.
        said: which values of metrics are better, by name, as the user says, whatever the run folder says.

    Raises:
        ConfigurationError: on access, if the file is damaged, or ``metrics.csv`` is missing.
    """

    folder: Path
    said: Mapping[str, Better] = field(default_factory=dict)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Content of ``config.yaml``."""
        return _read_checked(self.folder, CONFIG, CONFIG_KINDS)

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """Content of ``environment.yaml``."""
        return _read_checked(self.folder, ENVIRONMENT, ENVIRONMENT_KINDS)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Table of ``metrics.csv``, by round."""
        return _table(inside(self.folder, METRICS))

    @cached_property
    def timings(self) -> pd.DataFrame:
        """Table of ``timings.csv``, by round, and the ``rest`` of the seconds."""
        path = inside(self.folder, TIMINGS)
        if not path.is_file():
            return pd.DataFrame()
        table = _table(path).dropna()  # a killed process may leave an incomplete line
        needed = [field.name for field in fields(RoundTime)[1:] if field.default is MISSING]  # round is the index
        if lacking := [name for name in needed if name not in table]:
            raise ConfigurationError(f"{path} is damaged: it has no column {', '.join(lacking)}; {MEND}")
        known = table[["local", "server", "monitors"]].sum(axis=1)
        return table.assign(rest=(table["seconds"] - known).clip(lower=0))

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder

    @property
    def seed(self) -> Any:
        """The run's seed, see :func:`seed_of`; None for a run without config."""
        return seed_of(self.config)

    @property
    def method(self) -> str:
        """The run's rules, see :func:`method_name`; the folder's name for a run without config."""
        return method_name(self.config, self.environment.get(RULES) or ()) if self.config else self.folder.name

    @property
    def rounds(self) -> tuple[int, int | None]:
        """The number of rounds trained, and the number that the config asks for (None without config or limit)."""
        asked = (self.config.get("trainer") or {}).get("max_epochs")
        return int(self.metrics.index.max()), asked if asked and asked > 0 else None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that affect the result, except the seed, by dotted names.

        Empty for a run without config, or whose environment.yaml does not name the rules among the callbacks. Data may
        come with their clients, whatever number the config has: ``data.num_clients`` is the number of the run.
        """
        rules = self.environment.get(RULES)
        if rules is None or not self.config:
            return {}
        settings = dict(named_settings(self.config, rules))
        if "sizes" in self._partition:
            settings[NUM_CLIENTS] = len(self._partition["sizes"])
        return settings

    @property
    def resumptions(self) -> list[Mapping[str, Any]]:
        """How the run was resumed, each time with ``time``, ``round`` and perhaps ``changed``; not those before 0.3."""
        resumed = self.environment.get("resumed")
        if not isinstance(resumed, list):
            return []
        return [resumption for resumption in resumed if isinstance(resumption, Mapping)]

    @property
    def names(self) -> list[str]:
        """The names of the run's metrics: the columns of ``metrics.csv`` without ``round``."""
        return [str(name) for name in self.metrics]

    def better(self, metric: str) -> Literal["lower", "higher", ""] | None:
        """Tell which values of a metric are better; "" if neither, None if nobody says, see :func:`better_values`."""
        return better_values(metric, {**self.recorded_better, **self.said})

    @cached_property
    def recorded_better(self) -> Mapping[str, Better | None]:
        """Content of ``better.yaml``: which values of metrics are better, as the module that logs them says."""
        content = read_mapping(self.folder, BETTER)
        for name, values in content.items():
            if values not in (*VALUES, None):
                came = f"expected lower, higher or null as {name}, got {values!r}"
                raise ConfigurationError(f"{self.folder / BETTER} is damaged: {came}; {MEND}")
        return content

    def items(self, prefix: str) -> pd.DataFrame:
        """Select the columns ``prefix/<n>`` of metrics.csv, named n, ascending, without rounds that have no value."""
        if prefix not in self._items:
            columns = {int(name.removeprefix(f"{prefix}/")): name for name in self.names if is_item(name, prefix)}
            numbers = sorted(columns)
            table = self.metrics[[columns[number] for number in numbers]]
            self._items[prefix] = table.set_axis(numbers, axis=1).dropna(how="all")
        return self._items[prefix]

    @cached_property
    def _items(self) -> dict[str, pd.DataFrame]:
        return {}

    def arrays(self, name: str) -> dict[int, Path]:
        """Paths of the files ``arrays/<name>_<round>.npz``, by round."""
        endings = [path.stem.rpartition("_")[2] for path in within(self.folder, ARRAYS).glob(f"{name}_*.npz")]
        rounds = sorted(int(ending) for ending in endings if ending.isdigit())
        return {round: array_file(self.folder, f"{name}_{round}") for round in rounds}

    def partition(self) -> dict[str, NDArray[Any]]:
        """Read the number of examples per client, ``sizes`` (N,), and per client and class, ``counts`` (N, C).

        Returns:
            The arrays by name, without ``counts`` for data without classes; empty if the partition was not saved.
        """
        path = array_file(self.folder, "partition")
        arrays = {name: array for name, array in self._partition.items() if name != NAMES}
        if arrays and not _are_numbers_of_examples(arrays):
            shapes = {name: array.shape for name, array in arrays.items()}
            raise ConfigurationError(
                f"{path} must hold numbers of examples, sizes (N,) and perhaps counts (N, C), got {shapes}: delete it, "
                f"or {MEND}"
            )
        return arrays

    def client_names(self) -> list[str] | None:
        """Read the clients' names; None for clients without names."""
        names = self._partition.get(NAMES)
        if names is None:
            return None
        if names.ndim != 1 or len(names) < len(self._partition["sizes"]):  # those of new clients come last
            raise ConfigurationError(
                f"{array_file(self.folder, 'partition')} must hold a name for each client, got {names.shape} names: "
                f"delete it, or {MEND}"
            )
        return [str(name) for name in names]

    @cached_property
    def _partition(self) -> dict[str, NDArray[Any]]:
        path = array_file(self.folder, "partition")
        return load(path, "sizes") if path.is_file() else {}

    def layers(self) -> list[str]:
        """Read the names of the network's layers in the module's order; empty if they were not saved."""
        path = array_file(self.folder, "layers")
        if not path.is_file():
            return []
        return [str(name) for name in load(path, "names")["names"]]


def _are_numbers_of_examples(arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Tell whether arrays are the ``sizes`` (N,) of a partition, and perhaps its ``counts`` (N, C)."""
    sizes = arrays["sizes"]
    counts = arrays.get("counts")
    if sizes.ndim != 1 or (counts is not None and (counts.ndim != 2 or len(counts) != len(sizes))):
        return False
    return all(array.dtype.kind in "iu" and bool((array >= 0).all()) for array in arrays.values())


def _read_checked(folder: Path, file: str, kinds: Mapping[str, type]) -> Mapping[str, Any]:
    """Read a YAML file of a run folder, and refuse a value of another kind; a missing value and null are of any kind.

    Args:
        folder: the run folder.
        file: the name of the file.
        kinds: the kinds of values, by dotted names.
    """
    content = read_mapping(folder, file)
    for name, kind in kinds.items():
        value: Any = content
        for key in name.split("."):
            value = (value or {}).get(key)
        if not isinstance(value, kind | None):
            came = f"expected {NOUNS[kind]} in {name}, got {value!r}"
            raise ConfigurationError(f"{folder / file} is damaged: {came}; {MEND}")
    return content


def load(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """Read the arrays of an ``.npz`` file.

    Args:
        path: the file.
        names: names of arrays that the file must hold.

    Returns:
        All arrays of the file, by name.

    Raises:
        ConfigurationError: the file cannot be read, or lacks one of the names.
    """
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive can raise any exception
        raise ConfigurationError(f"{path} is damaged ({type(error).__name__}): delete it, or {MEND}") from None
    if missing := [name for name in names if name not in arrays]:
        raise ConfigurationError(
            f"{path} must hold {', '.join(names)}, and lacks {', '.join(missing)}: delete it, or {MEND}"
        )
    return arrays


def read_runs(paths: Iterable[Path], said: Mapping[str, Better] | None = None) -> list[Run]:
    """Read run folders, and all run folders within other folders, each once.

    The runs of a folder are sorted by experiment, and within an experiment by the time when they began.

    Args:
        paths: the folders.
        said: which values of metrics are better, see :class:`Run`.

    Raises:
        ConfigurationError: a folder is missing or holds no run, a file of a run is damaged, or no run has a metric that
            ``said`` names.
    """
    folders: dict[Path, Path] = {}  # by what they resolve to, so that each is read once
    for path in paths:
        for folder in sorted(folders_in(path), key=_place):
            folders[folder.resolve()] = folder
    runs = [Run(folder, said or {}) for folder in folders.values()]
    for run in runs:  # read now, so that a damaged file is found before any work is done
        _ = run.config, run.metrics, run.timings, run.environment, run.recorded_better
    _check_logged(said or {}, runs)
    return runs


def _check_logged(said: Iterable[str], runs: Sequence[Run]) -> None:
    """Refuse the name of a metric that no run has."""
    logged = {name for run in runs for name in run.names}
    for name in said:
        if name not in logged:
            near = nearest(name, logged)
            hint = f"did you mean {near}?" if near else f"they have {some(sorted(logged))}"
            raise ConfigurationError(
                f"lower_is_better and higher_is_better name metrics of the runs, got {name}: {hint}"
            )


def _place(folder: Path) -> tuple[Any, ...]:
    """Return the key that sorts the runs of a folder."""
    started = str(Run(folder).environment.get("started", ""))
    return natural(experiment_folder(folder)), started, natural(folder)


def experiment_folder(folder: Path) -> Path:
    """Return the folder of a run's experiment.

    The folder is the one above ``version_N``; for runs of ``sweep`` and ``reproduce``, which lie in
    ``<name>/runs/<cell>/seed_<n>/run/version_0``, it is ``<name>``.
    """
    levels = [folder, *folder.parents]
    swept = len(levels) > OWNER and levels[2].name.startswith("seed_") and levels[OWNER - 1].name == "runs"
    return levels[OWNER] if swept else folder.parent


def natural(name: object) -> list[tuple[str, int]]:
    """Return a sort key that puts version_10 after version_9."""
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", str(name))]


def _table(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except ValueError:  # covers pandas' own errors, too
        table = pd.DataFrame()
    numbers = all(pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes)
    rounds = table.get("round", pd.Series(dtype=int))
    if not numbers or not len(rounds) or not rounds.is_unique or not pd.api.types.is_integer_dtype(rounds):
        raise ConfigurationError(
            f"{path} is empty or damaged: expected numbers and a column round, one row per round; {MEND}"
        )
    table = table.set_index("round").sort_index()
    values = table.to_numpy(dtype=float)  # one array: pandas takes a millisecond a column where each is one of its own
    return pd.DataFrame(values, table.index, table.columns)
