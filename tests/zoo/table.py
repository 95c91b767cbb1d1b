"""The table: every module of the zoo, on the data that it names, and what is special about each row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from lib.covering import covering
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric

from zoo import batches, buffers, data, logs, manual, networks, optimizers, state
from zoo.data import SIZES, Collate, Make, ZooData, points


@dataclass(frozen=True)
class Row:
    """A module and its data.

    Attributes:
        module: the LightningModule's class, which takes no arguments.
        data: makes a client's examples.
        collate: makes a batch of a list of examples; None for what a DataLoader makes.
        sizes: n_k of each client.
        wrap: what is made of the module before it trains, ``torch.compile`` for one.
        name: the row's name, the class's by default.
    """

    module: type[LightningModule]
    data: Make = points
    collate: Collate | None = None
    sizes: Sequence[int] = SIZES
    wrap: Callable[[Any], Any] = lambda module: module
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.module.__name__

    def datamodule(self, sizes: Sequence[int] | None = None, **settings: Any) -> ZooData:
        """Make the data of the row's clients, or of clients with other numbers of examples."""
        return ZooData(self.data, self.collate, sizes or self.sizes, **settings)


def _of(room: ModuleType) -> list[Row]:
    """A row of each module in a file of the zoo; its data are those that ``on`` names."""
    kinds = [kind for kind in vars(room).values() if isinstance(kind, type) and kind.__module__ == room.__name__]
    return [Row(kind, **vars(kind).get("row", {})) for kind in kinds if issubclass(kind, LightningModule)]


ROWS = [row for room in (networks, batches, state, buffers, optimizers, manual, logs) for row in _of(room)]
ROWS += [
    Row(networks.Classifier, data.Augmented, name="AugmentedExamples"),
    Row(networks.Classifier, sizes=data.UNEVEN, name="LastBatchOfOne"),
    Row(networks.NormDropout, wrap=lambda module: torch.compile(module, backend="eager"), name="CompiledModule"),
]


def traits(row: Row) -> set[str]:
    """Name the row's file and kind of data, what its module overrides and calls, and the forms of its state."""
    module, examples = row.module(), row.datamodule().client_dataset(0)
    own = [vars(kind) for kind in row.module.__mro__ if kind.__module__.startswith("zoo.")]
    codes = [value.__code__ for names in own for value in names.values() if isinstance(value, FunctionType)]
    called = {name for code in codes for name in code.co_names if not hasattr(Tensor, name)}
    names = {name for name in called.union(*own) if name[0] != "_" and hasattr(LightningModule, name)}
    buffers = {form(buffer) for part in module.modules() for buffer in part._buffers.values()}
    others = {
        "frozen": not all(parameter.requires_grad for parameter in module.parameters()),
        "draws": any(isinstance(part, nn.Dropout) for part in module.modules()),
        "torchmetrics": any(isinstance(part, Metric) for part in module.modules()),
        "not saved": any(part._non_persistent_buffers_set for part in module.modules()),
        "collates": row.collate is not None,
    }
    found = {name for name, there in others.items() if there}
    return found | names | buffers | {row.module.__module__, type(examples).__name__}


def form(buffer: Tensor | None) -> str:
    """Name what is special about a buffer."""
    if buffer is None:
        return "no buffer yet"
    if buffer.layout is not torch.strided:
        return "sparse buffer"
    return "empty buffer" if not buffer.numel() else "shared entries" if 0 in buffer.stride() else str(buffer.dtype)


COVER = covering(ROWS, traits)  # every pair of traits that occurs in a row is in one of these
COVER_ONCE = covering(ROWS, traits, together=1)  # every trait is in one of these
