"""New clients, for each kind of data: behind the others, with their names and examples, and unknown to what trains."""

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import LightningDataModule
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule
from fl_lightning.datamodules import (
    Digits,
    Dirichlet,
    DomainDirichlet,
    FlowerDatasets,
    HuggingFace,
    LabelSwap,
    Leaf,
    MarkovTexts,
    Natural,
    Table,
)
from fl_lightning.datamodules.base.dealt import count_new, new_last
from fl_lightning.datamodules.base.labelled import LabelledData
from fl_lightning.engine.sites.data import SiteData

USERS = [f"u{number}" for number in range(10)]
OWNER = [USERS[row % 10] for row in range(60)]  # six rows for each
VALUES = [float(row) for row in range(60)]
CLASSES = [row % 3 for row in range(60)]


class Named(LabelledData):
    """Inputs that are their row; each user has six training rows and two test rows."""

    num_classes = 3

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        rows = torch.arange(60 if train else 20)
        return rows.float().view(-1, 1), rows % 3

    def clients(self, train: bool) -> list[str]:
        return OWNER[: 60 if train else 20]

    def domains(self, train: bool) -> list[str]:
        return [name[-1] for name in self.clients(train)]


class Owners(LightningDataModule):
    """Rows with an attribute of their users."""

    def train_dataloader(self) -> Any:
        dataset = TensorDataset(torch.tensor(VALUES)[:, None], torch.tensor(CLASSES))
        dataset.user = OWNER  # type: ignore[attr-defined]  # a column
        return DataLoader(dataset, batch_size=4, shuffle=True)


def frame() -> Any:
    return pd.DataFrame({"x": VALUES, "y": CLASSES, "client": OWNER})


def hugging(**settings: Any) -> FederatedDataModule:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": VALUES, "label": CLASSES, "user": OWNER})
    return HuggingFace(rows, columns=["x", "label"], **settings)


class Partitioner:
    """A partitioner by users, as those of ``flwr_datasets``."""

    num_partitions = 10
    partition_id_to_natural_id: ClassVar[dict[int, str]] = dict(enumerate(reversed(USERS)))

    def load_partition(self, client: int) -> Any:
        datasets = pytest.importorskip("datasets")
        rows = range(9 - client, 60, 10)
        return datasets.Dataset.from_dict({"x": [*map(float, rows)], "label": [row % 3 for row in rows]})


def flower(**settings: Any) -> FederatedDataModule:
    return FlowerDatasets(Partitioner(), columns=["x", "label"], **settings)


def values(batches: Any) -> list[int]:
    return [int(value) for batch in batches for value in batch[0].flatten()]


NAMED = {
    "labelled": Named,
    "column": lambda **settings: FederatedDataModule.from_datamodule(
        Owners(), partition=Natural(column="user"), **settings
    ),
    "stated": lambda **settings: FederatedDataModule.from_datamodule(Owners(), partition=OWNER, **settings),
    "table": lambda **settings: Table(frame(), target="y", **settings),
    "hugging face": lambda **settings: hugging(client="user", **settings),
    "flower": flower,
}


@pytest.mark.parametrize("kind", NAMED)
def test_clients_with_names(kind: str) -> None:
    """Ten users of six rows, of which each holds two out; three are new."""
    data = NAMED[kind](new_clients=0.3, held_out=1 / 3, participation=0.5, seed=5)
    data.prepare_data()
    data.setup("fit")
    assert (data.num_clients, data.num_new, data.cohort_size) == (7, 3, 4)
    names = [*data.client_names]
    everyone = sorted(USERS) if kind != "flower" else [*NAMED[kind]().client_names]
    assert names == [everyone[client] for client in new_last(10, 0.3, 5)]
    assert names[:7] == [name for name in everyone if name in names[:7]], "the others keep their order"
    assert data.sizes.tolist() == [4] * 7
    counts = data.class_counts()
    assert counts.shape == (7, 3)
    assert data.new_class_counts().sum(1).tolist() == [4] * 3
    for client, name in enumerate(names):
        own = values(data.client_batches(client, torch.Generator()))
        held = values(data.held_out_batches(client))
        assert (len(own), len(held), data.size_of(client)) == (4, 2, 4)
        assert sorted([*own, *held]) == [row for row in range(60) if OWNER[row] == name]
    assert {client for round in range(1, 30) for client in data.cohort(round)} == set(range(7))
    assert data.client_label(9) == f"9 ({names[9]})"
    again = NAMED[kind](new_clients=0.3, held_out=1 / 3, seed=6)
    again.setup("fit")
    assert [*again.client_names][7:] != names[7:], "another seed draws others"


def test_own_test_examples() -> None:
    """Rows 0 to 19 of the test set, two for each user; without held_out they are what each evaluates on."""
    data = Named(new_clients=0.3)
    for client, name in enumerate(data.client_names or ()):
        assert values(data.held_out_batches(client)) == [row for row in range(20) if OWNER[row] == name]
    table = Table(frame(), target="y", test_share=0.5, new_clients=0.3, domain="client", features=["x"])
    assert [len(values(table.held_out_batches(client))) for client in range(10)] == [3] * 10


