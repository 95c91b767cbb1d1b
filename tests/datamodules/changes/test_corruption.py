"""Label corruption: by hand, counts, luck, refusals. Tolerances: 5 standard errors."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_lightning.datamodules import Backdoor, Corruption, LabelFlip, LabelSwap, Tensors
from fl_lightning.errors import ConfigurationError


def corrupt(rule: Corruption, labels: Tensor, parts: list[Tensor], num_classes: int = 10, seed: int = 0) -> Tensor:
    before = labels.clone()
    after = rule.corrupt(labels, parts, num_classes, np.random.default_rng(seed))
    assert torch.equal(labels, before)
    assert after.data_ptr() != labels.data_ptr()
    assert after.dtype == torch.int64
    return after


def test_one_of_two_clients_by_hand() -> None:
    """Classes 0 and 1 swap at the first client or at the second, as often; class 2 stays."""
    labels, parts = torch.tensor([0, 1, 2, 0, 1, 2]), [torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])]
    seen = Counter(str(corrupt(LabelSwap(0.5, pair=(0, 1)), labels, parts, 3, seed).tolist()) for seed in range(400))
    assert set(seen) == {"[1, 0, 2, 0, 1, 2]", "[0, 1, 2, 1, 0, 2]"}
    assert seen["[1, 0, 2, 0, 1, 2]"] / 400 == pytest.approx(0.5, abs=5 * math.sqrt(1 / 4 / 400))


def test_flips_by_hand() -> None:
    """Of two clients one labels its 0 and 1 as 2, the first as often as the second; 3 stays, 2 is 2."""
    labels, parts = torch.tensor([0, 1, 2, 3] * 2), [torch.arange(4), torch.arange(4, 8)]
    rule = LabelFlip(0.5, target=2, sources=[0, 1])
    seen = Counter(str(corrupt(rule, labels, parts, 4, seed).tolist()) for seed in range(400))
    assert set(seen) == {"[2, 2, 2, 3, 0, 1, 2, 3]", "[0, 1, 2, 3, 2, 2, 2, 3]"}
    assert seen["[2, 2, 2, 3, 0, 1, 2, 3]"] / 400 == pytest.approx(0.5, abs=5 * math.sqrt(1 / 4 / 400))
    assert corrupt(LabelFlip(1.0, target=2), labels, parts, 4).tolist() == [2] * 8


@pytest.mark.parametrize(("target", "sources"), [(4, None), (-1, None), (2, [0, 4])])
def test_flips_need_classes_that_exist(target: int, sources: list[int] | None) -> None:
    with pytest.raises(ConfigurationError, match=r"^expected LabelFlip's classes from 0 to 3, got (4|-1): choose"):
        corrupt(LabelFlip(1.0, target, sources), torch.arange(4), [torch.arange(4)], 4)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.25, 5), (0.5, 10), (0.75, 15), (1.0, 20)])
@pytest.mark.parametrize("pair", [None, (3, 7)])
def test_so_many_of_twenty_clients(share: float, count: int, pair: tuple[int, int] | None) -> None:
    """Table 8: 25, 50 and 75 % of 20 clients. A corrupted one exchanges all examples of two classes, and no other."""
    labels = torch.randint(10, (2000,), generator=torch.Generator().manual_seed(0))
    parts = list(torch.randperm(2000, generator=torch.Generator().manual_seed(1)).view(20, 100))
    after = corrupt(LabelSwap(share, pair), labels, parts)
    pairs = []
    for part in parts:
        moves = {(int(a), int(b)) for a, b in zip(labels[part], after[part], strict=True)}
        moved = sorted((a, b) for a, b in moves if a != b)
        if moved:
            (a, b), back = moved
            assert back == (b, a)
            assert all(start not in (a, b) for start, end in moves if start == end)
            pairs.append((a, b))
    assert len(pairs) == count
    if pair:
        assert set(pairs) <= {pair}
    elif count > 1:
        assert len(set(pairs)) > 1  # each client its own


def test_the_pair_is_drawn_among_the_classes_held() -> None:
    """A client of classes 2, 5 and 8 swaps each of the three pairs as often, however many examples they have."""
    labels = torch.tensor([2] * 50 + [5] * 3 + [8])
    after = [corrupt(LabelSwap(1.0), labels, [torch.arange(54)], seed=seed) for seed in range(900)]
    same = Counter(next(c for c, row in ((2, 0), (5, 50), (8, 53)) if int(a[row]) == c) for a in after)
    assert [same[c] / 900 for c in (2, 5, 8)] == pytest.approx([1 / 3] * 3, abs=5 * math.sqrt(2 / 9 / 900))
    assert all(set(a.tolist()) == {2, 5, 8} for a in after)


def test_a_client_of_one_class_swaps_it_with_any_other() -> None:
    """Class 3 of 5 becomes 0, 1, 2 or 4, each with probability 1/4, in all its examples."""
    became = Counter[int]()
    for seed in range(800):
        after = set(corrupt(LabelSwap(1.0), torch.full((6,), 3), [torch.arange(6)], 5, seed).tolist())
        assert len(after) == 1
        became.update(after)
    assert [became[c] / 800 for c in (0, 1, 2, 4)] == pytest.approx([1 / 4] * 4, abs=5 * math.sqrt(3 / 16 / 800))
    assert became[3] == 0


def test_neighbours_do_not_mix() -> None:
    """Clients of one class beside clients of two: each swaps what it holds."""
    labels = torch.tensor([0, 1, 2, 2, 3, 4])
    parts = [torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([4, 5])]
    for seed in range(20):
        after = corrupt(LabelSwap(1.0), labels, parts, seed=seed)
        assert after[[0, 1, 4, 5]].tolist() == [1, 0, 4, 3]
        assert after[2] == after[3] != 2


def test_clients_without_data_are_not_drawn() -> None:
    """Two of four clients hold examples: half of four is both of them; all of four is no more."""
    empty = torch.empty(0, dtype=torch.int64)
    parts = [empty, torch.tensor([0, 1]), empty, torch.tensor([3, 2])]
    for share in (0.5, 1.0):
        assert corrupt(LabelSwap(share), torch.tensor([0, 1, 0, 1]), parts).tolist() == [1, 0, 1, 0]
    assert corrupt(LabelSwap(1.0), torch.tensor([0, 1]), [empty, empty]).tolist() == [0, 1]


def test_what_no_client_holds_stays() -> None:
    after = corrupt(LabelSwap(1.0), torch.tensor([0, 1, 0, 1]), [torch.tensor([2, 3])])
    assert after.tolist() == [0, 1, 1, 0]


def test_a_given_pair_needs_not_be_held() -> None:
    """Swapping 0 and 9: a client that holds neither stays as it is, one that holds 0 alone gets 9."""
    labels, parts = torch.tensor([0, 4, 4, 5]), [torch.tensor([0, 1]), torch.tensor([2, 3])]
    assert corrupt(LabelSwap(1.0, pair=(0, 9)), labels, parts).tolist() == [9, 4, 4, 5]


def test_many_clients() -> None:
    """50,000 clients of the examples 0 and 1: half of them have the two exchanged."""
    labels = torch.arange(100_000) % 2
    after = corrupt(LabelSwap(0.5), labels, list(torch.arange(100_000).split(2)), 2)
    assert int((after != labels).sum()) == 50_000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LabelSwap(-0.1), r"expected share of corrupted clients in \[0, 1\], got -0.1"),
        (lambda: LabelSwap(math.nan), r"expected share of corrupted clients in \[0, 1\], got nan"),
        (lambda: LabelSwap(0.5, (1, 1)), r"expected pair to be two different classes >= 0, got \(1, 1\)"),
        (lambda: LabelSwap(0.5, (-1, 2)), "expected pair to be two different classes >= 0"),
        (lambda: LabelSwap(0.5, (0, 1, 2)), "expected pair to be two different classes"),  # type: ignore[arg-type]
        (lambda: LabelSwap(0.5, (3, 10)), r"two classes below 10 to swap, got pair=\(3, 10\)"),
        (Corruption, "Corruption must define corrupt"),
    ],
)
def test_refusals(make: Callable[[], Corruption], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        corrupt(make(), torch.zeros(4, dtype=torch.int64), [torch.arange(4)])


def test_a_backdoor_by_hand() -> None:
    """One of two clients stamps half of its four images, and labels them as 2: the first as often as the second."""
    labels, parts = torch.tensor([0, 1, 0, 1] * 2), [torch.arange(4), torch.arange(4, 8)]
    rule = Backdoor(0.5, target=2, images=0.5)
    firsts = 0
    for seed in range(200):
        after = corrupt(rule, labels, parts, 3, seed)
        rows = (after == 2).nonzero().flatten()
        assert torch.equal(rows, rule.rows_to_change(parts, np.random.default_rng(seed)).sort().values)
        assert len(rows) == 2
        assert len({int(row) // 4 for row in rows}) == 1
        assert torch.equal(after[after != 2], labels[after != 2])
        firsts += int(rows[0] < 4)
    assert firsts / 200 == pytest.approx(0.5, abs=5 * math.sqrt(1 / 4 / 200))


def test_the_square_is_in_the_lower_right_corner() -> None:
    images = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    stamped = Backdoor(0.5, target=0, size=2).stamp(images)
    assert not images.any()
    assert (stamped[:, :, 2:, 2:] == 255).all()
    assert int((stamped > 0).sum()) == 3 * 4


def stamped_data(**settings: object) -> Tensors:
    images = torch.full((40, 1, 4, 4), 7, dtype=torch.uint8), torch.arange(40) % 4
    given = {"num_clients": 4, "num_classes": 4, "batch_size": 4, "mean": (0.5,), "std": (0.5,)}
    data = Tensors(train=images, test=images, **{**given, **settings})  # type: ignore[arg-type]
    data.setup("fit")
    return data


def examples_of(data: Tensors, client: int) -> list[Tensor]:
    """A client's images and labels."""
    examples = list(data.client_dataset(client))  # type: ignore[call-overload]  # every shipped dataset has a length
    return [torch.stack([torch.as_tensor(value) for value in column]) for column in zip(*examples, strict=True)]


