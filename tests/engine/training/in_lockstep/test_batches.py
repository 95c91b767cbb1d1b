"""The batches of clients that train at once: each client gets its own, however they are read."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.engine.federation.batches import Rows, take
from fl_lightning.engine.training.in_lockstep import batches as group_batches
from fl_lightning.engine.training.in_lockstep.batches import Part, are_alike, gather_steps, stack_batches

SIZES = [7, 6, 3]  # examples of each client, in batches of 3: the last ones have 1, 3 and 3


def datasets(count: int) -> list[TensorDataset]:
    """One dataset for all clients, or one for each; each example is its client's number times 100 plus its own."""
    examples = [torch.arange(size) + 100 * client for client, size in enumerate(SIZES)]
    pairs = [TensorDataset(each[:, None].float(), each) for each in examples]
    whole = TensorDataset(*(torch.cat([pair.tensors[part] for pair in pairs]) for part in (0, 1)))
    return [whole] * 3 if count == 1 else pairs


def rows_of(found: Sequence[TensorDataset]) -> list[Rows]:
    """The rows of two epochs of each client, in batches of 3: 6, 4 and 2 of them."""
    first, clients = 0, []
    for dataset, size in zip(found, SIZES, strict=True):
        rows = torch.arange(size) + (first if found[0] is found[1] else 0)
        clients.append(Rows(dataset, rows.repeat(2), size, 3))
        first += size
    return clients


def by_client(steps: Iterator[list[Part]]) -> list[list[list[int]]]:
    """The labels of each client's batches, without those that fill a batch up."""
    found: list[list[list[int]]] = [[] for _ in SIZES]
    for parts in steps:
        for part in parts:
            weights = part.batch[1][..., None] >= 0 if part.weights is None else part.weights
            for row, size, weight, x, y in zip(part.rows, part.sizes, weights, *part.batch, strict=False):
                assert x.flatten().tolist() == y.tolist()
                if part.weights is None:
                    assert len(y) == size
                else:
                    assert weight.tolist() == pytest.approx([1 / size] * size + [0] * (len(y) - size))
                found[row].append(y[:size].tolist())
    return found


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("ahead", [1, 10**6])
@pytest.mark.parametrize("count", [1, 3])
def test_gathered_batches_are_each_clients_own(
    count: int, ahead: int, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_batches, "AHEAD", ahead)
    seen: list[int] = []

    def prepare(batch: list[Tensor]) -> Any:
        seen.append(len(batch[0]))
        return batch

    steps = list(gather_steps(prepare, rows_of(datasets(count)), [6, 4, 2], lambda live: live, padded))
    once = [[[0, 1, 2], [3, 4, 5], [6]], [[100, 101, 102], [103, 104, 105]], [[200, 201, 202]]]
    assert by_client(iter(steps)) == [2 * each for each in once]
    assert len(seen) == (6 if ahead == 1 else 3)
    assert {len(parts) for parts in steps} == ({1} if padded else {1, 2})


def test_steps_have_the_number_of_rows_that_is_asked_for() -> None:
    steps = gather_steps(list, rows_of(datasets(1)), [6, 4, 2], lambda live: 3, True)
    assert [(list(part.rows), len(part.batch[1])) for (part,) in steps] == [
        *[([0, 1, 2], 3)] * 2,
        *[([0, 1], 3)] * 2,
        *[([0], 3)] * 2,
    ]


def test_batches_of_one_shape_are_stacked() -> None:
    (first, second) = stack_batches([([torch.zeros(3), torch.ones(3)], 3), ([torch.zeros(2), torch.ones(2)], 2)])
    assert (first.rows, first.sizes, [each.shape for each in first.batch]) == ([0], [3], [(1, 3), (1, 3)])
    assert second.sizes == [2]


def test_datasets_are_alike_by_shape_and_type() -> None:
    plain, longer = TensorDataset(torch.zeros(2, 3)), TensorDataset(torch.zeros(5, 3))
    assert are_alike(plain, longer)
    assert not are_alike(plain, TensorDataset(torch.zeros(2, 4)))
    assert not are_alike(plain, TensorDataset(torch.zeros(2, 3, dtype=torch.float64)))


def test_rows_from_the_end_are_taken_too() -> None:
    """A Subset may have negative numbers, which index_select refuses."""
    assert take(torch.arange(4), torch.tensor([-1, 0])).tolist() == [3, 0]
    with pytest.raises(IndexError, match="out of bounds"):
        take(torch.arange(4), torch.tensor([4]))
