"""Large frozen parameters: a copy in a file in place of memory, a sum that tells of a change, and a digest to keep."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor, nn
from xxhash import xxh3_64

from fl_lightning.errors import ConfigurationError

LARGE = 1 << 22  # bytes of the smallest frozen parameter that is copied into a file
PART = 1 << 16  # words that are summed at once
FACTORS = 1 << 18  # random numbers: the first for the words of each part, the last for the parts
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by their bytes
GROUP = 256  # parts that a GPU sums at once
WORD = 4  # bytes of a word, unless a tensor has a rest; then words are entries
PIECE = 1 << 26  # bytes that are hashed at once


def is_large(tensor: Tensor) -> bool:
    """Tell whether a frozen parameter is copied into a file."""
    plain = tensor.layout is torch.strided and tensor.is_contiguous()
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
    """Compute a checksum of each tensor's bits on its device: a :func:`fingerprint` on a CPU, a sum elsewhere.

    The sum, modulo 2⁶⁴, is of each word times a random number of its place. Words have at most 32 bits and the factors
    63. So two tensors that differ, in whatever way, have the same sum by one chance in some 10⁸, which will do to see
    what training has changed. (Of words of 64 bits, two whose first bit changes, such as the sign of a float64, change
    the sum by 2⁶⁴, which is nothing.) A tensor is known by its :func:`digest`.

    >>> import torch
    >>> from fl_lightning.engine.states.large import checksums
    >>> one, swapped, same = checksums([torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]), torch.tensor([1.0, 2.0])])
    >>> one == swapped, one == same
    (False, True)

    Args:
        tensors: contiguous tensors on one device.
    """
    if all(tensor.is_cpu for tensor in tensors):
        return [fingerprint(tensor) for tensor in tensors]
    sums: list[int] = torch.stack([_weighted_sum(tensor.detach()) for tensor in tensors]).tolist()
    return sums


def _weighted_sum(tensor: Tensor) -> Tensor:
    entries = tensor.view(-1)
    size = entries.element_size()
    if entries.nbytes % WORD == 0:
        is_aligned = entries.storage_offset() * size % WORD == 0
        entries = entries if is_aligned else entries.clone()
        size = WORD
    words = entries.view(WORDS[min(size, WORD)])
    factors = _factors(words.device)
    whole = len(words) // PART * PART
    rest = words[whole:].long() * factors[: len(words) - whole]
    sums = [rest.sum(0, keepdim=True)]
    for group in torch.split(words[:whole].view(-1, PART), GROUP):
        sums.append((group.long() * factors[:PART]).sum(1))
    parts = torch.cat(sums)
    return (parts * factors[FACTORS - len(parts) :]).sum()


@cache
def _factors(device: torch.device) -> Tensor:
    """Draw the odd numbers (FACTORS,) by which words are multiplied, the same in all processes."""
    drawn = torch.randint(1 << 62, (FACTORS,), generator=torch.Generator().manual_seed(0))
    return (2 * drawn + 1).to(device)


def fingerprint(tensor: Tensor) -> int:
    """Hash the bytes of a contiguous tensor by XXH3, to 64 bits; a part at a time goes to the CPU."""
    found = xxh3_64()
    for part in _parts(tensor):
        found.update(part)
    return found.intdigest()


def digest(tensor: Tensor) -> str:
    """Hash dtype, shape and bytes of a contiguous tensor by BLAKE2b; a part at a time goes to the CPU.

    >>> import torch
    >>> from fl_lightning.engine.states.large import digest
    >>> digest(torch.ones(2)) == digest(torch.ones(2)), digest(torch.ones(2)) == digest(-torch.ones(2))
    (True, False)
    """
    found = blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=16)
    for part in _parts(tensor):
        found.update(part)
    return found.hexdigest()


def _parts(tensor: Tensor) -> Iterator[memoryview]:
    for part in torch.split(tensor.detach().view(-1).view(torch.uint8), PIECE):
        yield part.cpu().numpy().data