@pytest.mark.parametrize("settings", [{}, {"held_out": 0.2}, {"train_examples": 28}])
def test_stamped_images_are_those_with_the_label(settings: dict[str, object]) -> None:
    """Half of the images of two clients of four, whose labels are otherwise their own; test images stay."""
    plain = stamped_data(**settings)
    data = stamped_data(corruption=Backdoor(0.5, target=3, images=0.5, size=2), **settings)
    attackers = 0
    for client in range(4):
        before, after = examples_of(plain, client), examples_of(data, client)
        stamped = (after[0] == 255).flatten(1).any(1)
        assert (after[1][stamped] == 3).all()
        assert torch.equal(after[1][~stamped], before[1][~stamped])
        assert torch.equal(after[0][~stamped], before[0][~stamped])
        attackers += bool(stamped.any())
    assert attackers == 2
    for images, _ in data.test_dataloader():
        assert (images == 7).all()


def test_a_backdoor_needs_images_and_a_class() -> None:
    with pytest.raises(ConfigurationError, match=r"^expected Backdoor's target from 0 to 3, got 4: choose another c"):
        stamped_data(corruption=Backdoor(0.5, target=4)).client_dataset(0)
    with pytest.raises(ConfigurationError, match=r"^expected uint8 images .* of at least 5 pixels for Backdoor, got t"):
        stamped_data(corruption=Backdoor(0.5, target=1, size=5)).client_dataset(0)
    with pytest.raises(ConfigurationError, match=r"images must be in \[0, 1\], got 2.0"):
        Backdoor(0.5, target=1, images=2.0)