def test_partitions_of_numbers() -> None:
    """The parts are those of a run without new clients, in another order."""
    settings: dict[str, Any] = {"num_clients": 12, "partition": Dirichlet(0.3), "seed": 1}
    all_train, some = Digits(**settings), Digits(**settings, new_clients=0.2)
    order = new_last(12, 0.2, seed=1)
    assert (some.num_clients, some.num_new) == (10, 2)
    assert [some.client_num_samples(client) for client in range(12)] == all_train.sizes[order].tolist()
    assert torch.equal(torch.cat([some.class_counts(), some.new_class_counts()]), all_train.class_counts()[order])  # type: ignore[list-item, index]
    given = FederatedDataModule.from_datamodule(Owners(), num_clients=5, new_clients=0.4, client_names="abcde")
    given.setup("fit")
    assert (given.num_clients, given.sizes.tolist()) == (3, [12] * 3)
    assert given.client_names == ["abcde"[client] for client in new_last(5, 0.4, 0)]
    by_domain = Named(partition=DomainDirichlet(1.0, clients_per_domain=2), new_clients=0.25)
    assert (by_domain.num_clients, by_domain.num_new, len(by_domain.client_names or ())) == (15, 5, 20)


def test_what_is_measured_and_corrupted_does_not_know_them() -> None:
    """Labels of clients that train are swapped, all of them; those of new clients stay."""

    class Seen(Named):
        def measure_inputs(self, inputs: Tensor, trained: Tensor) -> None:
            self.seen = {OWNER[int(row)] for row in inputs[trained].flatten()}

    data = Seen(new_clients=0.3, held_out=1 / 3, corruption=LabelSwap(1.0, (0, 1)))
    data.setup("fit")
    names = data.client_names or ()
    assert data.seen == {*names[:7]}
    for client in range(10):
        inputs, labels = data.client_dataset(client)[:]
        truth = inputs.flatten().long() % 3
        swapped = torch.tensor([1, 0, 2])[truth]
        assert torch.equal(labels, truth if client >= 7 else swapped)
        assert client >= 7 or (truth != 2).any()


def test_constants_of_images(tmp_path: Path) -> None:
    """Three users, of whom one has white images alone: new or not decides of the mean."""
    datasets = pytest.importorskip("datasets")
    order = new_last(3, 0.3, seed=0)
    owner = sorted(["a", "b", "c"] * 4)
    new = "abc"[order[-1]]
    pictures = [Image.fromarray(np.full((4, 4), 255 if name == new else 51, np.uint8)) for name in owner]
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(num_classes=2),
        "user": datasets.Value("string"),
    }
    columns = {"image": pictures, "label": [0, 1] * 6, "user": owner}
    rows = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    data = HuggingFace(rows, client="user", new_clients=0.3, held_out=0.5)
    data.setup("fit")
    assert data.mean == pytest.approx((0.2,))
    white = HuggingFace(rows, client="user", held_out=0.5)
    white.setup("fit")
    assert white.mean == pytest.approx(((0.2 + 0.2 + 1) / 3,))


def test_leaf_and_texts(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 1)):
        (tmp_path / split).mkdir()
        users = {user: {"x": [[float(k), 1.5]] * count, "y": [k % 2] * count} for k, user in enumerate(USERS)}
        content = {"users": USERS, "num_samples": [count] * 10, "user_data": users}
        (tmp_path / split / "all_data_0.json").write_text(json.dumps(content))
    data = Leaf(str(tmp_path), inputs="numbers", new_clients=0.2)
    assert (data.num_clients, data.num_new) == (8, 2)
    for client, name in enumerate(data.client_names or ()):
        ((inputs, _),) = data.held_out_batches(client)
        assert inputs[:, 0].tolist() == [int(name[1:])]
    texts = MarkovTexts(num_clients=6, texts=4, test_texts=2, new_clients=0.5)
    assert (texts.num_clients, texts.num_new, texts.sizes.tolist()) == (3, 3, [4, 4, 4])


def test_a_run_without_them_has_the_same_clients() -> None:
    """Rows of the drawn users left out of the table: the same clients, examples held out, and fingerprint."""
    some = Table(frame(), target="y", held_out=0.4, new_clients=0.3, seed=2)
    names = some.client_names[: some.num_clients]
    rows = frame()
    fewer = Table(rows[rows["client"].isin(names)], target="y", held_out=0.4, seed=2)
    assert fewer.client_names == names
    assert fewer.fingerprint() == some.fingerprint()
    for client in range(7):
        assert values(some.held_out_batches(client)) == values(fewer.held_out_batches(client))


@pytest.mark.parametrize(("clients", "share", "count"), [(10, 0.2, 2), (10, 0.01, 1), (2, 0.9, 1), (1, 0.0, 0)])
def test_how_many_are_new(clients: int, share: float, count: int) -> None:
    assert count_new(clients, share) == count
    assert sorted(new_last(clients, share, seed=3)) == [*range(clients)]


class Own(FederatedDataModule):
    num_clients = 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Named(new_clients=1.0), r"new_clients must be in \[0, 1\), the share of the clients, got 1\.0"),
        (
            lambda: Digits(num_clients=1, new_clients=0.5).setup("fit"),
            "needs two clients or more, .* got 1",
        ),
        (lambda: Own(new_clients=0.5), "Own has no argument new_clients: leave it out"),
        (
            lambda: SiteData(Digits(new_clients=0.5), {0: 0}, torch.tensor([5])),
            "sites of their own, got new_clients=0.5: leave data.new_clients out",
        ),
    ],
)
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refusal:
        make()
    assert "\n" not in str(refusal.value)
