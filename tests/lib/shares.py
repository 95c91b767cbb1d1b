"""Updates that several processes receive, each those of some clients, and what the algebra makes of them."""

import os
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from fl_lightning import ClientResult
from fl_lightning.engine.updates import exchange
from fl_lightning.engine.updates.columns import Columns
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


def join(rank: int, devices: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=devices, timeout=timedelta(seconds=300))


def one_device(rank: int, devices: int, port: int, folder: str) -> None:
    """Take in this device's clients, exchange, and save what comes out."""
    join(rank, devices, port)
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


def global_buffers() -> list[Tensor | None]:
    """Buffers of many kinds; no client changes the last tensor."""
    sparse = torch.tensor([[0.0, 1.0], [0.0, 0.0]]).to_sparse()
    steps, flags = torch.tensor(3), torch.tensor([True, False])
    return [torch.ones(2, 3, dtype=torch.bfloat16), steps, flags, torch.empty(0), sparse, None, torch.zeros(5)]


def result_of(client: int, buffers: list[Tensor | None]) -> ClientResult:
    """What a client sends: other buffers than the global ones, and a part of a larger tensor."""
    changed = [each if each is None else each + each if each.is_sparse else each + client for each in buffers[:-2]]
    vectors = {"part": torch.arange(12.0).view(3, 4)[:, client]}
    return ClientResult(client, 1 + client, 2, 0.5, 2.0, [*changed, *buffers[-2:]], vectors=vectors)


def one_device_with_results(rank: int, devices: int, port: int, at_once: int) -> None:
    """Gather results of four clients, of which this device has some, and compare them with those sent."""
    join(rank, devices, port)
    exchange.AT_ONCE = at_once
    slots = [{3: 0, 0: 1, 9: 2, 2: 3}, {1: 0}][rank]  # client 9 has failed
    buffers = global_buffers()
    mine = [result_of(client, buffers) for client in slots if client != 9]
    columns, device = Columns(100, rank, devices), torch.device("cpu")
    found, places = exchange.gather_results(columns, slots, mine, buffers, device)
    assert places == [(0, 1), (1, 0), (0, 3), (0, 0)]
    for client, result in enumerate(found):
        sent = result_of(client, buffers)
        assert (result.client, result.num_samples, result.loss) == (client, sent.num_samples, sent.loss)
        assert torch.equal(result.vectors["part"], sent.vectors["part"])
        for now, then in zip(result.buffers, sent.buffers, strict=True):
            assert (now is None) == (then is None)
            assert (
                now is None
                or then is None
                or (now.dtype, now.shape, now.layout) == (then.dtype, then.shape, then.layout)
            )
            assert now is None or then is None or torch.equal(now.to_dense(), then.to_dense())
        assert result.buffers[-1] is buffers[-1]
    distributed.destroy_process_group()
