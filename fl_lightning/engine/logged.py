"""Averages of the metrics that a module logs in several steps, and copies of its torchmetrics objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

Spare = tuple[nn.Module, str, Metric | MetricCollection]  # parent, name in the parent, copy of the metric


def kept(value: Any) -> Any:
    """Return a detached copy of a logged tensor; return other values, such as torchmetrics objects, as they are."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def means(logged: Mapping[str, Sequence[tuple[Any, float]]]) -> dict[str, float]:
    """Average the values of each name over the steps, given pairs of value and weight.

    A torchmetrics object collects all steps itself: its result on this device is taken (other devices train other
    clients), and the object is reset.
    """
    result = {}
    for name, pairs in logged.items():
        metric = pairs[-1][0]
        if isinstance(metric, Metric):
            available, metric.distributed_available_fn = metric.distributed_available_fn, bool  # bool() is False
            try:
                result[name] = float(metric.compute())
            finally:
                metric.distributed_available_fn = available
            metric.reset()
        else:
            values, weights = torch.tensor([[float(x) for x in pair] for pair in pairs], dtype=torch.float64).T
            result[name] = float((values * weights).sum() / weights.sum())
    return result


def spare_metrics(module: nn.Module) -> list[Spare]:
    """Copy a module's torchmetrics objects; in the copies, metrics of a collection do not share states."""
    kinds, memo = (Metric, MetricCollection), {}  # type: ignore[var-annotated]  # deepcopy fills memo
    outer = [part for part in module.modules() if not isinstance(part, kinds)]
    found = [(p, name, deepcopy(m, memo)) for p in outer for name, m in p._modules.items() if isinstance(m, kinds)]
    for part in (part for *_, copy in found for part in copy.modules()):
        if isinstance(part, MetricCollection):
            part._enable_compute_groups = False  # on few examples, different metrics may look the same and be grouped
    return found


@contextmanager
def in_use(spares: Sequence[Spare]) -> Iterator[None]:
    """Replace the original metrics, which may be in the middle of an epoch, by empty copies inside a ``with`` block."""
    originals = [getattr(parent, name) for parent, name, _ in spares]
    try:
        for parent, name, copy in spares:
            copy.reset()
            setattr(parent, name, copy)
        yield
    finally:
        for (parent, name, _), original in zip(spares, originals, strict=True):
            setattr(parent, name, original)
