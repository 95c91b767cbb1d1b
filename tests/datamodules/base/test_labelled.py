"""LabelledData: what clients, evaluation and the proxy set see."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_lightning.datamodules import ClassesPerClient, LabelSwap, Natural, Partition
from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.errors import ConfigurationError


class Tiny(LabelledData):
    """Inputs that are their row: 60 to train on, 30 to test on, three classes in turn; groups of 10 training rows."""

    num_classes = 3
    loads = 0

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        self.loads += 1
        rows = torch.arange(60 if train else 30)
        return rows.float().view(-1, 1), rows % 3

    def groups(self) -> Tensor | None:
        return torch.arange(60) // 10


def rows(batches: Any) -> list[int]:
    return [int(row) for inputs, _ in batches for row in inputs.flatten()]


def train_rows(data: LabelledData) -> list[list[int]]:
    """Each client's rows."""
    return [rows([data.client_dataset(k)[:]]) for k in range(data.num_clients)]


def test_clients_share_the_training_set() -> None:
    data = Tiny(num_clients=3, partition=ClassesPerClient(1))
    assert [data.client_num_samples(k) for k in range(3)] == [20, 20, 20]  # without a Trainer, before setup
    seen = [rows([data.client_dataset(k)[:]]) for k in range(3)]
    assert sorted(chain.from_iterable(seen)) == list(range(60))
    assert all(len({row % 3 for row in part}) == 1 for part in seen)


def test_fewer_examples() -> None:
    """Drawn with the seed, and beside the proxy set; clients and evaluation see these alone."""

    def drawn(seed: int) -> tuple[list[int], list[int]]:
        data = Tiny(num_clients=3, train_examples=12, test_examples=7, proxy_per_class=4, seed=seed)
        proxy, evaluated = rows(data.proxy_dataloader()), rows(data.val_dataloader())
        assert len(proxy) == 12
        assert set(proxy).isdisjoint(evaluated)
        return sorted(chain.from_iterable(train_rows(data))), evaluated

    train, test = drawn(0)
    assert (len(set(train)), len(set(test))) == (12, 7)
    assert test == sorted(test)
    assert drawn(0) == (train, test)
    assert drawn(1)[0] != train
    assert train_rows(Tiny(num_clients=3, train_examples=60)) == train_rows(Tiny(num_clients=3))


def test_validation_apart_from_training_and_test() -> None:
    """Validation sees its own training rows, the test all test rows, and clients the training rows that are left."""
    data = Tiny(num_clients=3, validation_examples=9, proxy_per_class=2, proxy_source="train", seed=1)
    validated = rows(data.val_dataloader())
    trained = list(chain.from_iterable(train_rows(data)))
    assert len(set(validated)) == 9
    assert sorted([*validated, *trained, *rows(data.proxy_dataloader())]) == list(range(60))
    assert rows(data.test_dataloader()) == list(range(30))
    assert rows(Tiny(validation_examples=9, seed=2).val_dataloader()) != validated

    fewer = Tiny(num_clients=3, validation_examples=40, train_examples=20)
    assert sorted([*rows(fewer.val_dataloader()), *chain.from_iterable(train_rows(fewer))]) == list(range(60))


def test_loads_once() -> None:
    data = Tiny()
    data.setup("fit")
    data.setup("validate")
    data.client_dataset(0)
    assert data.loads == 2  # the training and the test set


def test_the_seed_decides() -> None:
    """The partition, the long tail and the proxy set; the partition does not depend on the proxy set."""

    def drawn(seed: int, **settings: Any) -> tuple[Any, Any]:
        data = Tiny(num_clients=3, seed=seed, **settings)
        return train_rows(data), sorted(rows(data.proxy_dataloader() or ()))

    for settings in ({}, {"long_tail": 4}, {"proxy_per_class": 4}):
        first, again, other = (drawn(seed, **settings) for seed in (0, 0, 1))
        assert first == again
        assert first[0] != other[0]
        assert first[1] != other[1] or not first[1]
    assert drawn(0, proxy_per_class=4)[0] == drawn(0)[0]


