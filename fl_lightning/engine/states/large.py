"""Large frozen parameters: a copy in a file in place of memory, and a checksum that tells whether one has changed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from fl_lightning.errors import ConfigurationError

LARGE = 1 << 22  # bytes of the smallest frozen parameter that is copied into a file
PART = 1 << 18  # words that are summed at once
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes
GROUP = 64  # parts that a GPU sums at once; a CPU sums one by one, in its caches
WORD = 8  # bytes of a word, unless a tensor has a rest; then words are entries


def is_large(tensor: Tensor) -> bool:
    """Tell whether a frozen parameter is copied into a file."""
    plain = tensor.layout is torch.strided and tensor.is_contiguous() and tensor.element_size() in WORDS
    return isinstance(tensor, nn.Parameter) and plain and tensor.nbytes >= LARGE


def on_file(tensor: Tensor) -> Tensor:
    """Copy a tensor into a file without a name, and map the file: the copy takes memory only while it is read.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    file = tempfile.NamedTemporaryFile(delete=False)  # noqa: SIM115  # the mapping outlives it
    try:
        with file:
            tensor.detach().cpu().view(-1).view(torch.uint8).numpy().tofile(file)
        return torch.from_file(file.name, size=tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
    except OSError as error:
        raise ConfigurationError(
            f"a copy of a frozen parameter of {tensor.nbytes:,} bytes cannot be written to {tempfile.gettempdir()}: "
            f"{error}: make room there, or set TMPDIR to another folder"
        ) from None
    finally:
        with suppress(PermissionError):  # on Windows, a mapped file stays
            Path(file.name).unlink()


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """Sum the bits of each tensor, each word times a number of its place, modulo 2⁶⁴.

    Tensors that differ in any way have other sums, but for one chance in some 10¹⁹:

    >>> import torch
    >>> from fl_lightning.engine.states.large import checksums
    >>> one, swapped, same = checksums([torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]), torch.tensor([1.0, 2.0])])
    >>> one == swapped, one == same
    (False, True)

    Args:
        tensors: contiguous tensors.
    """
    sums = [_checksum(tensor.detach()) for tensor in tensors]
    return torch.stack(sums).tolist() if sums else []


def _checksum(tensor: Tensor) -> Tensor:
    entries = tensor.view(-1)
    size = entries.element_size()
    if entries.nbytes % WORD == 0:
        is_aligned = entries.storage_offset() * size % WORD == 0
        entries = entries if is_aligned else entries.clone()
        size = WORD
    words = entries.view(WORDS[size])
    factors = _factors(words.device)
    sums = [torch.zeros(0, dtype=torch.int64, device=words.device)]
    for group in torch.split(words, PART * (1 if words.is_cpu else GROUP)):
        whole = len(group) // PART * PART
        rest = group[whole:].long()
        sums.append((group[:whole].view(-1, PART).long() * factors).sum(1))
        if len(rest):
            sums.append((rest * factors[: len(rest)]).sum(0, keepdim=True))
    parts = torch.cat(sums)
    return (parts * (2 * torch.arange(len(parts), device=parts.device) + 1)).sum()


@cache
def _factors(device: torch.device) -> Tensor:
    """Draw the odd numbers (PART,) by which words are multiplied, the same in all processes."""
    drawn = torch.randint(1 << 62, (PART,), generator=torch.Generator().manual_seed(0))
    return (2 * drawn + 1).to(device)
