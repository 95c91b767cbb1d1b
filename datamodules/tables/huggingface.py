"""HuggingFace: a Hugging Face data set, dealt by one of its columns or by a partition."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from fl_lightning.datamodules.base.federated import PartitionedData
from fl_lightning.datamodules.base.loaders import Loaders
from fl_lightning.datamodules.base.settings import Kept, Unpack
from fl_lightning.datamodules.partition import Partition
from fl_lightning.engine.federation.batches import check_examples
from fl_lightning.errors import ConfigurationError


class HuggingFace(PartitionedData):
    """A Hugging Face data set, dealt to the clients by a column or a partition.

    Examples are dicts of tensors, in the data set's own format if one is set.

    Args:
        train: ``datasets.Dataset`` with the training examples; or a ``datasets.DatasetDict`` or a folder that
            ``save_to_disk`` wrote, of which the split ``train`` is the training set, ``validation`` the validation set
            and ``test`` the test set (if one of the last two is missing, the other serves as both).
        test: ``datasets.Dataset`` to validate and test on; not together with splits of these names.
        client: name of the column that holds each example's client (writer, user) and is left out of the examples; each
            distinct value is one client, in sorted order, and names the client (``client_names``).
        columns: names of columns: examples become tuples of these columns, such as (image, label); dicts of all
            columns by default.
        label: name of the column of classes, for a partition by label; ignored if there is no such column.
        num_clients: N, the number of clients; only without ``client``.
        partition: as for :class:`PartitionedData`; not together with ``client``.
        batch_size: number of examples in a batch, for evaluation, too.
        collate_fn: as for :class:`FederatedDataModule`, for evaluation, too.
        federation: ``participation``, ``seed``, ``held_out`` and the other arguments of :class:`PartitionedData`.

    Raises:
        ConfigurationError: the data set is streamed or cannot be read, a column is missing, or an argument is outside
            its range.
    """

    def __init__(
        self,
        train: Any,
        test: Any = None,
        client: str | None = None,
        columns: list[str] | None = None,
        label: str = "label",
        num_clients: int | None = None,
        partition: Partition | Sequence[Any] | None = None,
        batch_size: int = 32,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **federation: Unpack[Kept],
    ) -> None:
        splits = _splits(train)
        check_columns(splits["train"], [*(columns or ()), *([client] if client else ())])
        if client and partition is not None:
            raise ConfigurationError(f"expected client or partition, got both, with client={client}: leave one out")
        stated = column_of(splits["train"], client) if client else partition
        labels = column_of(splits["train"], label) if label in splits["train"].column_names else None
        val = test if test is not None else splits.get("validation", splits.get("test"))
        test = test if test is not None else splits.get("test", val)
        sources = {"train": splits["train"], "val": val, "test": test}
        for name, split in sources.items():
            if split is not None:
                sources[name] = prepared(split, columns, client)
        super().__init__(
            Loaders(batch_size=batch_size, collate_fn=collate_fn, **sources),
            num_clients=num_clients,
            partition=stated,
            labels=labels if labels is not None and labels.dtype.kind in "iubSU" else None,
            **federation,
        )


class Tuples(Dataset[tuple[Any, ...]]):
    """The examples of a Hugging Face data set as tuples of some columns."""

    def __init__(self, dataset: Any, columns: Sequence[str]) -> None:
        self.dataset, self.columns = dataset, columns

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        example = self.dataset[index]
        return tuple(example[column] for column in self.columns)


def prepared(dataset: Any, columns: Sequence[str] | None, client: str | None = None) -> Any:
    """Return a Hugging Face data set that gives tensors, without the client column, in tuples if columns are named."""
    check_columns(dataset, columns or ())
    if dataset.format["type"] is None:
        dataset = dataset.with_format("torch")
    if client in dataset.column_names and client not in (columns or ()):
        dataset = dataset.remove_columns([client])
    return Tuples(dataset, columns) if columns else dataset


def check_columns(dataset: Any, columns: Sequence[str]) -> None:
    """Refuse a data set that is streamed, is no Hugging Face data set, or lacks one of the columns."""
    names = getattr(dataset, "column_names", None)
    if names is None or not hasattr(dataset, "with_format"):
        raise ConfigurationError(
            f"expected a datasets.Dataset (pip install 'fl-lightning[huggingface]'), got {type(dataset).__name__}: "
            "give such a data set, or use FederatedDataModule.from_loaders"
        )
    check_examples(dataset, "the data set")
    if missing := [column for column in columns if column not in names]:
        raise ConfigurationError(f"expected columns {', '.join(missing)}, got {', '.join(names)}: choose among these")


def column_of(dataset: Any, name: str) -> Any:
    """Return one column of a Hugging Face data set as an array."""
    return np.asarray(dataset.with_format(None)[name][:])


def _splits(train: Any) -> Mapping[str, Any]:
    """Return the data sets that are given, by the names of their splits."""
    if isinstance(train, Mapping):
        return train
    return _read_folder(train) if isinstance(train, str) else {"train": train}


def _read_folder(path: str) -> Mapping[str, Any]:
    """Read the folder that ``save_to_disk`` of a Dataset or a DatasetDict wrote."""
    try:
        load = import_module("datasets").load_from_disk
    except ImportError:
        raise ConfigurationError(
            "reading a Hugging Face data set needs datasets: pip install 'fl-lightning[huggingface]'"
        ) from None
    folder = Path(path).expanduser().absolute()
    try:
        saved = load(str(folder))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"expected a folder that save_to_disk wrote in {folder}, got {' '.join(str(error).split())[:100]!r}: point "
            "train to such a folder"
        ) from None
    splits: Mapping[str, Any] = saved if isinstance(saved, Mapping) else {"train": saved}
    if "train" not in splits:
        raise ConfigurationError(f"expected a split train in {folder}, got {', '.join(splits)}: rename a split")
    return splits