def test_evaluation_is_the_whole_test_set_in_order() -> None:
    data = Tiny(eval_batch_size=12)
    inputs, before = data._dealt.evaluation.tensors[0], torch.get_rng_state()
    for loader in (data.val_dataloader(), data.test_dataloader()):
        batches = list(loader)
        assert [x.data_ptr() - inputs.data_ptr() for x, _ in batches] == [0, 48, 96]  # of 4 bytes each: nothing copied
        assert len(loader) == 3
        assert [len(labels) for _, labels in batches] == [12, 12, 6]
        assert rows(batches) == list(range(30))
        assert torch.cat([labels for _, labels in batches]).tolist() == [0, 1, 2] * 10
    assert torch.equal(torch.get_rng_state(), before)
    assert data.proxy_dataloader() is None


def test_proxy_set_is_balanced_and_left_out_of_evaluation() -> None:
    """4 of each of 3 classes are 12 of the 30 test images; 18 remain."""
    data = Tiny(proxy_per_class=4, proxy_batch_size=5)
    loader = data.proxy_dataloader()
    assert loader is not None
    batches = list(loader)
    assert len(loader) == 3
    assert [len(labels) for _, labels in batches] == [5, 5, 2]
    assert torch.bincount(torch.cat([labels for _, labels in batches])).tolist() == [4, 4, 4]
    evaluated = rows(data.val_dataloader())
    assert evaluated == sorted(evaluated)
    assert sorted(evaluated + rows(batches)) == list(range(30))
    assert sorted(rows(data.test_dataloader())) == evaluated


def test_proxy_order_comes_from_the_global_generator() -> None:
    loader = Tiny(proxy_per_class=4).proxy_dataloader()
    orders = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        orders.append(rows(loader))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_clients_hold_out_a_share_of_their_examples() -> None:
    """20 examples each: round(0.25 · 20) = 5 are held out, in order, and 15 train; together they are the client's."""
    data, whole = Tiny(num_clients=3, held_out=0.25, eval_batch_size=2), Tiny(num_clients=3)
    for k in range(3):
        batches = list(data.held_out_batches(k))
        assert [len(labels) for _, labels in batches] == [2, 2, 1]
        assert batches[0][0].dtype == torch.float32
        held, trained = rows(batches), rows([data.client_dataset(k)[:]])
        assert data.client_num_samples(k) == len(trained) == 15
        assert [int(label) for _, labels in batches for label in labels] == [row % 3 for row in held]
        assert sorted(held + trained) == sorted(rows([whole.client_dataset(k)[:]]))
        order = rows([whole.client_dataset(k)[:]])
        assert held == [row for row in order if row in held]
        assert trained == [row for row in order if row in trained]
    assert data.sizes.tolist() == [15, 15, 15]
    assert not any(list(whole.held_out_batches(k)) for k in range(3))


class InTurn(Partition):
    """Example i goes to client i mod N."""

    def owners(self, labels: Any, num_clients: int, generator: Any) -> Any:
        return np.arange(len(labels)) % num_clients


