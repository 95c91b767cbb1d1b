"""Table: the rows of a pandas DataFrame, a CSV file or a parquet file; a column names the client of each."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from fl_lightning.datamodules.base.dealt import hold_out, mask_of, new_last
from fl_lightning.datamodules.base.domains import check_left_out, left_out_names
from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.datamodules.base.settings import Dealing, Unpack
from fl_lightning.datamodules.base.source import Source, of_tensors
from fl_lightning.datamodules.changes.constants import check_constants
from fl_lightning.datamodules.partition import DomainDirichlet, Natural, Partition
from fl_lightning.datamodules.partition.steps.parts import Ints, rows_of
from fl_lightning.datamodules.tables.rows.names import as_written, distinct, in_both, positions
from fl_lightning.datamodules.tables.rows.owners import owners_of
from fl_lightning.engine.federation.raw import RawInputs
from fl_lightning.errors import ConfigurationError, nearest
from fl_lightning.later import later

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Task = Literal["classification", "regression"]
ALL = "all"  # the name of the one client of a table without a column of clients
MARKS = {";": "semicolons", "\t": "tabs", "|": "bars"}  # that separate fields in files other than CSV
# A fraction or a number with a decimal comma: .5, 1,5, 1.234,50
FRACTION = re.compile(r"[-+]?(\d*|\d{1,3}([., ']\d{3})+)[.,]\d+(e[-+]?\d+)?", re.IGNORECASE)


class Table(LabelledData):
    """The rows of a table, in memory. Each distinct value of one column (hospital, user, writer) is a client.

    Clients are numbered in the sorted order of the values, which also name them (``client_names``). Batches are
    ``[features (B, F), targets]``, floats of the default type, scaled by ``mean`` and ``std`` alone. Unless ``task``
    says otherwise, a target column of integers, truth values or texts holds classes: targets (B,) int64, numbered in
    the sorted order of the values in both sets, ``class_names``; and a target column of floats is for regression:
    targets (B,). A warning says so if the classes are integers other than 0 to C-1. Several target columns, or a list
    of one, become floats (B, T).

    The test set is used for validation, too; without a test set, the client module's own loaders are used. When clients
    evaluate, each uses its own rows of the test set.

    Args:
        train: pandas DataFrame, or path of a CSV or parquet file, with the training rows.
        target: name of the target column, or a list of such names. Names of columns are taken as texts.
        client: name of the column that holds each row's client; None if all rows are one client's, as at a site of a
            federation. With a partition, the column is no feature, if there is one. In a CSV file, the names of
            clients, domains and classes are read as they are written: "007" is not "7"; "NA" is a client or a domain,
            but no class.
        features: names of the feature columns, which hold numbers or truth values; by default all other columns that
            have a name. A warning then names those that look like no measurements.
        test: table of the test rows, like ``train``; the client column may be missing, or hold other clients, too.
        test_share: without ``test``, share in [0, 1) of each client's rows (with a partition, of all rows) that become
            the test set instead of training rows; drawn with the run's seed; at least one row of each client stays in
            training.
        eval_batch_size: rows per batch of the test set.
        task: ``"regression"`` keeps the numbers of any target column as float targets; ``"classification"`` makes
            classes of the values of any one target column; None decides by the type of the column, and refuses texts
            that may be meant as numbers ("1,5") and fractions among texts.
        partition: partition that deals the training rows to ``num_clients`` clients in place of ``client``;
            ``Natural(column)`` is another way to name the column of clients.
        num_clients: N, the number of clients, for a partition other than ``Natural`` and ``DomainDirichlet``.
        domain: name of a column of domains (countries, devices), which is no feature: :meth:`domain_batches` gives the
            test rows of each.
        leave_out: domains that do not train: their training rows become test rows.
        mean: number to subtract from each feature, in the order of the features; None leaves features as they are.
        std: number above 0 by which each feature is then divided; None if ``mean`` is None.
        classes: all values of the target column that are classes, in the order of their numbers; by default, those that
            occur, in sorted order.
        labelled: ``batch_size``, ``proxy_per_class``, ``long_tail``, ``corruption``, ``held_out`` and the other
            arguments of :class:`LabelledData`; those that go by classes need a target of classes.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, a file cannot be read or has other marks than
            commas between its fields, a column is missing, or a column holds missing values or values that are no
            numbers, such as a target column of texts for regression; two columns have one name; the client column of
            ``test`` holds no client of ``train``.
    """

    places = ("train", "test")
    from_statistics = ("mean", "std", "classes")

    @later(held_out=0.0, domain=None, leave_out=(), mean=None, std=None, classes=None)
    @later(num_clients=None, corruption=None, long_tail=1.0, proxy_per_class=0, proxy_source="test")
    @later(proxy_long_tail=1.0, proxy_balanced=False, proxy_batch_size=128, train_examples=None, test_examples=None)
    def __init__(
        self,
        train: Any,
        target: str | list[str],
        client: str | None = "client",
        features: list[str] | None = None,
        test: Any = None,
        test_share: float = 0.0,
        eval_batch_size: int = 1000,
        task: Task | None = None,
        partition: Partition | None = None,
        domain: str | None = None,
        leave_out: Sequence[str] = (),
        mean: list[float] | None = None,
        std: list[float] | None = None,
        classes: list[str] | list[int] | None = None,
        num_clients: int | None = None,
        **labelled: Unpack[Dealing],
    ) -> None:
        is_natural = partition is None or isinstance(partition, Natural)
        _check_clients(client, partition, num_clients)
        super().__init__(
            num_clients=num_clients or 1,
            partition=None if is_natural else partition,
            eval_batch_size=eval_batch_size,
            **labelled,
        )
        if mean is not None or std is not None:
            mean, std = map(list, check_constants(mean, std, len(mean or std or ()), "columns"))
        if classes is not None and (len(set(classes)) < len(classes) or task == "regression"):
            raise ConfigurationError(
                f"expected classes to be different values of one target, got {classes}: correct it"
            )
        self.mean, self.std, self.classes = mean, std, classes
        if not 0 <= test_share < 1 or (test is not None and test_share):
            raise ConfigurationError(
                "expected test or a test_share in [0, 1), got "
                f"test_share={test_share}{' beside test' if test is not None else ''}: set one"
            )
        self._targets = [*map(str, target if isinstance(target, list | tuple) else [target])]
        self.target = self._targets if isinstance(target, list | tuple) else self._targets[0]
        self.features = [*map(str, features or ())]
        if task not in (None, *get_args(Task)) or (task == "classification" and not isinstance(self.target, str)):
            raise ConfigurationError(
                "expected task to be regression, or classification of one target column, not a list, got "
                f"task={task} and target={target}: change one"
            )
        used = [*self._targets, *self.features]
        if len(set(used)) < len(used):
            raise ConfigurationError(f"target and features must name each column once, got {', '.join(used)}")
        column = partition.column if isinstance(partition, Natural) else client
        self.client = None if column is None else str(column)
        self.train, self.test, self.test_share = train, test, test_share
        self.task = task
        self.domain, self.leave_out = domain, left_out_names(domain, leave_out)
        self._has_tests = bool(test is not None or test_share or leave_out)
        if not self._has_tests:
            self.leave_tests_out()

    @property
    def class_names(self) -> list[Any]:
        """The value of the target column for each class, in sorted order; empty for regression."""
        return self._rows.class_names

    @property
    def num_classes(self) -> int:  # type: ignore[override]  # known on loading only
        """C, the number of classes; regression has no such attribute."""
        if not self.class_names:
            raise AttributeError("num_classes")
        return len(self.class_names)

    @override
    def missing(self) -> str | None:
        for name, table in (("train", self.train), ("test", self.test)):
            if isinstance(table, str | Path) and not _file(table).exists():
                return _unreadable(_file(table), "No such file or directory", name)
        return None

    @override
    def find_source(self, train: bool) -> Source | None:
        return self._rows.train if train else self._rows.test

    @override
    def clients(self, train: bool) -> Sequence[Any] | None:
        return self._rows.owners[train] if self._is_natural else None

    @override
    def client_order(self) -> Sequence[str] | None:
        return self._rows.names if self._is_natural else None

    @override
    def domains(self, train: bool) -> Sequence[str] | None:
        return self._rows.domains[train] if self.domain else None

    @cached_property
    def _rows(self) -> _Rows:
        """Both tables as they are read: which rows train, which evaluate, whose they are."""
        import pandas as pd

        train = self._read("train", self.train)
        test = train.iloc[:0] if self.test is None else self._read("test", self.test)
        own = [] if self.domain is None else [self.domain]
        owners = [self.client] if self.client and (self._is_natural or self.client in train) else []
        others = [name for name in train.columns if name not in (*owners, *self._targets, *own)]
        names = self.features or [name for name in others if name and not name.startswith("Unnamed: ")]  # pandas' word
        _check_columns(train, "train", [*owners, *self._targets, *own, *names])
        _check_columns(test, "test", [*self._targets, *own, *names])
        if not names:
            raise ConfigurationError("expected the train table to have columns of features, got none: add one")
        train_domains, test_domains = self._domains(train, test)
        left_out = train_domains.isin(self.leave_out).to_numpy()
        rows = np.flatnonzero(~left_out)
        whole, train = train, train[~left_out]
        column = self.client if self._is_natural else None
        clients = [ALL] if column is None else distinct(train[column], column)
        owned, tested = (_owners(table, column, clients, name) for table, name in ((train, "train"), (test, "test")))
        tested = np.append(tested, np.full(left_out.sum(), -1))  # the rows of domains left out are no client's
        test = pd.concat([test, whole[left_out]]) if left_out.any() else test
        classes = self._classes(train, test)
        if self.mean is not None:
            check_constants(self.mean, self.std, len(names), f"features ({', '.join(names)})")
        scale = (self.mean, self.std)
        sets = [[_floats(table, names, *scale), self._encode(table, classes)] for table in (train, test)]
        if not self.features:
            _warn_of_odd(train[others], names, train[self._targets[0]])
        domains = [train_domains[~left_out].to_numpy(), pd.concat([test_domains, train_domains[left_out]]).to_numpy()]
        if self.test_share:
            order = new_last(len(clients), self.new_clients, self.seed)
            staying, moved = hold_out(rows_of(owned, len(clients)).in_order(order), self.test_share, self.seed)
            stays = mask_of(len(train), staying.rows).numpy()
            sets[1] = [torch.cat([ours[moved.rows], theirs]) for ours, theirs in zip(*sets, strict=True)]
            sets[0] = [tensor[stays] for tensor in sets[0]]
            tested, owned = np.append(owned[moved.rows], tested), owned[stays]
            domains = [domains[0][stays], np.append(domains[0][moved.rows], domains[1])]
            rows = rows[stays]
        known = [*map(str, clients), None]  # the last name is nobody's
        train_set, test_set = (of_tensors(x, y, y if classes else None) for x, y in sets)
        return _Rows(
            train=train_set,
            test=test_set if self._has_tests else None,
            names=[*map(str, clients)],
            owners={True: [known[owner] for owner in owned], False: [known[owner] for owner in tested]},
            domains={True: domains[0].tolist(), False: domains[1].tolist()},
            class_names=classes,
            features=names,
            rows=rows,
        )

    @override
    def raw_inputs(self, client: int) -> RawInputs:
        """Return the features of a client's training rows, read again as float64."""
        return RawInputs(tuple(self._rows.features), self._raw_rows(client))

    def _raw_rows(self, client: int) -> Iterator[Tensor]:
        own = self._rows.rows[self._dealt.parts[client].numpy()]
        table = self._read("train", self.train).iloc[own]
        yield torch.tensor(table[self._rows.features].to_numpy(dtype=np.float64))

    def _read(self, name: str, table: Any) -> DataFrame:
        """Return the training or the test table, with columns of names as they are written."""
        names = [column for column in (self.client, self.domain) if column is not None]
        label = self.target if isinstance(self.target, str) and self.task != "regression" else None
        return _frame(table, name, names, label)

    def _domains(self, train: DataFrame, test: DataFrame) -> tuple[Series[str], Series[str]]:
        """Return the domain of each row of both tables; empty texts without a column of domains."""
        import pandas as pd

        if self.domain is None:
            return pd.Series("", index=train.index), pd.Series("", index=test.index)
        domains = in_both(train[self.domain], test[self.domain], self.domain)
        check_left_out(self.leave_out, sorted(set(domains[0])))
        return domains

    def _classes(self, train: DataFrame, test: DataFrame) -> list[Any]:
        """Return the sorted distinct values of a target column of classes; an empty list for floats."""
        import pandas as pd

        if (task := self.task) == "regression":
            _check_numbers(train[self._targets])
        if not isinstance(self.target, str) or task == "regression":
            return []
        column = train[self.target]
        if self.classes is not None:
            return self._given_classes(self.classes, column, test[self.target])
        if not task and pd.api.types.is_float_dtype(column):
            return []
        classes = distinct(column, self.target)
        new = test[self.target][positions(test[self.target], classes) < 0]
        if len(new):
            classes = distinct(pd.concat([column, new]), self.target)
        if not task:
            _check_classes(self.target, classes)
            if pd.api.types.is_integer_dtype(column) and classes != list(range(len(classes))):
                rank_zero_warn(
                    f"{self.target}: whole numbers from {classes[0]} to {classes[-1]} are taken as {len(classes)} "
                    "classes, numbered from 0: task: regression keeps the numbers, task: classification says that "
                    "classes are meant"
                )
        return classes

    def _given_classes(self, classes: Sequence[Any], *columns: Series[Any]) -> list[Any]:
        """Return the classes as they are given; refuse a value that is none of them."""
        for column in columns:
            others = column[positions(column, classes) < 0]
            if len(others):
                raise ConfigurationError(
                    f"expected {self.target} to be one of the classes {', '.join(map(str, classes))}, got "
                    f"{others.iloc[0]!r}: add it to classes, or correct the table"
                )
        return list(classes)

    def _encode(self, table: DataFrame, classes: list[Any]) -> Tensor:
        if classes:
            return torch.from_numpy(positions(table[str(self.target)], classes))
        targets = _floats(table, self._targets)
        return targets[:, 0] if isinstance(self.target, str) else targets


