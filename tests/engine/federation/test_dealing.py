"""Clients dealt to devices and batches, as the value that a fit gives to the data module says."""

from typing import Any

import torch
from lib.toy import GivenData

from fl_lightning.engine.federation.data import Dealing

SIZES = [1, 5, 2, 4, 3]


def dealt(clients_per_batch: int = 1, **dealing: Any) -> list[list[int]]:
    data = GivenData(torch.zeros(5, 1), samples=SIZES, clients_per_batch=clients_per_batch)
    data.dealing = Dealing(**dealing)
    loader = data.train_dataloader()
    batches = [list(batch) for batch in loader]
    assert len(loader) == len(batches)
    return batches


def test_without_a_fit_one_device_trains_all_clients_in_order() -> None:
    assert dealt() == [[0], [1], [2], [3], [4]]
    assert dealt(clients_per_batch=2) == [[0, 1], [2, 3], [4]]


def test_devices_get_even_shares_of_the_examples_in_one_batch() -> None:
    """By size, the largest first, the clients are 1, 3, 4, 2, 0: each goes to the device with the fewest examples."""
    assert dealt(rank=0, devices=2) == [[1, 2, 0]]
    assert dealt(rank=1, devices=2) == [[3, 4, -1]]


def test_no_device_gets_more_clients_than_its_memory_has_room_for() -> None:
    """One client goes through as many examples as the others together: the other device gets three of them, no more."""
    settings = {"num_steps": lambda client, round: SIZES[client] * (100 if client == 1 else 1), "devices": 2}
    assert dealt(rank=0, **settings) == [[1, 0, -1]]
    assert dealt(rank=1, **settings) == [[3, 4, 2]]


def test_clients_whose_updates_are_summed_as_they_arrive_train_in_order() -> None:
    assert dealt(rank=0, devices=2, in_order=True) == [[0], [3], [4]]
    assert dealt(rank=1, devices=2, in_order=True) == [[1], [2], [-1]]


def test_groups_hold_clients_with_similar_numbers_of_steps() -> None:
    """By steps, 5 - k for client k, the groups are 01, 23 and 4, for the devices 0, 1, 1; each group is one batch."""
    settings = {"num_steps": lambda client, round: 5 - client, "group_size": 2, "devices": 2, "clients_per_batch": 3}
    assert dealt(rank=0, **settings) == [[0, 1], [-1]]
    assert dealt(rank=1, **settings) == [[2, 3], [4]]
