"""client_fingerprints: equal for the same name and examples, and for no others."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.callbacks.privacy.fingerprints import client_fingerprints

ROWS, LABELS = torch.arange(12.0).view(6, 2), torch.arange(6)


class Given(FederatedDataModule):
    """Clients with given data sets."""

    def __init__(self, *datasets: Any, names: list[str] | None = None) -> None:
        super().__init__(client_names=names)
        self.datasets, self.num_clients = datasets, len(datasets)

    def client_dataset(self, client: int) -> Any:
        return self.datasets[client]


class Drawn:
    """Examples that draw random numbers, of torch's global generator or of one of their own."""

    def __init__(self, *own: torch.Generator) -> None:
        self.own = own

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2, generator=self.own[0]) if self.own else torch.rand(2)


class Damaged(Drawn):
    def __getitem__(self, index: int) -> Any:
        raise OSError("cannot be read")


def digests(*datasets: Any, names: list[str] | None = None) -> list[list[int]]:
    found: list[list[int]] = client_fingerprints(Given(*datasets, names=names)).tolist()
    return found


def part(*rows: int) -> Any:
    return Subset(TensorDataset(ROWS.clone(), LABELS), [*rows])


def test_the_same_examples_in_the_same_order() -> None:
    first, second = digests(part(0, 1), part(2, 3))
    assert first != second
    assert digests(part(2, 3), part(0, 1)) == [second, first]
    others = [part(0, 1, 2), part(1, 0), part(0), TensorDataset(ROWS[:2], LABELS[1:3]), TensorDataset(ROWS[:2])]
    others += [TensorDataset(ROWS[:2].double(), LABELS[:2]), TensorDataset(-ROWS[:2], LABELS[:2])]
    found = digests(part(0, 1), *others, *[ConcatDataset([each]) for each in others])
    assert len({tuple(each) for each in found}) == len(found)
    assert digests(part(0, 1))[0] == first


def test_the_last_bit_of_any_example_counts() -> None:
    """Not a sample of them."""
    for row in range(6):
        changed = ROWS.clone()
        changed[row, 1] = torch.nextafter(changed[row, 1], torch.tensor(99.0))
        assert digests(TensorDataset(changed)) != digests(TensorDataset(ROWS))
        assert digests([*changed]) != digests([*ROWS])


def test_names_count() -> None:
    anna, ben = digests(part(0), part(1), names=["anna", "ben"])
    assert digests(part(0), part(1), names=["ben", "anna"]) not in ([anna, ben], [ben, anna])
    assert digests(part(1), part(0), names=["ben", "anna"]) == [ben, anna]


def test_other_examples() -> None:
    """Texts, arrays, dicts and low precision have bytes; seeded draws are the same each time."""
    examples = [{"text": "a b", "label": 1}, {"text": "c", "label": 0}]
    kinds = [examples, [np.ones(2)], TensorDataset(ROWS.bfloat16(), LABELS > 2), Drawn()]
    assert digests(*kinds) == digests(*kinds)
    assert digests(examples) != digests(examples[::-1])


def test_those_that_are_not_known() -> None:
    """Zeros, which no digest is, where an example cannot be read, or has no bytes; a generator of its own differs."""
    unread, objects, drawn = digests(Damaged(), [object()], Drawn(torch.Generator()))
    assert unread == objects == [0] * 16
    own = Drawn(torch.Generator())
    assert digests(own) != digests(own)
    assert any(drawn)


def test_a_client_without_examples() -> None:
    empty, some = digests(part(), part(1))
    assert any(empty)
    assert empty != some
