"""Table: the rows of a pandas DataFrame, a CSV file or a parquet file, with a column that names the client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset
from typing_extensions import override

from fl_lightning.datamodules.held_out import draw_held_out
from fl_lightning.datamodules.partition import Natural
from fl_lightning.engine.federation.data import FederatedDataModule
from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.seeding import numpy_generator

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Task = Literal["classification", "regression"]


class Table(FederatedDataModule):
    """The rows of a table, in memory. Each distinct value of one column (hospital, user, writer) is a client.

    Clients are numbered in the sorted order of the values, which also name them (``client_names``). Batches are
    ``[features (B, F), targets]``, floats of the default type and unscaled. Unless ``task`` says otherwise, a target
    column of integers, truth values or texts holds classes: targets (B,) int64, numbered in the sorted order of the
    values in both sets, ``class_names``; and a target column of floats is for regression: targets (B,). A warning says
    so if the classes are integers other than 0 to C-1. Several target columns, or a list of one, become floats (B, T).

    The test set is used for validation, too; without a test set, the client module's own loaders are used. When clients
    evaluate, each uses its own rows of the test set.

    Args:
        train: pandas DataFrame, or path of a CSV or parquet file, with the training rows.
        target: name of the target column, or a list of such names.
        client: name of the column that holds each row's client.
        features: names of the feature columns, which hold numbers or truth values; all other columns by default.
        test: table of the test rows, like ``train``; the client column may be missing.
        test_share: without ``test``, share in [0, 1) of each client's rows that become the test set instead of training
            rows; drawn with the run's seed; at least one row of each client stays in training.
        eval_batch_size: rows per batch of the test set.
        task: ``"regression"`` keeps the numbers of any target column as float targets; ``"classification"`` makes
            classes of the values of any one target column; None decides by the type of the column.
        partition: ``Natural(column)`` in place of ``client``.
        federation: ``batch_size``, ``participation``, ``seed`` and the other arguments of
            :class:`FederatedDataModule`.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, a file cannot be read, a column is missing, or
            a column holds missing values or values that are no numbers, such as a target column of texts for
            regression.
    """

    def __init__(
        self,
        train: Any,
        target: str | list[str],
        client: str = "client",
        features: list[str] | None = None,
        test: Any = None,
        test_share: float = 0.0,
        eval_batch_size: int = 1000,
        task: Task | None = None,
        partition: Natural | None = None,
        **federation: Any,
    ) -> None:
        super().__init__(**federation)
        if not 0 <= test_share < 1 or (test is not None and test_share) or eval_batch_size < 1:
            raise ConfigurationError(
                "expected test or a test_share in [0, 1), and eval_batch_size >= 1, got "
                f"test_share={test_share}{' beside test' if test is not None else ''} and {eval_batch_size}: set one"
            )
        if task not in (None, *get_args(Task)) or (task == "classification" and not isinstance(target, str)):
            raise ConfigurationError(
                "expected task to be regression, or classification of one target column, not a list, got "
                f"task={task} and target={target}: change one"
            )
        if partition is not None and (getattr(partition, "column", None) is None or client != "client"):
            raise ConfigurationError(
                f"expected client, or partition: Natural with a column, got {partition} and client={client}: give one"
            )
        client = partition.column if partition and partition.column else client
        self.train, self.test, self.test_share, self.eval_batch_size = train, test, test_share, eval_batch_size
        self.target, self.client, self.features, self.task = target, client, features, task
        if test is not None or test_share:  # else the data module would hide the client module's own loaders
            self.val_dataloader = self.test_dataloader = self._test_loader  # type: ignore[method-assign]

    @cached_property
    def num_clients(self) -> int:  # type: ignore[override]  # known on loading only
        """N, the number of distinct values of the client column."""
        return len(self._loaded.parts)

    @cached_property
    def client_names(self) -> list[str]:  # type: ignore[override]  # known on loading only
        """The value of the client column for each client, as text, in the sorted order of the values."""
        return [str(value) for value in self._loaded.clients]

    @property
    def class_names(self) -> list[Any]:
        """The value of the target column for each class, in sorted order; empty for regression."""
        return self._loaded.class_names

    @override
    def missing(self) -> str | None:
        for name, table in (("train", self.train), ("test", self.test)):
            if isinstance(table, str | Path) and not _file(table).exists():
                return _unreadable(_file(table), "No such file or directory", name)
        return None

    @override
    def setup(self, stage: str) -> None:
        self._loaded  # noqa: B018  # loads

    @override
    def client_dataset(self, client: int) -> Subset[tuple[Tensor, ...]]:
        return Subset(self._loaded.train, self._loaded.parts[client])  # type: ignore[arg-type]  # a tensor is a sequence

    @override
    def client_num_samples(self, client: int) -> int:
        return len(self._loaded.parts[client])

    @override
    def class_counts(self) -> Tensor | None:
        if not self.class_names:
            return None
        classes, parts = self._loaded.train.tensors[1], self._loaded.parts
        return torch.stack([classes[part].bincount(minlength=len(self.class_names)) for part in parts])

    @override
    def held_out_batches(self, client: int) -> Iterator[list[Tensor]]:
        """Yield the rows of the test set that are the client's own, in batches of ``eval_batch_size``, in order."""
        rows = (self._loaded.test_owners == client).nonzero().flatten()
        for some in torch.split(rows, self.eval_batch_size):
            if len(some):  # torch.split makes one empty batch of no rows
                yield [tensor[some] for tensor in self._loaded.test.tensors]

    def _test_loader(self) -> DataLoader[Any]:
        dataset = self._loaded.test
        batches = [slice(i, i + self.eval_batch_size) for i in range(0, len(dataset), self.eval_batch_size)]
        return DataLoader(dataset, batch_size=None, sampler=batches, generator=torch.Generator())

    @cached_property
    def _loaded(self) -> _Loaded:
        train = _frame(self.train, "train")
        test = train.iloc[:0] if self.test is None else _frame(self.test, "test")
        _check_columns(train, "train", [self.client, *self._targets, *(self.features or ())])
        names = self.features or [c for c in train.columns if c not in (self.client, *self._targets)]
        _check_columns(test, "test", [*self._targets, *names])
        known = {value: number for number, value in enumerate(_sorted(train[self.client], self.client))}
        owners = torch.tensor(train[self.client].map(known).to_numpy(np.int64))
        owned = self.client in test and len(test)
        test_owners = test[self.client].map(known).fillna(-1).to_numpy(np.int64) if owned else np.full(len(test), -1)
        classes = self._classes(train, test)
        tables = [TensorDataset(_floats(t, names), self._encode(t, classes)) for t in (train, test)]
        parts = [(owners == k).nonzero().flatten() for k in range(len(known))]
        if not self.test_share:
            return _Loaded(list(known), classes, tables[0], parts, tables[1], torch.tensor(test_owners))
        masks = [
            draw_held_out(len(part), self.test_share, numpy_generator(self.seed, "held out", k))
            for k, part in enumerate(parts)
        ]
        back = torch.cat([part[mask] for part, mask in zip(parts, masks, strict=True)])
        parts = [part[~mask] for part, mask in zip(parts, masks, strict=True)]
        held = TensorDataset(*(tensor[back] for tensor in tables[0].tensors))
        return _Loaded(list(known), classes, tables[0], parts, held, owners[back])

    @property
    def _targets(self) -> list[str]:
        return [self.target] if isinstance(self.target, str) else self.target

    def _classes(self, train: DataFrame, test: DataFrame) -> list[Any]:
        """Return the sorted distinct values of a target column of classes; an empty list for floats."""
        import pandas as pd

        if (task := self.task) == "regression":
            _check_numbers(train[self._targets])
        if not isinstance(self.target, str) or task == "regression":
            return []
        column = train[self.target]
        if not task and pd.api.types.is_float_dtype(column):
            return []
        classes = _sorted(column if not len(test) else pd.concat([column, test[self.target]]), self.target)
        if not task and pd.api.types.is_integer_dtype(column) and classes != list(range(len(classes))):
            rank_zero_warn(
                f"{self.target}: whole numbers from {classes[0]} to {classes[-1]} are taken as {len(classes)} classes, "
                "numbered from 0: task: regression keeps the numbers, task: classification says that classes are meant"
            )
        return classes

    def _encode(self, table: DataFrame, classes: list[Any]) -> Tensor:
        if classes:
            numbers = {value: number for number, value in enumerate(classes)}
            return torch.tensor(table[str(self.target)].map(numbers).to_numpy(np.int64))
        targets = _floats(table, self._targets)
        return targets[:, 0] if isinstance(self.target, str) else targets