def test_what_is_held_out_depends_on_the_seed_and_the_client() -> None:
    """Example 2i + k is client k's i-th: the i drawn differ from client to client and from seed to seed."""

    def positions(seed: int, client: int) -> list[int]:
        data = Tiny(num_clients=2, held_out=0.5, seed=seed, partition=InTurn())
        return [row // 2 for row in rows(data.held_out_batches(client))]

    assert len(positions(0, 0)) == 15
    assert positions(0, 0) == positions(0, 0)
    assert positions(0, 0) != positions(1, 0)
    assert positions(0, 0) != positions(0, 1)


class Uneven(Partition):
    """Parts of 0, 1, 2, 3 and 54 examples."""

    def owners(self, labels: Any, num_clients: int, generator: Any) -> Any:
        return np.repeat(np.arange(5), [0, 1, 2, 3, 54])


@pytest.mark.parametrize(
    ("share", "held"), [(0.2, [0, 0, 0, 1, 11]), (0.5, [0, 0, 1, 2, 27]), (0.99, [0, 0, 1, 2, 53])]
)
def test_one_example_at_least_stays_in_training(share: float, held: list[int]) -> None:
    """A fifth of (0, 1, 2, 3, 54) is (0, 0.2, 0.4, 0.6, 10.8), half (0, 0.5, 1, 1.5, 27), rounded, 0.5 to 0."""
    data = Tiny(num_clients=5, held_out=share, partition=Uneven())
    assert [len(rows(data.held_out_batches(k))) for k in range(5)] == held
    assert data.sizes.tolist() == [n - h for n, h in zip((0, 1, 2, 3, 54), held, strict=True)]


def test_a_proxy_set_of_training_examples_is_in_no_client() -> None:
    """4 of each class leave 16; the test set stays whole, and targets stay with their inputs."""
    data = Tiny(num_clients=3, proxy_per_class=4, proxy_source="train")
    proxy = rows(data.proxy_dataloader())
    assert sorted(row % 3 for row in proxy) == [0] * 4 + [1] * 4 + [2] * 4
    assert sorted(proxy + list(chain(*train_rows(data)))) == list(range(60))
    assert data.class_counts().sum(0).tolist() == [16, 16, 16]
    assert rows(data.val_dataloader()) == list(range(30))
    assert all((inputs.flatten() % 3 == labels).all() for inputs, labels in data.proxy_dataloader() or ())


@pytest.mark.parametrize("source", ["test", "train"])
def test_a_long_tailed_proxy_set(source: Any) -> None:
    """4 · 4^(-c / 2) is 4, 2, 1."""
    data = Tiny(proxy_per_class=4, proxy_long_tail=4, proxy_source=source)
    assert torch.bincount(data._dealt.proxy[1]).tolist() == [4, 2, 1]
    assert len(rows(data.val_dataloader())) == (23 if source == "test" else 30)


def test_balanced_proxy_batches_draw_classes_alike() -> None:
    """Of 4, 2 and 1 examples: each class is a third of 7,000 draws, to within 5 standard deviations of 0.0056."""
    data = Tiny(proxy_per_class=4, proxy_long_tail=4, proxy_balanced=True, proxy_batch_size=5)
    loader = data.proxy_dataloader()
    assert loader is not None
    torch.manual_seed(0)
    drawn = torch.tensor([row % 3 for _ in range(1000) for row in rows(loader)])
    assert [len(labels) for _, labels in loader] == [5, 2]
    assert (torch.bincount(drawn) / 7000).tolist() == pytest.approx([1 / 3] * 3, abs=0.028)


def test_a_long_tailed_training_set() -> None:
    """20 · 4^(-c / 2) is 20, 10, 5; with 4 of each in the proxy set, 16, 8, 4. The test set is left as it is."""
    data = Tiny(num_clients=2, long_tail=4)
    assert data.class_counts().sum(0).tolist() == [20, 10, 5]
    assert data.sizes.sum() == 35
    assert len(rows(data.val_dataloader())) == 30
    both = Tiny(num_clients=2, long_tail=4, proxy_per_class=4, proxy_source="train")
    assert both.class_counts().sum(0).tolist() == [16, 8, 4]
    assert torch.bincount(both._dealt.proxy[1]).tolist() == [4, 4, 4]


def test_class_counts() -> None:
    """Example i goes to client i mod 2 and has class i mod 3: 10 each; half of 30 held out leaves 15."""
    assert Tiny(num_clients=2, partition=InTurn()).class_counts().tolist() == [[10] * 3] * 2
    data = Tiny(num_clients=2, partition=InTurn(), held_out=0.5)
    assert data.class_counts().sum(1).tolist() == [15, 15]
    for k in range(2):
        labels = data.client_dataset(k)[:][1]
        assert data.class_counts()[k].tolist() == torch.bincount(labels, minlength=3).tolist()


def test_corruption_reaches_clients_alone() -> None:
    """Classes 0 and 1 swapped in every client, what it holds out included; inputs, test and proxy set stay."""
    swap = LabelSwap(1.0, pair=(0, 1))
    data = Tiny(num_clients=2, corruption=swap, held_out=0.25, proxy_per_class=2, proxy_source="train")
    plain = Tiny(num_clients=2, held_out=0.25, proxy_per_class=2, proxy_source="train")
    assert train_rows(data) == train_rows(plain)
    for k in range(2):
        for inputs, labels in [data.client_dataset(k)[:], *data.held_out_batches(k)]:
            assert labels.tolist() == [[1, 0, 2][int(row) % 3] for row in inputs]
    assert data.class_counts().tolist() == plain.class_counts()[:, [1, 0, 2]].tolist()
    for loader in (data.val_dataloader(), data.proxy_dataloader()):
        for inputs, labels in loader or ():
            assert labels.tolist() == [int(row) % 3 for row in inputs]


def test_groups_stay_together() -> None:
    """Six groups of ten rows on three clients: two whole groups each, less what the proxy set took."""
    for part in train_rows(Tiny(num_clients=3, partition=Natural())):
        assert len(part) == 20
        assert len({row // 10 for row in part}) == 2
    data = Tiny(num_clients=6, partition=Natural(), proxy_per_class=4, proxy_source="train", long_tail=4)
    parts = train_rows(data)
    assert all(len({row // 10 for row in part}) <= 1 for part in parts)
    assert sum(map(len, parts)) == 28


class Unknown(Tiny):
    def groups(self) -> Tensor | None:
        return None


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (Tiny, {"num_clients": 0}, "num_clients must be at least 1, got 0"),
        (Tiny, {"proxy_batch_size": 0}, "proxy_batch_size must be at least 1, got 0"),
        (Tiny, {"eval_batch_size": 0}, "eval_batch_size must be at least 1, got 0"),
        (Tiny, {"num_clients": 61}, "num_clients must be at most 60, the number of training examples, got 61: lower"),
        (Tiny, {"train_examples": 0}, "train_examples must be at least 1, got 0"),
        (
            Tiny,
            {"test_examples": 31},
            "expected test_examples of at most 30, the examples that Tiny has, got 31: lower",
        ),
        (Tiny, {"test_examples": 19, "proxy_per_class": 4}, "expected test_examples of at most 18"),
        (Tiny, {"validation_examples": 0}, "validation_examples must be at least 1, got 0"),
        (Tiny, {"validation_examples": 61}, "expected validation_examples of at most 60"),
        (Tiny, {"proxy_per_class": -1}, "proxy_per_class must be at least 0, got -1"),
        (Tiny, {"proxy_per_class": 10}, "expected proxy_per_class below 10, the number of images of class 0"),
        (Tiny, {"proxy_source": "validation"}, "proxy_source must be 'test' or 'train', got 'validation'"),
        (Tiny, {"held_out": -0.1}, r"held_out must be in \[0, 1\).* got -0.1"),
        (Tiny, {"held_out": 1.0}, r"held_out must be in \[0, 1\).* got 1.0"),
        (Tiny, {"held_out": float("nan")}, r"held_out must be in \[0, 1\).* got nan"),
        (Tiny, {"long_tail": 0.5}, "long_tail and proxy_long_tail must be at least 1, .* got 0.5 and 1.0"),
        (
            Tiny,
            {"proxy_long_tail": float("nan")},
            "long_tail and proxy_long_tail must be at least 1, .* got 1.0 and nan",
        ),
        (Unknown, {"partition": Natural()}, r"Natural keeps groups .*, but Unknown knows no groups: .*groups\(\)"),
        (Tiny, {"partition": Natural("hospital")}, "Tiny knows no column hospital: leave column out, or define"),
        (LabelledData, {}, r"LabelledData must define load\(train\)"),
    ],
)
def test_refusals(cls: type[LabelledData], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        cls(**settings).setup("fit")


class Wards(Tiny):
    """Tiny data that come with their clients: three wards of 20 training rows, and four with ten test rows or fewer."""

    def clients(self, train: bool) -> list[str]:
        if train:
            return [["north", "south", "east"][row // 20] for row in range(60)]
        return [["east", "west", "north"][row % 3] for row in range(30)]


def test_the_clients_with_which_data_come() -> None:
    """Each is a client with its name, and evaluates on its own test examples."""
    data = Wards()
    assert (data.num_clients, data.client_names) == (3, ["east", "north", "south"])
    assert train_rows(data) == [list(range(40, 60)), list(range(20)), list(range(20, 40))]
    own = [rows(data.held_out_batches(client)) for client in range(3)]
    assert own == [list(range(0, 30, 3)), list(range(2, 30, 3)), []]  # south has no test rows, west does not train
    assert rows(data.val_dataloader()) == list(range(30))


def test_what_else_deals_data_with_clients() -> None:
    """A share that is held out, a partition, and fewer examples."""
    held_out = Wards(held_out=0.25)
    own = rows(held_out.held_out_batches(0))
    assert len(own) == 5
    assert sorted(own + train_rows(held_out)[0]) == list(range(40, 60))
    pooled = Wards(num_clients=2, partition=ClassesPerClient(2))
    assert (pooled.num_clients, pooled.client_names) == (2, None)
    assert not rows(pooled.held_out_batches(0))
    fewer = Wards(train_examples=9, test_examples=6)
    assert sum(map(len, train_rows(fewer))) == 9
    assert sum(len(rows(fewer.held_out_batches(k))) for k in range(3)) <= 6
    assert sorted(map(len, train_rows(Wards(num_clients=3, partition=Natural())))) == [20, 20, 20]
