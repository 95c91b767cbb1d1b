"""Datasets copied to the device once: the batches are the data module's own."""

import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.engine.federation import batches
from fl_lightning.engine.federation.batches import ResidentData, gather

CPU = torch.device("cpu")


class Data(FederatedDataModule):
    """Two clients, one with even and one with odd rows of ten shared examples."""

    num_clients = 2

    def __init__(self) -> None:
        super().__init__(batch_size=2)
        self.examples = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))

    def client_dataset(self, client: int) -> Subset[tuple[Tensor, ...]]:
        return Subset(self.examples, range(client, 10, 2))


def order() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_batches_are_those_of_the_data_module() -> None:
    data, held = Data(), ResidentData(CPU)
    for client in range(2):
        found = data.epoch_rows(client, order())
        assert found
        placed = held.place(*found)
        assert placed
        for one, other in zip(data.client_batches(client, order()), gather(*placed, 2), strict=True):
            assert type(one) is type(other)
            assert all(map(torch.equal, one, other))


def test_a_dataset_is_copied_once_and_again_when_it_has_changed() -> None:
    data, held = Data(), ResidentData(CPU)
    rows = torch.tensor([0, 1])
    first = held.place(data.examples, rows)
    second = held.place(TensorDataset(*data.examples.tensors), rows)
    assert first
    assert second
    assert first[0] is second[0]
    data.examples.tensors[0].zero_()
    third = held.place(data.examples, rows)
    assert third
    assert gather(*third, 2)[0][0].tolist() == [[0, 0], [0, 0]]


def test_what_has_no_room_or_counts_from_the_end_is_left_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Data()
    size = sum(tensor.nbytes for tensor in data.examples.tensors)
    monkeypatch.setattr(batches, "COPIED_BYTES", size)
    held = ResidentData(CPU)
    assert held.place(data.examples, torch.tensor([0, -1])) is None
    assert held.place(data.examples, torch.tensor([0, 10])) is None
    assert held.place(data.examples, torch.tensor([0, 9]))
    assert held.place(TensorDataset(torch.zeros(1)), torch.tensor([0])) is None
