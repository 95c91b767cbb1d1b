"""client_fingerprints: who a client is, by its name and examples, whatever its number."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import torch

from fl_lightning.engine.federation.batches import CPU, in_memory, take
from fl_lightning.engine.federation.clients import ClientData, content_of, names_of
from fl_lightning.seeding import isolated, seed_globals


def client_fingerprints(data: ClientData) -> torch.Tensor:
    """Hash each client's name and all of its examples: (N, 16) uint8; zeros for examples that have no bytes, or fail.

    Two clients with the same fingerprint are the same client. Examples that draw random numbers are read with fixed
    seeds; those of a data set with a generator of its own differ each time.

    Args:
        data: a data module that is set up.
    """
    names = names_of(data)
    found = torch.zeros(data.num_clients, 16, dtype=torch.uint8)
    for client in range(data.num_clients):
        digest = blake2b(b"" if names is None else names[client].encode(), digest_size=16)
        try:
            for part in _all_examples(data, client):
                digest.update(part)
        except Exception:  # training reports the error more clearly
            continue
        found[client] = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
    return found


def _all_examples(data: ClientData, client: int) -> Iterator[bytes]:
    """Yield the bytes of a client's examples: tensors whole, other examples one by one."""
    if not int(data.sizes[client]):
        return
    dataset: Any = data.client_dataset(client)
    located = in_memory(dataset, torch.arange(len(dataset)))
    if located is not None:
        tensors, rows = located
        for tensor in tensors.tensors:
            own = take(tensor, rows).contiguous()
            yield f"{own.dtype}{tuple(own.shape)}".encode() + own.cpu().view(torch.uint8).numpy().tobytes()
        return
    for index in range(len(dataset)):
        with isolated(CPU):
            seed_globals(0, CPU)
            content = content_of(dataset[index])
        yield content