@dataclass(frozen=True)
class _Loaded:
    clients: list[Any]  # the value of the client column for each client
    class_names: list[Any]
    train: TensorDataset
    parts: list[Tensor]  # the rows of train that each client trains on
    test: TensorDataset  # may be empty
    test_owners: Tensor  # the client of each row of test, -1 if unknown


def _frame(table: Any, name: str) -> DataFrame:
    """Return a DataFrame, read from a file if a path is given."""
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        return table
    if not isinstance(table, str | Path):
        raise ConfigurationError(
            f"expected {name} to be a pandas DataFrame or the path of a CSV or parquet file, got {type(table).__name__}"
        )
    path = _file(table)
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ImportError:
        raise ConfigurationError("reading parquet files needs pyarrow: pip install 'fl-lightning[parquet]'") from None
    except (OSError, ValueError) as error:  # pandas' and pyarrow's own errors are ValueErrors, too
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigurationError(_unreadable(path, reason, name)) from None


def _file(table: str | Path) -> Path:
    return Path(table).expanduser().absolute()


def _unreadable(path: Path, reason: str, name: str) -> str:
    return f"expected a CSV or parquet file in {path}, got {reason!r}: point {name} to such a file"


def _check_columns(table: DataFrame, name: str, columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in table]
    if missing:
        near = [nearest(str(column), map(str, table.columns)) for column in missing]
        hint = f"; did you mean {', '.join(filter(None, near))}?" if any(near) else ""
        raise ConfigurationError(
            f"expected the {name} table to have the columns {', '.join(map(str, columns))}, got "
            f"{', '.join(map(str, table.columns)) or 'none'}: rename columns, or set client, target and features{hint}"
        )
    if not len(table) and name == "train":
        raise ConfigurationError("expected the train table to have rows, got none: give at least one")


