"""LabelledData: labelled examples in memory, partitioned over clients, with a proxy set for the server."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typing_extensions import override

from fl_lightning.datamodules.base.dealt import (
    Dealt,
    check_held_out,
    count_new,
    hold_out,
    in_batches,
    in_order,
    mask_of,
    new_last,
)
from fl_lightning.datamodules.base.domains import batches_by_domain, with_domains
from fl_lightning.datamodules.base.federated import FederatedDataModule
from fl_lightning.datamodules.base.settings import Federation, Unpack
from fl_lightning.datamodules.base.source import NOTHING, Source, of_tensors, to_read
from fl_lightning.datamodules.changes.corruption import Corruption
from fl_lightning.datamodules.changes.long_tail import long_tail, tail_sizes
from fl_lightning.datamodules.changes.proxy_set import Balanced, Shuffled, draw_proxy
from fl_lightning.datamodules.partition import IID, DomainDirichlet, Partition, Stated
from fl_lightning.datamodules.partition.base import check_enough
from fl_lightning.datamodules.partition.steps.parts import Parts, rows_of
from fl_lightning.engine.federation.batches import Collate, Examples
from fl_lightning.errors import ConfigurationError, check_at_least, check_choice
from fl_lightning.later import later
from fl_lightning.seeding import numpy_generator


class LabelledData(FederatedDataModule):
    """Labelled examples, kept in memory. A subclass defines ``num_classes`` and :meth:`load`.

    Batches are ``[inputs (B, ...), targets (B, ...)]``. Validation and test both use the test set, without the examples
    that move to the proxy set: the federated learning papers evaluate on the test set every round and hold nothing out.
    With ``validation_examples``, validation uses examples of the training set instead, to choose settings by.
    ``held_out`` concerns the clients' parts of the training set.

    The training set is changed in this order: the proxy set is taken out (``proxy_source="train"``), then the examples
    of validation, examples beyond ``train_examples`` are left out, the long tail thins out the classes, the partition
    deals the examples to the clients, the new clients are drawn, the labels of the others are corrupted, the inputs are
    changed by :meth:`shifted`, the clients hold examples out. Last, :meth:`measure_inputs` sees the inputs on which
    clients train, and no others.

    Data may come with their clients (writers, hospitals), as :meth:`clients` tells. Then, unless a partition is given,
    these are the clients, in sorted order and with their names, and each client's own test examples are those that
    :meth:`held_out_batches` gives; with ``held_out``, they are training examples, as for all data.

    Args:
        num_clients: N, the number of clients, at least 1; not used where the data come with their clients, nor with
            ``DomainDirichlet``.
        partition: partition that deals the training set to the clients; equal random parts by default, or the clients
            with which the data come.
        corruption: corruption of the clients' training labels; none by default.
        long_tail: ratio ρ >= 1 of the largest class of the training set to the smallest: class c keeps at most
            n_max ρ^(-c / (C - 1)) examples, where n_max is the size of the largest class; 1 leaves the classes as they
            are (FedLAW, Table 7: 5).
        held_out: share of each client's part, in [0, 1), that the client keeps back from training for evaluation; drawn
            with the run's seed and rounded to whole examples; at least one example stays in training.
        proxy_per_class: number of examples of each class that move to the server's proxy set; 0 for no proxy set.
        proxy_source: set that the proxy examples are taken from, "test" or "train".
        proxy_long_tail: ratio ρ >= 1 of the largest class of the proxy set to the smallest, as for ``long_tail``
            (FedLAW, Table 6: 10); class 0 has ``proxy_per_class`` examples.
        proxy_balanced: whether to draw the proxy set's batches with replacement, every class with the same probability.
        proxy_batch_size: examples per batch of the proxy set.
        eval_batch_size: examples per batch of the test set.
        train_examples: number of training examples to use, at least 1, drawn with the run's seed among those that are
            not in the proxy set; None for all.
        test_examples: number of test examples to use, as ``train_examples``.
        validation_examples: number of training examples on which validation evaluates in place of the test set, drawn
            with the run's seed; no client trains on them. None validates on the test set.
        new_clients: share of the clients, in [0, 1), that never train, drawn with the run's seed and rounded to whole
            clients, at least one: ``PersonalEvaluation`` measures how the models serve these. Their numbers follow
            those of the others, and ``num_clients``, ``participation`` and sizes are of the others alone.
        federation: ``batch_size``, ``participation``, ``seed`` and the other arguments of
            :class:`FederatedDataModule`; ``client_names`` are those of new clients, too.

    Raises:
        ConfigurationError: an argument is outside its range; on loading, there are too few examples for the proxy set
            or the partition is impossible.
    """

    num_classes: int
    eval_collate: Collate | None = None
    """Function that makes a batch to evaluate on of a list of examples; None for PyTorch's own."""

    @later(validation_examples=None, new_clients=0.0)
    def __init__(
        self,
        num_clients: int = 20,
        partition: Partition | None = None,
        corruption: Corruption | None = None,
        long_tail: float = 1.0,
        held_out: float = 0.0,
        proxy_per_class: int = 0,
        proxy_source: Literal["test", "train"] = "test",
        proxy_long_tail: float = 1.0,
        proxy_balanced: bool = False,
        proxy_batch_size: int = 128,
        eval_batch_size: int = 1000,
        train_examples: int | None = None,
        test_examples: int | None = None,
        validation_examples: int | None = None,
        new_clients: float = 0.0,
        **federation: Unpack[Federation],
    ) -> None:
        if not 0 <= new_clients < 1:  # also refuses nan
            raise ConfigurationError(f"new_clients must be in [0, 1), the share of the clients, got {new_clients}")
        names, seed = federation.get("client_names"), federation.get("seed", 0)
        if names is not None:
            federation["client_names"] = [names[client] for client in new_last(len(names), new_clients, seed)]
        super().__init__(**federation)
        self.new_clients = new_clients
        check_at_least(1, num_clients=num_clients, proxy_batch_size=proxy_batch_size, eval_batch_size=eval_batch_size)
        check_at_least(0, proxy_per_class=proxy_per_class)
        check_held_out(held_out)
        if not (1 <= long_tail < math.inf and 1 <= proxy_long_tail < math.inf):  # also refuses nan
            raise ConfigurationError(
                "long_tail and proxy_long_tail must be at least 1, the ratio of the largest class to the smallest, got "
                f"{long_tail} and {proxy_long_tail}"
            )
        check_choice("proxy_source", proxy_source, "test", "train")
        limits = {
            "train_examples": train_examples,
            "test_examples": test_examples,
            "validation_examples": validation_examples,
        }
        check_at_least(1, **{name: number for name, number in limits.items() if number is not None})
        self._num_clients = num_clients
        self._is_natural = partition is None
        self.partition = partition or IID()
        self.corruption = corruption
        self.long_tail = long_tail
        self.held_out = held_out
        self.proxy_per_class = proxy_per_class
        self.proxy_source = proxy_source
        self.proxy_long_tail = proxy_long_tail
        self.proxy_balanced = proxy_balanced
        self.proxy_batch_size = proxy_batch_size
        self.eval_batch_size = eval_batch_size
        self.train_examples = train_examples
        self.test_examples = test_examples
        self.validation_examples = validation_examples

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Load the training or the test set: inputs (n, ...) and targets (n, ...); see :meth:`labels`."""
        raise ConfigurationError(f"{type(self).__name__} must define load(train)")

    def labels(self, targets: Tensor) -> Tensor:
        """Return the (n,) int64 class of each example, below ``num_classes``; by default the targets themselves."""
        return targets

    def clients(self, train: bool) -> Sequence[str] | None:
        """Return the (n,) name of the client of each training or test example; None if the data name no clients.

        By default, the clients of the training set are the values of the partition's column, if it names one.
        """
        column = self.partition.column
        return list(map(str, self.column(column).tolist())) if train and column is not None else None

    def client_order(self) -> Sequence[str] | None:
        """Return the names of the clients with which the data come, by number; in sorted order by default.

        Numbers in the partition's column are in the order of numbers: 2 before 10.
        """
        if self.partition.column is not None:
            return list(map(str, np.unique(self.column(self.partition.column)).tolist()))
        names = self.clients(True)
        return None if names is None else sorted(set(names))

    def shifted(self, inputs: Tensor, *parts: Parts) -> Tensor:
        """Return the inputs (n, ...) as the clients that hold ``parts`` see them; by default the inputs themselves."""
        return inputs

    def domains(self, train: bool) -> Sequence[str] | None:
        """Return the (n,) domain of each training or test example (photo, sketch); None for data without domains."""
        return None

    @override
    def domain_batches(self) -> Mapping[str, Iterable[Any]]:
        dealt = self._dealt
        if dealt.domains is None:
            return {}
        return batches_by_domain(dealt.domains, dealt.evaluation, self.eval_batch_size, self.eval_collate)

    def groups(self) -> Tensor | None:
        """Return the (n,) number of each training example's group (writer, speaker, device); None if unknown.

        By default, the groups are the clients with which the data come.
        """
        names = self.clients(True)
        return None if names is None else torch.from_numpy(np.unique(names, return_inverse=True)[1])

    @cached_property
    def num_clients(self) -> int:  # type: ignore[override]  # known on loading only where the data name their clients
        """N, the number of clients."""
        return self._num_dealt - self.num_new

    @cached_property
    @override
    def num_new(self) -> int:  # type: ignore[override]  # as above
        """Number of clients that never train."""
        return count_new(self._num_dealt, self.new_clients)

    @property
    def _num_dealt(self) -> int:
        return self._num_clients if self._names is None else len(self._names)

    @cached_property
    def client_names(self) -> Sequence[str] | None:  # type: ignore[override]
        """The names of the clients; None for numbers alone."""
        return self._names

    @cached_property
    def _names(self) -> Sequence[str] | None:
        """The clients with which the data come, in sorted order, or that divide domains; None for numbers alone.

        Those that never train are the last.
        """
        names = self._known_names()
        return names and [names[client] for client in new_last(len(names), self.new_clients, self.seed)]

    def _known_names(self) -> Sequence[str] | None:
        if isinstance(self.partition, DomainDirichlet):
            return self.partition.names(self.domains(True) or ())
        if isinstance(self.partition, Stated):
            return self.partition.names
        return self.client_order() if self._is_natural else None

    def held_out_batches(self, client: int) -> Iterator[Any]:
        """Return the client's own examples for its evaluation, in batches of ``eval_batch_size``, in order.

        They are the examples that the client keeps back from training, or the test examples that are the client's.
        """
        return self._dealt.kept_batches(client, self.eval_batch_size, self.eval_collate)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the validation examples, in order; without any, the test set without proxy examples.

        The papers evaluate on the test set every round.
        """
        examples = self._dealt.evaluation if self._dealt.validation is None else self._dealt.validation
        return in_order(examples, self.eval_batch_size, self.eval_collate)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the test set without proxy examples, in order."""
        return in_order(self._dealt.evaluation, self.eval_batch_size, self.eval_collate)

    def leave_tests_out(self) -> None:
        """Leave evaluation to the client module's own loaders, for data without a test set."""
        self.test_dataloader = super().test_dataloader  # type: ignore[method-assign]
        if self.validation_examples is None:
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]

    def proxy_dataloader(self) -> DataLoader[Any] | None:
        """Return the proxy set in an order drawn from torch's global generator; None if ``proxy_per_class`` is 0."""
        if self._dealt.proxy is None:
            return None
        examples, classes = self._dealt.proxy
        batches = (Balanced if self.proxy_balanced else Shuffled)(classes, self.proxy_batch_size)
        return in_batches(examples, batches, self.eval_collate)

    def measure_inputs(self, inputs: Tensor, trained: Tensor) -> None:
        """Measure what the data module has to know of its inputs; nothing by default.

        Args:
            inputs: inputs (n, ...), of which some may be held out.
            trained: rows (m,) of the inputs on which clients train, in ascending order.
        """

    def find_source(self, train: bool) -> Source | None:
        """Return the training or the test set as it comes; None for data without a test set.

        By default, these are the inputs and targets that :meth:`load` reads. A subclass that can tell the targets
        before it reads the inputs returns :meth:`unread` instead.
        """
        inputs, targets = self._checked(*self.load(train))
        return of_tensors(inputs, targets, self.labels(targets))

    def unread(self, read: Callable[[Tensor], Tensor], targets: Tensor) -> Source:
        """Return a source of targets (n, ...) and of inputs that are read once it is known which of them a run uses.

        Args:
            read: function that reads the inputs (m, ...) of the examples in rows (m,), which ascend; m may be 0.
            targets: the targets.
        """
        self._check_labels(len(targets), targets)

        def checked(rows: Tensor) -> Tensor:
            inputs = read(rows)
            return self._checked(inputs, targets[rows])[0] if len(rows) else inputs

        return to_read(checked, targets, self.labels(targets))

    def setup(self, stage: str) -> None:
        """Load and deal the data on the first call; later calls do nothing."""
        self._dealt  # noqa: B018  # loads

    @override
    def client_dataset(self, client: int) -> Dataset[Any]:
        return self._dealt.dataset(client)

    @override
    def client_num_samples(self, client: int) -> int:
        return int(self._dealt.parts.sizes[client])

    @cached_property
    @override
    def sizes(self) -> Tensor:
        is_own = type(self).client_num_samples is not LabelledData.client_num_samples
        return super().sizes if is_own else self._dealt.trained.sizes

    @override
    def class_counts(self) -> Tensor | None:
        """Return the (N, C) numbers of training examples per client and class, or None for data without classes."""
        counts = self._dealt.class_counts()
        return None if counts is None else counts[: self.num_clients]

    @override
    def new_class_counts(self) -> Tensor | None:
        counts = self._dealt.class_counts()
        return None if counts is None else counts[self.num_clients :]

    def column(self, name: str) -> NDArray[Any]:
        """Return the (n,) values of a column of the training set, by which a partition deals; no column by default."""
        raise ConfigurationError(
            f"{type(self.partition).__name__} keeps groups together, but {type(self).__name__} knows no column {name}: "
            "leave column out, or define groups()"
        )

    @cached_property
    def _dealt(self) -> Dealt:
        return self._deal()

    def _deal(self) -> Dealt:
        """Deal the training set: one line a step, in the order that the class's docstring states."""
        sets = {"train": self._find_set(True), "test": self._find_set(False)}
        train, test = sets["train"], sets["test"]
        free = {name: torch.ones(source.count, dtype=torch.bool) for name, source in sets.items()}
        proxy = self._draw_proxy(sets[self.proxy_source])
        free[self.proxy_source] &= ~proxy
        validation = self._draw_examples("validation", free["train"], self.validation_examples or 0)
        free["train"] &= ~validation
        free["train"] = self._draw_examples("train", free["train"], self.train_examples)
        free["test"] = self._draw_examples("test", free["test"], self.test_examples)
        free["train"] = self._thin_out(train, free["train"])
        parts = self._split(train, free["train"])
        targets, changed = self._corrupt(train, parts)
        parts, kept = hold_out(parts, self.held_out, self.seed)
        own_tests = self._own_tests(free["test"])
        used = mask_of(train.count, parts.rows, kept.rows)
        if train.is_kept_whole:
            used[:] = True  # rows keep their numbers
        parts, kept = parts.renumbered(used), kept.renumbered(used)
        examples = self._change(train.among(used, targets), changed[used], parts, kept)
        evaluation = self._change(test.among(free["test"]), None, *([] if own_tests is None else [own_tests]))
        trained = parts.first(self.num_clients)
        if isinstance(examples, TensorDataset):
            self.measure_inputs(examples.tensors[0], mask_of(len(examples), trained.rows).nonzero().flatten())
        classes = train.classes if targets is None else self.labels(targets)
        domains = self.domains(False)
        return Dealt(
            examples=examples,
            parts=parts,
            classes=None if classes is None else classes[used],
            num_classes=self._count_classes(classes),
            names=self._names,
            num_new=self.num_new,
            kept=(examples, kept) if own_tests is None else (evaluation, own_tests),
            evaluation=evaluation,
            domains=None if domains is None else np.asarray(domains)[free["test"].numpy()],
            validation=train.among(validation) if self.validation_examples else None,
            proxy=self._proxy_of(sets[self.proxy_source], proxy),
        )

    def _find_set(self, train: bool) -> Source:
        """Return the training or the test set, read already unless only a part of it is used."""
        is_part = self.long_tail > 1 or self.train_examples is not None if train else self.test_examples is not None
        source = self.find_source(train)
        if source is None:
            return NOTHING
        return source if is_part else source.read_whole()

    def _draw_proxy(self, source: Source) -> Tensor:
        """Draw the (n,) bool mask of the examples that become the proxy set."""
        if not self.proxy_per_class:
            return torch.zeros(source.count, dtype=torch.bool)
        if not source.count:
            raise ConfigurationError(
                f"proxy_source {self.proxy_source} needs a test set, but {type(self).__name__} has none: set "
                "proxy_source to train"
            )
        classes = self._needed(source, "proxy_per_class")
        sizes = tail_sizes(self.proxy_per_class, self._count_classes(classes), self.proxy_long_tail).tolist()
        return draw_proxy(classes, sizes, numpy_generator(self.seed, "proxy"))

    def _proxy_of(self, source: Source, mask: Tensor) -> tuple[Examples, Tensor] | None:
        """Return the proxy set, and the (n,) class of each of its examples; None if there is no proxy set."""
        if not self.proxy_per_class:
            return None
        return source.among(mask), self._needed(source, "proxy_per_class")[mask]

    def _draw_examples(self, name: str, free: Tensor, number: int | None) -> Tensor:
        """Draw the (n,) bool mask of the examples of a set to use, among those that are free."""
        rows = free.nonzero().flatten()
        if number is None or number == len(rows):
            return free
        if number > len(rows):
            raise ConfigurationError(
                f"expected {name}_examples of at most {len(rows)}, the examples that {type(self).__name__} has, got "
                f"{number}: lower {name}_examples, or leave it out for all"
            )
        generator = numpy_generator(self.seed, f"{name} examples")
        return mask_of(len(free), rows[torch.from_numpy(generator.choice(len(rows), number, replace=False))])

    def _thin_out(self, train: Source, free: Tensor) -> Tensor:
        """Return the (n,) bool mask of the free training examples that the long tail keeps."""
        if self.long_tail == 1:
            return free
        rows = free.nonzero().flatten()
        classes = self._needed(train, "long_tail")[rows]
        return mask_of(len(free), rows[long_tail(classes, self.long_tail, numpy_generator(self.seed, "long tail"))])

    def _split(self, train: Source, free: Tensor) -> Parts:
        """Deal the free training examples to the clients; return each client's rows of the training set."""
        given = self._given_parts(train.count)
        if given is not None:
            return given.where(free)
        rows = free.nonzero().flatten()
        by = self._dealt_by(train)
        check_enough(self._num_dealt, len(rows))
        parts = Parts.of(self.partition.split(by[rows], self._num_dealt, numpy_generator(self.seed, "partition")))
        if self.num_new:
            parts = parts.in_order(new_last(len(parts), self.new_clients, self.seed))
        return parts.among(rows)

    def _given_parts(self, count: int) -> Parts | None:
        """Return the rows that the data, or a stated partition, say are each client's; None if they are to be dealt."""
        owners = self.clients(True) if self._is_natural else None
        if owners is not None:
            return self._parts_by_name(owners)
        if not isinstance(self.partition, Stated):
            return None
        draws = numpy_generator(self.seed, "partition")
        parts = Parts.of(self.partition.split(torch.zeros(count), self._num_dealt, draws))
        return parts.in_order(new_last(len(parts), self.new_clients, self.seed)) if self.num_new else parts

    def _parts_by_name(self, owners: Sequence[str]) -> Parts:
        """Return each named client's rows, given the (n,) name of each example's client."""
        names = self._names or []
        numbers = {name: number for number, name in enumerate(names)}
        own = torch.tensor([numbers.get(name, len(names)) for name in owners], dtype=torch.int64)
        known = (own < len(names)).nonzero().flatten()  # test examples of a client that does not train are nobody's
        return Parts.of(rows_of(own[known].numpy(), len(names))).among(known)

    def _corrupt(self, train: Source, parts: Parts) -> tuple[Tensor | None, Tensor]:
        """Return the (n, ...) targets to train on, None for the examples' own, and the mask (n,) of changed inputs."""
        changed = torch.zeros(train.count, dtype=torch.bool)
        if self.corruption is None:
            return None, changed
        training = parts.first(self.num_clients)
        own: Any = train.targets
        self._needed(train, "corruption")
        draws = [numpy_generator(self.seed, "corruption") for _ in range(2)]
        targets = self.corruption.corrupt(own, training, self._count_classes(own), draws[0])
        changed[self.corruption.rows_to_change(training, draws[1])] = True
        return targets, changed

    def _own_tests(self, tested: Tensor) -> Parts | None:
        """Return each client's rows among those tested; None if clients hold out, or have no such rows."""
        owners = self.clients(False) if self._is_natural and not self.held_out else None
        if owners is None:
            return None
        return self._parts_by_name(owners).where(tested).renumbered(tested)

    def _change(self, examples: Examples, changed: Tensor | None, *parts: Parts) -> Examples:
        """Return the examples as the clients that hold ``parts`` see them, with changed inputs of a mask (n,)."""
        stamps = self.corruption if changed is not None and changed.any() else None
        if not isinstance(examples, TensorDataset):
            if stamps is None:
                return examples
            raise ConfigurationError(
                f"expected inputs in memory for {type(stamps).__name__}, got examples that are read one by one: choose "
                "another corruption"
            )
        inputs, *targets = examples.tensors
        result = self.shifted(inputs, *parts)
        if stamps is not None and changed is not None:
            result = stamps.corrupt_inputs(result, changed.nonzero().flatten())
        return examples if result is inputs else TensorDataset(result, *targets)

    def _count_classes(self, classes: Tensor | None) -> int:
        """Return C, the number of classes; 0 for data without classes."""
        if classes is None or not classes.numel():
            return 0
        known: int | None = getattr(self, "num_classes", None)
        return known or 1 + int(classes.max())

    def _needed(self, source: Source, by: str) -> Tensor:
        """Return the (n,) class of each example; refuse data without classes."""
        if source.classes is None:
            raise ConfigurationError(f"{by} goes by classes, but {type(self).__name__} has none: leave {by} out")
        return source.classes

    def _dealt_by(self, train: Source) -> Tensor:
        """Return the numbers (n,) by which the partition deals the training set."""
        name, kind = type(self.partition).__name__, type(self).__name__
        if self.partition.by == "nothing":
            return torch.zeros(train.count, dtype=torch.int64)
        if self.partition.by == "groups":
            groups = self._groups()
            if groups is None:
                raise ConfigurationError(
                    f"{name} keeps groups together, but {kind} knows no groups: choose another partition, or define "
                    "groups()"
                )
            return groups
        if self.partition.by == "domains":
            column = self.partition.column
            domains = self.domains(True) if column is None else self.column(column)
            if domains is None:
                raise ConfigurationError(
                    f"{name} divides domains, but {kind} knows no domains: choose another partition, set domain where "
                    "there is such an option, or define domains(train)"
                )
            return with_domains(domains, self._needed(train, name))
        return self._needed(train, name)

    def _groups(self) -> Tensor | None:
        column = self.partition.column
        if column is None:
            return self.groups()
        return torch.from_numpy(np.unique(self.column(column), return_inverse=True)[1])

    def _checked(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse labels that are not int64 from 0 to ``num_classes`` - 1, one per example; return both tensors."""
        self._check_labels(len(inputs), targets)
        return inputs, targets

    def _check_labels(self, count: int, targets: Tensor) -> None:
        labels = self.labels(targets)
        if labels.dtype != torch.int64 or labels.shape != (count,) or not count:
            raise ConfigurationError(
                f"expected {type(self).__name__}.load to give int64 labels ({count},), one per example, got "
                f"{labels.dtype} {tuple(labels.shape)}: convert the labels"
            )
        if labels.min() < 0 or labels.max() >= self.num_classes:
            raise ConfigurationError(
                f"expected {type(self).__name__} to have labels from 0 to {self.num_classes - 1}, got "
                f"{int(labels.min())} to {int(labels.max())}: set num_classes or renumber the labels"
            )
