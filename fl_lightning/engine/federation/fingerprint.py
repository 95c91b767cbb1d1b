"""Fingerprint of data: tells whether two runs saw the same examples."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.engine.federation.data import FederatedDataModule
from fl_lightning.seeding import isolated, seed_globals

SAMPLED = 16  # largest number of clients whose examples (two of each client) are in a fingerprint
CPU = torch.device("cpu")


def data_fingerprint(data: FederatedDataModule) -> str:
    """Hash every client's size and class counts, and some examples, to 16 hexadecimal digits.

    The examples are the first and the last one of up to 16 clients. They are read with fixed seeds, as in local
    training, so augmentation makes no difference. A client whose examples cannot be read, or differ when they are read
    twice, is left out.

    Args:
        data: a data module that is set up.
    """
    digest = hashlib.sha256()
    for known in (data.sizes, data.class_counts()):
        if known is not None:
            digest.update(_content(known))
    holders = data.sizes.nonzero().flatten().tolist()
    for client in holders[:: max(1, -(-len(holders) // SAMPLED))]:
        digest.update(_examples(data, client))
    return digest.hexdigest()[:16]


def _examples(data: FederatedDataModule, client: int) -> bytes:
    def read() -> bytes:
        with isolated(CPU):
            seed_globals(0, CPU)
            dataset = data.client_dataset(client)
            return b"".join(_content(dataset[index]) for index in (0, len(dataset) - 1))  # type: ignore[arg-type]  # map-style

    try:
        return first if (first := read()) == read() else b""
    except Exception:  # training reports the error more clearly
        return b""


def _content(value: Any) -> bytes:
    """Convert an example to bytes: tensors, arrays, images, numbers and texts, also in lists, tuples and dicts."""
    if isinstance(value, Mapping):
        value = [each for pair in value.items() for each in pair]
    if isinstance(value, list | tuple):
        return b"".join(map(_content, value))
    array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"{type(value).__name__} has no bytes of its own")  # only addresses, which differ each time
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()