@dataclass(frozen=True, kw_only=True)
class _Rows:
    train: Source
    test: Source | None
    names: list[str]  # of the clients, in the order of their values
    owners: dict[bool, list[Any]]  # the client of each training (True) and test row; None for nobody's
    domains: dict[bool, list[str]]
    class_names: list[Any]
    features: list[str]
    rows: Ints  # the row of the training table that each training example is


def _owners(table: DataFrame, column: str | None, clients: list[Any], name: str) -> Ints:
    """Return the position of each row's client; of the only one without a column, of nobody if the table lacks it."""
    if column is None:
        return np.zeros(len(table), dtype=np.int64)
    if column not in table:
        return np.full(len(table), -1)
    return owners_of(table[column], clients, column, may_be_none=False)


def _check_clients(client: str | None, partition: Partition | None, num_clients: int | None) -> None:
    """Refuse clients that are named in two ways, or in none."""
    if partition is not None and (client != "client" or (isinstance(partition, Natural) and partition.column is None)):
        raise ConfigurationError(
            f"expected client, a partition, or partition: Natural with a column, got {partition} and client={client}: "
            "give one"
        )
    is_counted = partition is not None and not isinstance(partition, Natural | DomainDirichlet)
    if is_counted != (num_clients is not None):
        kind = "client" if partition is None else type(partition).__name__
        raise ConfigurationError(
            f"expected num_clients for a partition such as Dirichlet, and for no column of clients, got {num_clients} "
            f"with {kind}: {'set num_clients' if is_counted else 'leave num_clients out'}"
        )


