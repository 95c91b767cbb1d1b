"""Through what an example's gradient may depend on other examples, and which examples come twice in a federation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule
from fl_lightning.datamodules.tables.columns import LazyImages, Tuples
from fl_lightning.engine.federation.clients import TRANSFER_HOOKS
from fl_lightning.engine.training.local_training import HOOKS

# The packages whose functions, and whose layers, exactly these, treat each example of a batch alone. BatchNorm does
# not; a layer that writes other statistics of a batch to its buffers fails, since torch.func computes the gradients.
CODE = frozenset({"fl_lightning", "lightning", "torch"})
LAYERS = CODE | {"torchmetrics", "timm", "transformers", "peft"}
DATA_SETS = (TensorDataset, LazyImages)  # exactly these: an example is what lies at its index, and nothing else
CHANGES = ("augment", "corruption", "domain_shift")  # settings of data modules, of whose classes users may derive


class Place(NamedTuple):
    """Where some examples of a client lie.

    Attributes:
        client: the client.
        holder: returns what holds the examples; None when that is gone, with which nothing can be compared.
        space: the device or the data set in which ``numbers`` count.
        numbers: (m,) int64 address or index of each example; an example that comes twice has the same number.
    """

    client: int
    holder: Callable[[], Any]
    space: object
    numbers: Tensor


def check_by_example(orchestrator: Any, vouched: Collection[str]) -> None:
    """Refuse a run in which an example's gradient may depend on others, or in which an example comes twice.

    Args:
        orchestrator: the orchestrator, whose data module is set up.
        vouched: names of the classes and functions that treat each example alone, as the user says.

    Raises:
        ConfigurationError: a class or function is neither the package's own nor vouched for; an example comes twice.
    """
    kinds: dict[type, str] = {}
    places: list[Place] = []
    data = orchestrator.data
    for client in data.sizes.nonzero().flatten().tolist():
        examples = data.client_dataset(client)
        own: list[Place] = []
        for dataset, rows in parts_of(examples, torch.arange(len(examples))):
            kinds[type(dataset)] = "data set"
            own.append(_place(client, dataset, rows))
        _refuse_twice(data, own)
        places += own
    found = {_name(thing): role for thing, role in _foreign(orchestrator)}
    found |= {_name(kind): role for kind, role in kinds.items() if kind not in DATA_SETS}
    strange = {name: role for name, role in found.items() if name not in vouched}
    if strange:
        told = ", ".join(f"{name} ({role})" for name, role in strange.items())
        raise ConfigurationError(
            f"ExampleDP: an example's gradient may depend on other examples through {told}, so ε would be false: leave "
            f"these out or, if each example is treated alone there, set by_example: [{', '.join(strange)}]"
        )
    _refuse_twice(data, [place for place in places if place.holder() is not None])


def parts_of(dataset: Any, rows: Tensor) -> Iterator[tuple[Any, Tensor]]:
    """Yield the data sets that rows (m,) of one lie in, below ``Subset`` and ``ConcatDataset``, with the rows there.

    >>> import torch
    >>> from torch.utils.data import ConcatDataset, Subset
    >>> from fl_lightning.callbacks.privacy.by_example import parts_of
    >>> both = ConcatDataset(["abc", Subset("def", [2, 1])])
    >>> [(part, rows.tolist()) for part, rows in parts_of(both, torch.tensor([0, 4, -2]))]
    [('abc', [0]), ('def', [1, 2])]
    """
    rows = torch.where(rows < 0, rows + len(dataset), rows)
    if type(dataset) is Subset:
        yield from parts_of(dataset.dataset, torch.as_tensor(dataset.indices)[rows])
    elif type(dataset) is ConcatDataset:
        ends = torch.tensor(dataset.cumulative_sizes)
        numbers = torch.bucketize(rows, ends, right=True)
        for number, part in enumerate(dataset.datasets):
            own = rows[numbers == number]
            if len(own):
                yield from parts_of(part, own - int(ends[number]) + len(part))  # type: ignore[arg-type]  # has a length
    elif type(dataset) is Tuples:  # of columns of a Hugging Face data set, which may have a transform of the user's
        yield from parts_of(dataset.dataset, rows)
    else:
        yield dataset, rows


def _place(client: int, dataset: Any, rows: Tensor) -> Place:
    """Return where rows (m,) of a data set lie: tensors by address, so that two data sets may share one."""
    if type(dataset) is TensorDataset:
        tensor = dataset.tensors[0]
        size = tensor.stride(0) * tensor.element_size()
        if size and tensor.numel():
            held = tensor if tensor._base is None else tensor._base
            return Place(client, weakref.ref(held), tensor.device, tensor.data_ptr() + size * rows)
    try:
        holder: Callable[[], Any] = weakref.ref(dataset)
    except TypeError:  # such as a list
        holder = partial(_itself, dataset)
    return Place(client, holder, id(dataset), rows)


def _itself(dataset: Any) -> Any:
    return dataset


def _refuse_twice(data: FederatedDataModule, places: Sequence[Place]) -> None:
    """Refuse an example that lies in two places."""
    by_space: dict[object, list[Place]] = {}
    for place in places:
        by_space.setdefault(place.space, []).append(place)
    for shared in by_space.values():
        numbers, order = torch.cat([place.numbers for place in shared]).sort()
        twice = (numbers[1:] == numbers[:-1]).nonzero().flatten()
        if len(twice):
            at = order[twice[0] : twice[0] + 2]
            clients = torch.cat([torch.full_like(place.numbers, place.client) for place in shared])[at]
            first, second = sorted(clients.tolist())
            whose = f"client {data.client_label(first)} has one several times"
            if first != second:
                whose = f"clients {data.client_label(first)} and {data.client_label(second)} share one"
            raise ConfigurationError(
                f"ExampleDP counts an example once an epoch, but {whose}, so ε would be false: give each example once, "
                "to one client"
            )


def _foreign(orchestrator: Any) -> Iterator[tuple[Any, str]]:
    """Yield the classes and functions around a batch that are not the package's own, each with what it is."""
    client, data = orchestrator.client, orchestrator.data
    yield from _foreign_layers(client, "module")
    around: list[tuple[Any, str]] = [(type(orchestrator), "orchestrator"), (type(data), "data module")]
    if data.collate_fn is not None:
        around.append((data.collate_fn, "collate_fn"))
    around += [(getattr(client, hook), "training hook") for hook in HOOKS]
    for owner in (client, data):
        around += [(getattr(owner, hook), "transfer hook") for hook in TRANSFER_HOOKS]
    for owner in (data, *vars(data).values()):  # a data module may have another one, whose hooks it uses
        if isinstance(owner, LightningDataModule):
            for name in CHANGES:
                around += [(type(change), name) for change in _several(getattr(owner, name, None))]
    for thing, role in around:
        if not _is_own(thing, CODE):
            yield thing, role