def _sorted(column: Series[Any], name: str) -> list[Any]:
    """Return a column's distinct values in sorted order."""
    if column.isna().any():
        raise ConfigurationError(
            f"expected column {name} to be complete, got {int(column.isna().sum())} missing values: fill the values or "
            "leave these rows out"
        )
    try:
        return sorted(column.unique().tolist())
    except TypeError:  # such as integers and texts
        raise ConfigurationError(
            f"expected column {name} to hold values of one type, got several: convert them to texts"
        ) from None


def _check_numbers(targets: DataFrame) -> None:
    """Refuse target columns that are no numbers."""
    import pandas as pd

    for name, column in targets.items():
        if not pd.api.types.is_numeric_dtype(column):
            raise ConfigurationError(
                f"expected task: regression to have targets of numbers, got other values in {name}: set task: "
                "classification, or another target"
            )


def _floats(table: DataFrame, names: Sequence[str]) -> Tensor:
    """Return columns of numbers as (n, F) floats of the default type."""
    import pandas as pd

    wrong = [name for name in names if not pd.api.types.is_numeric_dtype(table[name])]
    if wrong:
        raise ConfigurationError(
            f"expected columns of numbers, got other values in {', '.join(map(str, wrong))}: encode these columns, as "
            "pandas.get_dummies does, or list other features"
        )
    values = table[list(names)].to_numpy(dtype=np.float64, na_value=np.nan)
    if not np.isfinite(values).all():
        bad = [str(name) for name, column in zip(names, values.T, strict=True) if not np.isfinite(column).all()]
        raise ConfigurationError(
            f"expected finite numbers, got nan or inf in {', '.join(bad)}: fill the values or leave these rows out"
        )
    return torch.tensor(values, dtype=torch.get_default_dtype())