def _frame(table: Any, name: str, names: Sequence[str], label: str | None) -> DataFrame:
    """Return a DataFrame whose columns have texts for names, read from a file if a path is given.

    Args:
        table: DataFrame, or path of a CSV or parquet file.
        name: which table it is, for messages.
        names: the columns that name clients and domains.
        label: the column of classes, if there is one.
    """
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        return table.rename(columns=str)
    if not isinstance(table, str | Path):
        raise ConfigurationError(
            f"expected {name} to be a pandas DataFrame or the path of a CSV or parquet file, got {type(table).__name__}"
        )
    path = _file(table)
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pd.read_parquet(path)
        return as_written(path, _read_csv(path), names, label)
    except ImportError:
        raise ConfigurationError("reading parquet files needs pyarrow: pip install 'fl-lightning[parquet]'") from None
    except (OSError, ValueError) as error:  # pandas' and pyarrow's own errors are ValueErrors, too
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigurationError(_unreadable(path, reason, name)) from None


def _read_csv(path: Path) -> DataFrame:
    """Read a CSV file; refuse other marks than commas between the fields, and rows with more fields than names."""
    import pandas as pd

    names = pd.read_csv(path, nrows=0, index_col=False).columns
    found = [mark for mark in MARKS if len(names) == 1 and mark in names[0]]
    if found:
        raise ConfigurationError(
            f"expected commas between the fields of {path}, got {MARKS[found[0]]}: save the file with commas and "
            "decimal points, or give a DataFrame"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            # Column by column: in parts, a column of a large file may hold numbers first and texts later. Without
            # index_col, the first fields of rows with too many would be taken for names of the rows.
            return pd.read_csv(path, low_memory=False, index_col=False)
        except pd.errors.ParserWarning:
            raise ConfigurationError(
                f"expected a name for each field in the first line of {path}, got rows with more fields than the "
                f"{len(names)} names: name all columns"
            ) from None


def _file(table: str | Path) -> Path:
    return Path(table).expanduser().absolute()


def _unreadable(path: Path, reason: str, name: str) -> str:
    return f"expected a CSV or parquet file in {path}, got {reason!r}: point {name} (--data.{name}) to such a file"


def _check_columns(table: DataFrame, name: str, columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in table]
    if missing:
        near = [nearest(str(column), map(str, table.columns)) for column in missing]
        hint = f"; did you mean {', '.join(filter(None, near))}?" if any(near) else ""
        raise ConfigurationError(
            f"expected the {name} table to have the columns {', '.join(map(str, columns))}, got "
            f"{', '.join(map(str, table.columns)) or 'none'}: rename columns, or set target, features and client (null "
            f"if all rows are one client's){hint}"
        )
    if twice := {*columns} & {*table.columns[table.columns.duplicated()]}:
        raise ConfigurationError(f"{name} must have one column {', '.join(sorted(twice))}, got two: rename one")
    if not len(table) and name == "train":
        raise ConfigurationError("expected the train table to have rows, got none: give at least one")


def _warn_of_odd(table: DataFrame, names: Sequence[str], target: Series[Any]) -> None:
    """Warn once of columns without a name, which are no features, and of features that look like no measurement."""
    odd = dict.fromkeys(sorted({*table} - {*names}), "no name and is left out")
    features = table[[*names]]
    whole = features.select_dtypes("integer")
    odd |= dict.fromkeys([name for name in whole if whole[name].is_unique], "another whole number in every row")
    odd |= dict.fromkeys(features.columns[features.eq(target, axis=0).all()], "the target's values")
    odd |= dict.fromkeys(features.columns[features.eq(features.iloc[0]).all()], "one value")
    if odd:
        told = ", ".join([f"{name} has {what}" for name, what in odd.items()][:5])
        rank_zero_warn(f"columns that may be no measurements, {len(odd)} in all: {told}: list features to choose")


def _check_classes(name: str, classes: Sequence[Any]) -> None:
    """Refuse texts that may be meant as numbers, such as 1,5, and fractions among texts."""
    fraction = next((value for value in classes if isinstance(value, str) and FRACTION.fullmatch(value.strip())), None)
    if fraction is not None:
        raise ConfigurationError(
            f"expected {name} to hold numbers or classes, got texts such as {fraction!r}: write numbers alone, with a "
            "decimal point, or set task: classification to make a class of each text"
        )


def _not_a_number(table: DataFrame, names: Sequence[str]) -> str | None:
    """Name the columns that hold other values than numbers, with one such value; None if all are numbers."""
    import pandas as pd

    wrong = [name for name in names if not pd.api.types.is_numeric_dtype(table[name])]
    if not wrong:
        return None
    column = table[wrong[0]]
    others = column[pd.to_numeric(column, errors="coerce").isna() & column.notna()]
    example = others.iloc[0] if len(others) else column.iloc[0]
    return f"{', '.join(wrong)}, such as {example!r}"


def _check_numbers(targets: DataFrame) -> None:
    """Refuse target columns that are no numbers."""
    if wrong := _not_a_number(targets, [*targets]):
        raise ConfigurationError(
            f"expected task: regression to have targets of numbers, got other values in {wrong}: set task: "
            "classification, write decimal points, or choose another target"
        )


def _floats(
    table: DataFrame, names: Sequence[str], mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Tensor:
    """Return columns of numbers as (n, F) floats of the default type, scaled by a mean and a std of each if given."""
    if wrong := _not_a_number(table, names):
        raise ConfigurationError(
            f"expected columns of numbers, got other values in {wrong}: encode these columns, as pandas.get_dummies "
            "does, write decimal points, or list other features"
        )
    array = table[list(names)].to_numpy(dtype=np.float64, na_value=np.nan)
    if mean is not None and std is not None:
        array = (array - np.asarray(mean)) / np.asarray(std)
    values = torch.tensor(array, dtype=torch.get_default_dtype())  # float32 ends at 3.4e38
    if not values.isfinite().all():
        bad = [name for name, column in zip(names, values.T, strict=True) if not column.isfinite().all()]
        raise ConfigurationError(
            f"expected finite numbers of {values.dtype}, got nan or inf in {', '.join(bad)}: fill or drop the rows"
        )
    return values
