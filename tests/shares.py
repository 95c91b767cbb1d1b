"""Updates that several processes receive, each those of some clients, and what the algebra makes of them."""

import os
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from fl_lightning.engine.updates.store import Store
from fl_lightning.engine.updates.updates import Updates

PARAMETERS = 20_011  # three segments


def sent(clients: int = 7, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(clients, PARAMETERS, generator=torch.Generator().manual_seed(0), dtype=dtype)


def results(updates: Updates) -> list[Tensor]:
    """What the algebra gives for any number of devices."""
    count = len(updates)
    coefficients = torch.linspace(-1, 1, count, dtype=torch.float64)
    vector = torch.randn(PARAMETERS, generator=torch.Generator().manual_seed(2))
    half = torch.full((count, count), 0.5, dtype=torch.float64)
    return [
        updates.combine(coefficients),
        updates.products(vector),
        updates.products(vector.double()),
        updates.norms,
        updates.gram(),
        updates.gram(8_000, 17_000),
        updates.by_coordinate(lambda block: block.median(0).values, None),
        updates.by_coordinate(lambda block: block.amax(0), half),
        torch.stack(list(updates.rows())),
        updates.whole,
    ]


DEALT = {1: [[0, 1, 2, 3, 4, 5, 6]], 2: [[3, 0, 6, 4], [5, 1, 2]], 3: [[6], [0, 5], [4, 1, 3, 2]]}
LEFT_OUT = 4


def one_device(rank: int, devices: int, port: int, folder: str) -> None:
    """Take in this device's clients, exchange, and save what comes out."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=devices, timeout=timedelta(seconds=300))
    rows, anchor = sent(), torch.zeros(PARAMETERS)
    store = Store(anchor, rank, devices, slots=7, limit=1 << 30, folder=Path(folder))
    clients = DEALT[devices][rank]
    assert not store.put(clients[:2], rows[clients[:2]], anchor).any()
    for client in clients[2:]:
        assert store.put([client], rows[[client]], anchor).tolist() == [0]
    places = {client: (device, slot) for device, part in enumerate(DEALT[devices]) for slot, client in enumerate(part)}
    order = [places[client] for client in range(7) if client != LEFT_OUT]
    torch.save(results(store.hand_out(order)), Path(folder) / f"{devices}_{rank}.pt")
    distributed.destroy_process_group()
