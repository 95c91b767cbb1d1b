"""Table: the rows of a pandas DataFrame, a CSV file or a parquet file; a column names the client of each."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from fl_lightning.datamodules.base.dealt import Dealt, check_held_out, count_new, hold_out, in_order, new_last
from fl_lightning.datamodules.base.domains import batches_by_domain, check_left_out, left_out_names
from fl_lightning.datamodules.base.federated import FederatedDataModule
from fl_lightning.datamodules.base.settings import Federation, Unpack
from fl_lightning.datamodules.images.image_folder import check_constants
from fl_lightning.datamodules.partition import Natural
from fl_lightning.datamodules.partition.steps.parts import Parts
from fl_lightning.datamodules.tables.rows.names import as_written, distinct, in_both, positions
from fl_lightning.datamodules.tables.rows.owners import own_rows
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


class Table(FederatedDataModule):
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
            federation. In a CSV file, the names of clients, domains and classes are read as they are written: "007" is
            not "7"; "NA" is a client or a domain, but no class.
        features: names of the feature columns, which hold numbers or truth values; by default all other columns that
            have a name. A warning then names those that look like no measurements.
        test: table of the test rows, like ``train``; the client column may be missing, or hold other clients, too.
        test_share: without ``test``, share in [0, 1) of each client's rows that become the test set instead of training
            rows; drawn with the run's seed; at least one row of each client stays in training.
        eval_batch_size: rows per batch of the test set.
        task: ``"regression"`` keeps the numbers of any target column as float targets; ``"classification"`` makes
            classes of the values of any one target column; None decides by the type of the column, and refuses texts
            that may be meant as numbers ("1,5") and fractions among texts.
        partition: ``Natural(column)`` in place of ``client``.
        held_out: share of each client's training rows, in [0, 1), that the client keeps back from training for its
            evaluation, in place of its rows of the test set; drawn with the run's seed.
        domain: name of a column of domains (countries, devices), which is no feature: :meth:`domain_batches` gives the
            test rows of each.
        leave_out: domains that do not train: their training rows become test rows.
        mean: number to subtract from each feature, in the order of the features; None leaves features as they are.
        std: number above 0 by which each feature is then divided; None if ``mean`` is None.
        classes: all values of the target column that are classes, in the order of their numbers; by default, those that
            occur, in sorted order.
        federation: ``batch_size``, ``participation``, ``seed`` and the other arguments of
            :class:`FederatedDataModule`.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, a file cannot be read or has other marks than
            commas between its fields, a column is missing, or a column holds missing values or values that are no
            numbers, such as a target column of texts for regression; two columns have one name; the client column of
            ``test`` holds no client of ``train``.
    """

    places = ("train", "test")
    from_statistics = ("mean", "std", "classes")

    @later(held_out=0.0, domain=None, leave_out=(), mean=None, std=None, classes=None)
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
        partition: Natural | None = None,
        held_out: float = 0.0,
        domain: str | None = None,
        leave_out: Sequence[str] = (),
        mean: list[float] | None = None,
        std: list[float] | None = None,
        classes: list[str] | list[int] | None = None,
        **federation: Unpack[Federation],
    ) -> None:
        super().__init__(**federation)
        if mean is not None or std is not None:
            mean, std = map(list, check_constants(mean, std, len(mean or std or ()), "columns"))
        if classes is not None and (len(set(classes)) < len(classes) or task == "regression"):
            raise ConfigurationError(
                f"expected classes to be different values of one target, got {classes}: correct it"
            )
        self.mean, self.std, self.classes = mean, std, classes
        check_held_out(held_out)
        if not 0 <= test_share < 1 or (test is not None and test_share) or eval_batch_size < 1:
            raise ConfigurationError(
                "expected test or a test_share in [0, 1), and eval_batch_size >= 1, got "
                f"test_share={test_share}{' beside test' if test is not None else ''} and {eval_batch_size}: set one"
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
        if partition is not None and (getattr(partition, "column", None) is None or client != "client"):
            raise ConfigurationError(
                f"expected client, or partition: Natural with a column, got {partition} and client={client}: give one"
            )
        column = partition.column if partition and partition.column else client
        self.client = None if column is None else str(column)
        self.train, self.test, self.test_share, self.eval_batch_size = train, test, test_share, eval_batch_size
        self.task = task
        self.held_out, self.domain, self.leave_out = held_out, domain, left_out_names(domain, leave_out)
        has_tests = test is not None or test_share or leave_out
        if has_tests:  # else the data module would hide the client module's own loaders
            self.val_dataloader = self.test_dataloader = self._test_loader  # type: ignore[method-assign]

    @cached_property
    def num_clients(self) -> int:  # type: ignore[override]  # known on loading only
        """N, the number of distinct values of the client column."""
        return len(self._dealt.trained)

    @cached_property
    def client_names(self) -> list[str]:  # type: ignore[override]  # known on loading only
        """The value of the client column for each client, as text, in the sorted order of the values."""
        return self._dealt.names

    @property
    def class_names(self) -> list[Any]:
        """The value of the target column for each class, in sorted order; empty for regression."""
        return self._dealt.class_names

    @override
    def missing(self) -> str | None:
        for name, table in (("train", self.train), ("test", self.test)):
            if isinstance(table, str | Path) and not _file(table).exists():
                return _unreadable(_file(table), "No such file or directory", name)
        return None

    @override
    def held_out_batches(self, client: int) -> Iterator[list[Tensor]]:
        """Return the client's own rows for its evaluation, in batches of ``eval_batch_size``, in order.

        They are the rows that the client keeps back from training, or its rows of the test set.
        """
        return self._dealt.kept_batches(client, self.eval_batch_size)

    @override
    def domain_batches(self) -> Mapping[str, Iterable[list[Tensor]]]:
        if self._dealt.domains is None:
            return {}
        return batches_by_domain(self._dealt.domains, self._dealt.evaluation, self.eval_batch_size)

    def _test_loader(self) -> DataLoader[Any]:
        return in_order(self._dealt.evaluation, self.eval_batch_size)

    @cached_property
    def _dealt(self) -> _Loaded:
        import pandas as pd

        train = self._read("train", self.train)
        test = train.iloc[:0] if self.test is None else self._read("test", self.test)
        own = [] if self.domain is None else [self.domain]
        owners = [] if self.client is None else [self.client]
        others = [name for name in train.columns if name not in (*owners, *self._targets, *own)]
        names = self.features or [name for name in others if name and not name.startswith("Unnamed: ")]  # pandas' word
        _check_columns(train, "train", [*owners, *self._targets, *own, *names])
        _check_columns(test, "test", [*self._targets, *own, *names])
        if not names:
            raise ConfigurationError("expected the train table to have columns of features, got none: add one")
        whole_domains, test_domains = self._domains(train, test)
        left_out = whole_domains.isin(self.leave_out).to_numpy()
        whole, train = train, train[~left_out]
        known = [ALL] if self.client is None else distinct(train[self.client], self.client)
        clients = [known[client] for client in new_last(len(known), self.new_clients, self.seed)]
        parts, kept = (_parts(table, self.client, clients) for table in (train, test))
        if left_out.any():
            test = pd.concat([test, whole[left_out]])  # these rows are no client's
        classes = self._classes(train, test)
        if self.mean is not None:
            check_constants(self.mean, self.std, len(names), f"features ({', '.join(names)})")
        scale = (self.mean, self.std)
        rows, test_rows = (TensorDataset(_floats(t, names, *scale), self._encode(t, classes)) for t in (train, test))
        if not self.features:
            _warn_of_odd(train[others], names, train[self._targets[0]])
        domains = pd.concat([test_domains, whole_domains[left_out]])
        if self.test_share:
            parts, back = hold_out(parts, self.test_share, self.seed)
            kept = Parts(torch.arange(len(back.rows)), back.sizes)
            both = zip(rows[back.rows], test_rows.tensors, strict=True)
            test_rows = TensorDataset(*[torch.cat(tensors) for tensors in both])
            domains = pd.concat([whole_domains[~left_out].iloc[back.rows.numpy()], domains])
        evaluated = (test_rows, kept)
        if self.held_out:
            parts, kept = hold_out(parts, self.held_out, self.seed)
            evaluated = (rows, kept)
        return _Loaded(
            examples=rows,
            parts=parts,
            classes=rows.tensors[1] if classes else None,
            num_classes=len(classes),
            names=[str(value) for value in clients],
            num_new=count_new(len(clients), self.new_clients),
            kept=evaluated,
            evaluation=test_rows,
            domains=domains.tolist() if self.domain else None,
            class_names=classes,
            features=names,
            trains=~left_out,
        )

    @override
    def raw_inputs(self, client: int) -> RawInputs:
        """Return the features of a client's training rows, read again as float64."""
        return RawInputs(tuple(self._dealt.features), self._raw_rows(client))

    def _raw_rows(self, client: int) -> Iterator[Tensor]:
        dealt = self._dealt
        table = self._read("train", self.train)[dealt.trains].iloc[dealt.parts[client].numpy()]
        yield torch.tensor(table[dealt.features].to_numpy(dtype=np.float64))

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
class _Loaded(Dealt):
    names: list[str]
    evaluation: TensorDataset
    domains: list[str] | None  # (n,) the domain of each test row
    class_names: list[Any]
    features: list[str]
    trains: NDArray[np.bool_]  # (n,) whether each row of the training table is a client's


def _parts(table: DataFrame, column: str | None, clients: list[Any]) -> Parts:
    """Return each client's rows of a table: all rows if the one client has no column, none if the table lacks it.

    Rows of unknown clients are left out.
    """
    if column is None:
        return own_rows(clients * len(table), clients, ALL, may_be_none=True)
    return own_rows(table.get(column, []), clients, column, may_be_none=False)


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
