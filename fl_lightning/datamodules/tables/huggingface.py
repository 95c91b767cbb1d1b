"""HuggingFace: a Hugging Face data set, dealt by one of its columns or by a partition."""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from fl_lightning.datamodules.base.dealt import in_order
from fl_lightning.datamodules.base.domains import left_out_names
from fl_lightning.datamodules.base.partitioned import count_clients, names_clients, stated
from fl_lightning.datamodules.base.settings import Columns, Unpack
from fl_lightning.datamodules.base.source import Source
from fl_lightning.datamodules.files.hub import parquet_features, read_splits
from fl_lightning.datamodules.partition import DomainDirichlet, Natural, Partition, Stated
from fl_lightning.datamodules.tables.column_data import ColumnData
from fl_lightning.datamodules.tables.columns import check_columns, check_no_images, image_columns, prepared
from fl_lightning.datamodules.tables.rows.classes import class_numbers, count_classes, groups_in, other_classes
from fl_lightning.datamodules.tables.rows.owners import owners_of
from fl_lightning.datamodules.tables.rows.splits import choose_splits, leave_unlabelled_out, move_to_test
from fl_lightning.datamodules.tables.texts.text_columns import tokenized
from fl_lightning.datamodules.tables.texts.token_columns import are_tokens, read_tokens
from fl_lightning.datamodules.tables.tokens import LongTexts, Tokenizer, read_tokenizer
from fl_lightning.datamodules.tables.values import check_class_names, check_examples, column_of, groups_of
from fl_lightning.errors import ConfigurationError
from fl_lightning.later import later

ONLY_IMAGES = ("channels", "image_size", "mean", "std", "augment")  # settings that other data do not take