def _foreign_layers(module: nn.Module, role: str) -> Iterator[tuple[Any, str]]:
    """Yield the outermost modules of a module, itself included, whose class is foreign, and foreign hooks of layers."""
    if not _is_own(type(module), LAYERS):
        yield type(module), role
        return
    forward = (module._forward_pre_hooks, module._forward_hooks)
    for hooks in (*forward, module._backward_pre_hooks, module._backward_hooks):
        for hook in hooks.values():
            if not _is_own(hook, LAYERS):
                yield hook, "hook of a layer"
    for child in module.children():
        yield from _foreign_layers(child, "network")


def _several(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    return [] if value is None else [value]


def _is_own(thing: Any, packages: Collection[str]) -> bool:
    """Tell whether a class, a function or the class of a callable is defined in one of some packages.

    Of a decorated function, all functions count.
    """
    code = getattr(thing, "__func__", thing)
    if isinstance(code, partial):
        return _is_own(code.func, packages)
    if not isinstance(code, FunctionType):
        kind = code if isinstance(code, type) else type(code)
        return kind.__module__.partition(".")[0] in packages
    is_own = str(code.__globals__.get("__name__")).partition(".")[0] in packages
    inner = getattr(code, "__wrapped__", None)
    return is_own and (inner is None or _is_own(inner, packages))


def _name(thing: Any) -> str:
    """Return the name of a class, of a function, or of the class of a callable, without the function around it."""
    named = thing.func if isinstance(thing, partial) else thing
    name: str = getattr(named, "__qualname__", type(named).__qualname__)
    return name.rpartition("<locals>.")[2]
