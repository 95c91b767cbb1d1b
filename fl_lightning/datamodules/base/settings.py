"""The arguments that data modules pass on to their base classes, for editors and type checkers.

Each class holds the keyword arguments that some data modules take as ``**settings``, beside the arguments that they
name themselves. Defaults and meanings are those of the class that names an argument.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from fl_lightning.datamodules.changes.augmentation import Augmentation
from fl_lightning.datamodules.changes.corruption import Corruption
from fl_lightning.datamodules.changes.domain_shift import DomainShift
from fl_lightning.datamodules.cohorts.availability import Availability
from fl_lightning.datamodules.partition import Partition
from fl_lightning.engine.federation.cohorts import ClientSampler
from fl_lightning.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Unpack as Unpack
else:

    class Unpack:  # jsonargparse finds defaults and help of an argument in the base class, unless there is a real one
        """Stands for ``typing.Unpack`` at run time."""

        def __class_getitem__(cls, settings: type) -> Any:
            return Any


def check_taken(cls: type, given: Mapping[str, Any], *not_taken: str) -> None:
    """Refuse arguments that a base class takes and a class itself does not, because it sets them."""
    if wrong := [name for name in not_taken if name in given]:
        raise ConfigurationError(f"{cls.__name__} has no argument {', '.join(wrong)}: leave it out")


class Draws(TypedDict, total=False):
    """Which clients take part, and how their batches are read."""

    participation: int | float
    sampler: ClientSampler | None
    clients_per_batch: int
    num_workers: int
    seed: int
    availability: Availability | None
    client_names: Sequence[str] | None


class Federation(Draws, total=False):
    """All arguments of :class:`FederatedDataModule`."""

    batch_size: int
    drop_last: bool
    collate_fn: Callable[[list[Any]], Any] | None


class Apart(Draws, total=False):
    """Adds what is kept apart from the training set, left out of it, and changed in it."""

    new_clients: float
    corruption: Corruption | None
    long_tail: float
    held_out: float
    proxy_per_class: int
    proxy_long_tail: float
    proxy_balanced: bool
    proxy_batch_size: int
    train_examples: int | None
    test_examples: int | None
    validation_examples: int | None


class Partitioned(Apart, total=False):
    """The arguments of :class:`PartitionedData` that its other constructors do not name."""

    num_clients: int | None
    partition: Partition | Sequence[Any] | None
    labels: Sequence[Any] | None
    drop_last: bool | None


class Tested(Apart, total=False):
    """Adds where the proxy set comes from, and whether a client's last batch is left out."""

    proxy_source: Literal["test", "train"]
    drop_last: bool


class Dealing(Tested, total=False):
    """The arguments of :class:`LabelledData`, but for who the clients are, how they are dealt to, and evaluation."""

    batch_size: int
    collate_fn: Callable[[list[Any]], Any] | None


class Columns(Dealing, total=False):
    """The arguments of :class:`ColumnData`, but for who the clients are and how they are dealt to."""

    channels: Literal[1, 3] | None
    image_size: int | tuple[int, int] | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    normalize: bool | tuple[float, float]
    augment: Sequence[Augmentation] | Augmentation | None
    memory_gib: float


class Boxed(Dealing, total=False):
    """The arguments of :class:`LabelledData`, but for ``eval_batch_size``."""

    num_clients: int
    partition: Partition | None


class Generated(Dealing, total=False):
    """The arguments of :class:`LabelledData`, but for ``num_clients``."""

    partition: Partition | None
    eval_batch_size: int


class Labelled(Generated, total=False):
    """All arguments of :class:`LabelledData`."""

    num_clients: int


class Arrays(Labelled, total=False):
    """The arguments of :class:`ImageData` that arrays take."""

    resize: int | None
    domain_shift: DomainShift | None


class Images(Arrays, total=False):
    """All arguments of :class:`ImageData`."""

    normalize: bool | tuple[float, float]
    augment: Sequence[Augmentation] | Augmentation | None


class Published(Images, total=False):
    """All arguments of :class:`PublishedImages`."""

    root: str | None
    download: bool
    cache: str | None
