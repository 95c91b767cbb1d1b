"""Domains (photo, sketch), as a column of the data: for partitions, for evaluation, and left out of training."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fl_lightning.datamodules.base.dealt import batches_of
from fl_lightning.engine.federation.batches import Collate, Examples
from fl_lightning.errors import ConfigurationError


def with_domains(domains: ArrayLike, labels: Tensor) -> Tensor:
    """Pair the number (n,) of each example's domain, in sorted order, with its class (n,): int64 (n, 2)."""
    numbers = np.unique(np.asarray(domains), return_inverse=True)[1]
    return torch.stack([torch.from_numpy(numbers), labels], dim=1)


def batches_by_domain(
    domains: ArrayLike, examples: Examples, batch_size: int, collate: Collate | None = None
) -> Mapping[str, Iterable[Any]]:
    """Return the examples of each domain, in batches, in order, by the domain's name, given the domains (n,)."""
    column = np.asarray(domains)
    batches: dict[str, Iterable[Any]] = {}
    for domain in np.unique(column).tolist():
        rows = torch.from_numpy(np.flatnonzero(column == domain))
        batches[str(domain)] = batches_of(examples, rows, batch_size, collate)
    return batches


def left_out_names(domain: str | None, left_out: Sequence[Any]) -> list[str]:
    """Return the domains to leave out as texts; refuse one name alone, and data whose domains are not known."""
    if isinstance(left_out, str):
        raise ConfigurationError(f"leave_out must be a list of domains such as [{left_out}], got {left_out!r}")
    if left_out and domain is None:
        raise ConfigurationError("leave_out names domains: set domain, the column of domains, too")
    return [*map(str, left_out)]


def check_left_out(left_out: Sequence[str], names: Sequence[str]) -> None:
    """Refuse to leave out domains that there are not, or all of them."""
    unknown = [name for name in left_out if name not in names]
    if unknown or (left_out and not set(names) - set(left_out)):
        raise ConfigurationError(
            f"leave_out must name some of {', '.join(names)}, and not all, got {', '.join(left_out)}: correct it"
        )