class HuggingFace(ColumnData):
    """A Hugging Face data set, dealt to the clients by a column or a partition.

    Images are read as :class:`ColumnData` says. With ``tokenizer``, examples are (tokens, class), or (tokens,) without
    classes; of prompts and responses, or of chats, they are (tokens, labels), int64 (``length``,), where the labels are
    the tokens of responses and of their ends, and -100 elsewhere. All other examples are dicts of tensors. A data set
    with a format or a transform of its own is read as it is.

    Args:
        train: ``datasets.Dataset`` with the training examples; a ``datasets.DatasetDict``; a folder that
            ``save_to_disk`` wrote; a folder with the files of each split, as the hub keeps them (``train*.parquet``,
            ``test/*.jsonl``); a file, ``.parquet``, ``.jsonl``, ``.json``, ``.csv`` or ``.txt``, each line of which is
            a text in the column ``text``; or the name of a data set on the hub (``owner/name``), which is downloaded to
            the cache of ``datasets``. The split ``train`` is the training set, ``validation`` the
            validation set and ``test`` the test set (if one of the last two is missing, or no class of the test set is
            known, the other serves as both).
        test: ``datasets.Dataset``, or path of a file, to validate and test on; not together with splits of these names.
        client: name of the column that holds each example's client (writer, user) and is left out of the examples; each
            distinct value is one client, in sorted order, and names the client (``client_names``). If the test set has
            the column, too, and ``held_out`` is 0, each client evaluates on its own test examples; a warning counts
            those of others.
        columns: names of columns: examples become tuples of these columns, undecoded; by default, dicts of all columns,
            or images and classes. ``input_ids`` with ``attention_mask``, ``labels`` or both, in any order, become
            tokens (T,), -100 outside of the mask, and labels (T,), if there are some, or classes; T is the longest
            text's. These columns are left as they are beside others, with ``collate_fn``, or in a data set with a
            format of its own.
        label: name of the column of classes, for images and for a partition by label; if there is no such column, the
            only column of type ``ClassLabel`` holds the classes of images.
        num_clients: N, the number of clients; only without ``client``.
        partition: as for :class:`PartitionedData`; not together with ``client``.
        subset: name of the part of a data set on the hub that has several (``cropped_digits`` of SVHN).
        domain: name of the column that holds each example's domain (photo, sketch); each domain is a client, too,
            unless there is ``client`` or ``partition``, such as ``DomainDirichlet``. :meth:`domain_batches` gives the
            test examples of each domain, if the test set has the column.
        leave_out: domains, as texts, that do not train: their training examples become test examples.
        test_share: share in [0, 1) of the training examples of each client and domain that become test examples, beside
            those of a test set, if there is one; drawn with the run's seed, rounded to whole examples.
        tokenizer: name on the hub, or folder, of a language model whose tokenizer cuts texts into tokens, once, in
            memory: int64 (``length``,), -100 where there is no token. ``columns`` may name the column of texts, and
            that of classes; two columns of texts, of prompts and of responses; or a column of chats, which are lists of
            messages with ``role`` and ``content``, and which the tokenizer's own template writes. Rows without text or
            without response are left out.
        length: number of tokens of a text: a longer one is cut off, a shorter one filled up with -100, which is no
            token. A text ends with the token that the tokenizer ends texts with, if there is one. Responses of which
            nothing is left are left out.
        eos: whether the tokenizer's ``eos_token`` is put at the end of each text, if it is not there yet. A text that
            is cut off has none. Responses always have one.
        long_texts: whether a longer text is cut off ("cut"), or makes several examples of its client, domain and class
            ("chunk").
        settings: ``batch_size``, ``image_size`` and the other arguments of :class:`ColumnData`, and ``participation``,
            ``seed``, ``held_out`` and the others of :class:`LabelledData`. A proxy set of the test set needs ``label``
            to name a column of type ``ClassLabel``.

    Attributes:
        num_classes: C, the number of classes of images, or of a column ``label`` of type ``ClassLabel``.

    Raises:
        ConfigurationError: the data set is streamed or cannot be read, a column is missing, or an argument is outside
            its range; two sets number their classes differently, or hold columns of different types; examples lack a
            client, a domain, a number that would become nan, or a class; the tokenizer has no chat template, or none
            that leaves earlier turns as they are; on loading, an image cannot be decoded.
    """

    places = ("train", "test")
    from_statistics = ("mean", "std")

    @later(subset=None, domain=None, leave_out=(), test_share=0.0, tokenizer=None, length=128)
    @later(eos=False, long_texts="cut")
    def __init__(
        self,
        train: Any,
        test: Any = None,
        client: str | None = None,
        columns: list[str] | None = None,
        label: str = "label",
        num_clients: int | None = None,
        partition: Partition | Sequence[Any] | None = None,
        subset: str | None = None,
        domain: str | None = None,
        leave_out: Sequence[str] = (),
        test_share: float = 0.0,
        tokenizer: str | None = None,
        length: int = 128,
        eos: bool = False,
        long_texts: LongTexts = "cut",
        **settings: Unpack[Columns],
    ) -> None:
        sets = _read_sets(train, subset, test)
        own = [name for name in (client, domain) if name is not None]
        check_columns(sets["train"], [*(columns or ()), *own])
        self.tokenizer = tokenizer
        self.domain, self.leave_out, self.test_share = domain, left_out_names(domain, leave_out), test_share
        if client and partition is not None:
            raise ConfigurationError(f"expected client or partition, got both, with client={client}: leave one out")
        if partition is None and num_clients is None:
            client = client or domain
        chosen = Natural(client) if client else stated(partition)
        if isinstance(chosen, DomainDirichlet) and chosen.column is None:
            chosen = copy(chosen)
            chosen.column = domain
        super().__init__(num_clients=count_clients(num_clients, chosen), partition=chosen, **settings)
        self._is_natural = names_clients(num_clients, chosen)
        pair = None if tokenizer else image_columns(sets["train"], columns, label)
        self.client, self.columns, self.label = client, columns, pair[1] if pair else label
        self._known = np.unique(groups_in(sets["train"], client)).tolist() if client else []
        self._sets = self._divided(sets, own)
        self._plain: Mapping[str, Any] = {}
        if pair:
            self.images = self.decoded(self._sets, pair)
        else:
            check_no_images(**{name: settings.get(name) for name in ONLY_IMAGES})
            if not tokenizer and (eos or long_texts != "cut"):
                raise ConfigurationError("expected tokenizer for eos and long_texts, got none: set tokenizer")
            how = read_tokenizer(tokenizer, length, eos, long_texts) if tokenizer else None
            self._plain = self._tensors(own) if how is None else self._tokens(own, how)
        if "test" not in self._sets:
            self.leave_tests_out()
        classes = self.images.num_classes if self.images else count_classes(self._sets["train"], self.label)
        if classes is not None:
            self.num_classes = classes

    def _divided(self, sets: Mapping[str, Any], own: Sequence[str]) -> Mapping[str, Any]:
        """Return the data sets to train, to test and to validate on, checked, after examples moved between them."""
        train = sets["train"]
        read = self._names_of(train, own)
        for name, split in sets.items():
            check_columns(split, (), name)
            check_class_names(train.features, split.features, [*read, self.label, *own], f"{name} set")
            if self.domain is not None and self.domain in split.column_names:
                groups_of(split, self.domain, name)
        if self.label in read:
            sets = leave_unlabelled_out(sets, self.label)
        if self.leave_out or self.test_share:
            sets = move_to_test(sets, own, self.domain, self.leave_out, self.test_share, self.seed)
        return sets

    def _names_of(self, split: Any, own: Sequence[str]) -> Sequence[str]:
        """Return the names of an example's columns."""
        return self.columns or [name for name in split.column_names if name not in own]

    def _tokens(self, own: Sequence[str], tokenizer: Tokenizer) -> Mapping[str, Any]:
        """Cut the texts into tokens; keep the rows of the data sets that are examples."""
        made = tokenized(self._sets, tokenizer, self.columns, self.label, own)
        if made.is_changed and isinstance(self.partition, Stated):
            raise ConfigurationError(
                "expected every text of the train set to be one example, since partition names rows by number, got "
                "rows that are left out or divided: name a column by client, or give other texts"
            )
        self._sets = made.splits
        return made.examples

    def _tensors(self, own: Sequence[str]) -> Mapping[str, Any]:
        train = self._sets["train"]
        read = self._names_of(train, own)
        if self.columns and self.collate_fn is None and are_tokens(self._sets, self.columns):
            return read_tokens(self._sets, self.columns)
        for name, split in self._sets.items():
            check_examples(train, split, read, self.label, name, self.collate_fn is None)
        return {name: prepared(split, self.columns, own) for name, split in self._sets.items()}

    @override
    def val_dataloader(self) -> DataLoader[Any]:
        """Return the validation set, in order; without any, as for :class:`LabelledData`."""
        if self.validation_examples or self._sets["val"] is self._sets["test"]:
            return super().val_dataloader()
        return in_order(self._examples_of("val"), self.eval_batch_size, self.eval_collate)

    @override
    def find_source(self, train: bool) -> Source | None:
        name = "train" if train else "test"
        if name not in self._sets:
            return None
        classes = class_numbers(self._sets[name], self.label)
        label = None if classes is None else self._label_entry()
        if train and classes is None:
            classes = other_classes(self._sets[name], self.label, self.partition)
        return self.source_of(self._examples_of(name), classes, label, train)

    def _examples_of(self, name: str) -> Any:
        """Return the examples of a data set."""
        return self._plain[name] if self.images is None else self.images.split(name)

    def _label_entry(self) -> str | int | None:
        """Return the entry of an example that holds its class; None if ``columns`` leave it out."""
        examples = None if self.images else self._plain["train"]
        if self.columns:
            if self.label not in self.columns:
                return None
            is_by_name = isinstance(examples, TensorDataset) and are_tokens(self._sets, self.columns)
            return 1 if is_by_name else self.columns.index(self.label)
        if isinstance(examples, TensorDataset):  # of texts; chats have labels (T,) of tokens, and no class
            return 1 if examples.tensors[-1].ndim == 1 else None
        return 1 if self.images else self.label

    @override
    def clients(self, train: bool) -> Sequence[str] | None:
        return super().clients(train) if train else self._test_owners

    @cached_property
    def _test_owners(self) -> Sequence[Any] | None:
        """The client of each test example, None for nobody's; a warning, which comes once, counts those of others."""
        test = self._sets.get("test")
        if test is None or self.client is None or self.client not in test.column_names:
            return None
        owners = owners_of(column_of(test, self.client), self._known, self.client, may_be_none=True)
        names = [*map(str, self._known), None]
        return [names[owner] for owner in owners]

    @override
    def domains(self, train: bool) -> Sequence[Any] | None:
        split = self._sets.get("train" if train else "test")
        if self.domain is None or split is None or self.domain not in split.column_names:
            return None
        values: list[Any] = column_of(split, self.domain).tolist()
        return values

    @override
    def column(self, name: str) -> NDArray[Any]:
        values: NDArray[Any] = groups_in(self._sets["train"], name)
        return values


def _read_sets(train: Any, subset: str | None, test: Any) -> Mapping[str, Any]:
    """Read the data sets to train, to test and to validate on, as :class:`HuggingFace` describes."""
    if isinstance(test, str):
        found = read_splits(test, None)
        if list(found) != ["train"]:
            raise ConfigurationError(
                f"expected a file of test examples, got {test} with the splits {', '.join(found)}: name a file, or "
                "leave test out and give train the folder"
            )
        test = found["train"]
    if not isinstance(train, str):
        return choose_splits(train if isinstance(train, Mapping) else {"train": train}, test)
    splits = read_splits(train, subset)
    for file, features in parquet_features(train, subset).items():
        check_class_names(splits["train"].features, features, [*features], f"file {file}")
    return choose_splits(splits, test)
