"""Torch's settings of arithmetic: matrix products in full float32, the default dtype."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_float32() -> Iterator[None]:
    """Keep TF32 and bfloat16 out of float32 matrix products inside a ``with`` block, whatever the user has set.

    ``torch.set_float32_matmul_precision("high")`` lets a GPU round the factors of float32 products to 10 bits. This
    precision suits the training of clients, but even an identity matrix times the updates would round the updates.
    """
    backends = _backends()
    newer = [backend.fp32_precision for backend in backends]
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # the user has set the newer flags, which torch cannot express as one precision
        older = None
    try:
        if older is not None:  # set the older flag like the newer ones: torch raises an error where they disagree
            torch.set_float32_matmul_precision("highest")
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        for backend, precision in zip(backends, newer, strict=True):
            backend.fp32_precision = precision


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make ``dtype`` the default dtype of new float tensors inside a ``with`` block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _backends() -> list[Any]:
    """Return the holders of torch's flags for matrix products on GPUs and on the CPU; none before torch 2.9."""
    holders = [getattr(backend, "matmul", None) for backend in (torch.backends.cuda, torch.backends.mkldnn)]
    return [holder for holder in holders if hasattr(holder, "fp32_precision")]
