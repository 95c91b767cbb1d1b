"""Ordinary data modules, loaders and data sets, made federated."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lib.command import fit, run
from lib.toy import Capture, Linear, Notes, trainer
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.datamodules import ClassesPerClient, Natural, PartitionedData, QuantitySkew
from fl_lightning.errors import ConfigurationError

LABELS = [0, 1, 2, 0, 1, 2, 0, 1]
ROWS = TensorDataset(torch.arange(8.0)[:, None], torch.tensor(LABELS))
REAL = TensorDataset(torch.arange(8.0)[:, None], torch.rand(8))  # for regression


class Ordinary(LightningDataModule):
    """A data module as its author would write it for the Trainer, which knows nothing of clients."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.prepare_data_per_node = False

    def prepare_data(self) -> None:
        self.heard.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.heard.append("setup " + ("fit" if stage == "fit" else "other"))
        self.rows = ROWS

    def teardown(self, stage: str) -> None:
        self.heard.append("teardown " + ("fit" if stage == "fit" else "other"))

    def train_dataloader(self) -> Any:
        return DataLoader(self.rows, batch_size=3, shuffle=True, drop_last=True)

    def val_dataloader(self) -> Any:
        return [DataLoader(self.rows, batch_size=8)]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        assert self.trainer is not None
        return [batch[0].double() * 10, *batch[1:]]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": 7}


class Sees(Linear):
    def __init__(self) -> None:
        super().__init__(size=1)
        self.seen: list[float] = Notes()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.seen += batch[0].flatten().tolist()
        return self.w.sum()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.seen.append(-float(batch[0].sum()))


def made(train: Any = ROWS, **settings: Any) -> FederatedDataModule:
    return FederatedDataModule.from_loaders(train, **settings)


def refuses(message: str, source: Any, **settings: Any) -> None:
    """Dealing the source's examples to clients is refused in one line."""
    make = FederatedDataModule.from_datamodule if isinstance(source, LightningDataModule) else made
    with pytest.raises(ConfigurationError, match=message) as caught:
        make(source, **settings).setup("fit")
    assert "\n" not in str(caught.value)


def values(data: FederatedDataModule) -> list[list[int]]:
    """The first entry of each client's examples."""
    datasets: list[Any] = [data.client_dataset(client) for client in range(data.num_clients)]
    return [[int(dataset[i][0]) for i in range(len(dataset))] for dataset in datasets]


def test_a_data_module_serves_as_it_is() -> None:
    """Two clients of four in batches of three: drop_last leaves three each. The validation sum is -10 · 28.

    Settings that are given win over those of its loader.
    """
    own = Ordinary()
    data = FederatedDataModule.from_datamodule(own, num_clients=2)
    assert not data.prepare_data_per_node
    module, capture = Sees(), Capture()
    trainer(capture).fit(FederatedOrchestrator(module, on_bad_update="raise", on_hidden_state="off"), datamodule=data)
    assert own.heard == ["prepare_data", "setup fit", "teardown fit"]
    assert (data.batch_size, data.drop_last, data.collate_fn) == (3, True, None)
    assert len(module.seen) == 7
    assert module.seen[-1] == -280
    assert len({value % 10 for value in module.seen}) == 1
    assert capture.cohort.num_samples.tolist() == [4, 4]
    assert data.state_dict() == {"epoch": 7}
    trainer().validate(FederatedOrchestrator(module), datamodule=data, verbose=False)
    assert own.heard[3:] == ["prepare_data", "setup other", "teardown other"]
    given = FederatedDataModule.from_datamodule(own, 2, tuple, num_clients=2, drop_last=False, seed=5)
    given.setup("fit")
    assert (given.batch_size, given.drop_last, given.collate_fn, given.seed) == (2, False, tuple, 5)


def test_a_function_that_begins_workers_is_told_not_to_be_called() -> None:
    class Begins(Ordinary):
        def train_dataloader(self) -> Any:
            loader: Any = super().train_dataloader()
            return DataLoader(loader.dataset, loader.batch_size, worker_init_fn=print)

    with pytest.warns(UserWarning, match=r"the worker_init_fn of Begins.train_dataloader\(\) is not called"):
        PartitionedData(Begins(), num_clients=2).setup("fit")


def test_own_numbers_of_examples_count() -> None:
    """Of 8 rows, each of two clients has 4; a subclass that counts each row twice has 8."""

    class Twice(PartitionedData):
        def client_num_samples(self, client: int) -> int:
            return 2 * super().client_num_samples(client)

    assert PartitionedData(Ordinary(), num_clients=2).sizes.tolist() == [4, 4]
    assert Twice(Ordinary(), num_clients=2).sizes.tolist() == [8, 8]


def test_the_loaders_own_collate_fn() -> None:
    def pad(examples: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(examples)

    texts: Any = [torch.ones(length) for length in (1, 2, 3)]
    data = made(DataLoader(texts, batch_size=3, collate_fn=pad), num_clients=1)
    (batch,) = data.client_batches(0, torch.Generator())
    assert batch.shape == (3, 3)
    assert made(DataLoader(ROWS, collate_fn=default_collate), num_clients=1).collate_fn is None


def test_loaders_and_datasets() -> None:
    """Loaders stay as they are, data sets become loaders in order, and what is missing is left to the module."""
    loader = DataLoader(ROWS, batch_size=5)
    data = made(val=loader, test=ROWS, num_clients=2, batch_size=3)
    assert data.val_dataloader() is loader
    assert [batch[0].flatten().tolist() for batch in data.test_dataloader()] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert sorted(value for part in values(data) for value in part) == list(range(8))
    assert "predict_dataloader" not in vars(data)


def test_equal_parts_by_default() -> None:
    first, again, other = (values(made(num_clients=3, seed=seed)) for seed in (0, 0, 1))
    assert sorted(map(len, first)) == [2, 3, 3]
    assert sorted(value for part in first for value in part) == list(range(8))
    assert first == again != other


@pytest.mark.parametrize(
    ("partition", "names", "expected"),
    [
        ([[7, 0], [1]], None, [[7, 0], [1]]),
        ([np.array([2]), torch.tensor([], dtype=torch.int64)], None, [[2], []]),
        (["b", "a", "c", "b", "b", "b", "b", "a"], ["a", "b", "c"], [[1, 7], [0, 3, 4, 5, 6], [2]]),
        (np.array([9, 9, 9, 9, -1, 9, 9, 9]), ["-1", "9"], [[4], [0, 1, 2, 3, 5, 6, 7]]),
        (pd.Series(["x", "y"] * 4, index=range(5, 13)), ["x", "y"], [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ],
)
def test_stated_partitions(partition: Any, names: list[str] | None, expected: list[list[int]]) -> None:
    """Lists of indices keep their order, and may leave examples out; the values name the clients, and are sorted."""
    data: Any = made(partition=partition)
    assert data.client_names == names
    assert values(data) == expected


class Items(Dataset[Any]):
    """Examples without any attribute; ``make`` turns a row into one."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        assert type(index) is int
        return self.make(torch.tensor(index), LABELS[index])


class Storing(Items):
    """Examples (input, ) or dicts, and what the data set stores about them."""

    def __init__(self, make: Any = lambda x, y: (x,), **stored: Any) -> None:
        super().__init__(make)
        self.__dict__ |= stored


@pytest.mark.parametrize(
    "dataset",
    [
        ROWS,
        ConcatDataset([Subset(ROWS, range(3)), Subset(ROWS, range(3, 8))]),
        Storing(targets=LABELS),
        Storing(labels=np.array(["cat", "dog", "emu"])[LABELS]),
        Items(lambda x, y: (x, y)),
        Items(lambda x, y: [x, torch.tensor(y)]),
        *(Items(lambda x, y, key=key: {0: x, key: y}) for key in ("label", "labels", "targets")),  # type: ignore[misc]
    ],
)
def test_labels_are_found(dataset: Any) -> None:
    """Three clients of one class each: rows 0, 3, 6; 1, 4, 7; 2, 5."""
    data = made(dataset, num_clients=3, partition=ClassesPerClient(1))
    assert sorted(map(sorted, values(data))) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    counts: Any = data.class_counts()
    assert sorted(counts.tolist()) == [[0, 0, 2], [0, 3, 0], [3, 0, 0]]


@pytest.mark.parametrize("partition", [ClassesPerClient(1), Natural()])
def test_labels_given_by_hand(partition: Any) -> None:
    """The given labels win: two classes, or two groups."""
    data = made(num_clients=2, partition=partition, labels=["left"] * 4 + ["right"] * 4)
    assert sorted(map(sorted, values(data))) == [[0, 1, 2, 3], [4, 5, 6, 7]]


HOSPITALS = ["rome", "oslo", "rome", "bern", "oslo", "rome", "rome", "bern"]


class Patients(Items):
    """Examples whose column is a property."""

    @property
    def hospital(self) -> list[str]:
        return HOSPITALS


class Rows(Ordinary):
    """A data module that keeps a table beside the tensors that it makes of it."""

    def __init__(self, **columns: Any) -> None:
        super().__init__()
        self.table = pd.DataFrame(columns)


VISITS = {
    "a list": Storing(hospital=HOSPITALS),
    "a series": Storing(hospital=pd.Series(HOSPITALS)),
    "numbers": Storing(hospital=torch.tensor([30, 2, 30, 1, 2, 30, 30, 1])),
    "a table": Storing(table=pd.DataFrame({"hospital": HOSPITALS, "age": range(8)})),
    "a property": Patients(lambda x, y: (x, y)),
    "a key": Items(lambda x, y: {"x": x, "hospital": HOSPITALS[int(x)]}),
    "a key of numbers": Items(lambda x, y: {"x": x, "hospital": torch.tensor(ord(HOSPITALS[int(x)][0]))}),
    "below": ConcatDataset([Subset(Storing(hospital=np.array(HOSPITALS)), range(k, k + 4)) for k in (0, 4)]),
}


@pytest.mark.parametrize("kind", VISITS)
def test_a_column_says_whose_an_example_is(kind: str) -> None:
    """Rows 3 and 7 are Bern's, 1 and 4 Oslo's, the others Rome's; without a number, each is a client."""
    data = made(VISITS[kind], partition=Natural("hospital"))
    assert data.num_clients == 3
    assert data.client_names in (["bern", "oslo", "rome"], ["1", "2", "30"], ["98", "111", "114"])
    data.setup("fit")
    assert [list(data.client_dataset(k).indices) for k in range(3)] == [[3, 7], [1, 4], [0, 2, 5, 6]]  # type: ignore[attr-defined]
    two = made(VISITS[kind], partition=Natural("hospital"), num_clients=2)
    parts = sorted(sorted(two.client_dataset(k).indices) for k in range(2))  # type: ignore[attr-defined]
    assert two.client_names is None
    assert any(set(part) in ({3, 7}, {1, 4}, {0, 2, 5, 6}) for part in parts), "two hospitals share a client, whole"
    assert sorted(parts[0] + parts[1]) == list(range(8))


def test_a_column_of_the_data_modules_own_table() -> None:
    """The classes stay those of the examples; names of one's own replace the values; a new fit finds new values."""
    rows = Rows(hospital=HOSPITALS)
    data = FederatedDataModule.from_datamodule(rows, partition=Natural("hospital"))
    counts = data.class_counts()
    assert counts is not None
    assert counts.tolist() == [[1, 1, 0], [0, 2, 0], [2, 0, 2]]  # of classes 0, 1, 2, 0, 1, 2, 0, 1
    named = FederatedDataModule.from_datamodule(rows, partition=Natural("hospital"), client_names=["a", "b", "c"])
    assert named.client_names == ["a", "b", "c"]
    rows.table = pd.DataFrame({"hospital": ["paris"] * 8})
    data.setup("fit")
    assert (data.num_clients, data.client_names, data.sizes.tolist()) == (1, ["paris"], [8])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": list(range(8))}, "expected a column hospital in the training set, got age: name another, or give the"),
        ({"hospital": [*HOSPITALS[:6], None, None]}, "column hospital to be complete, got 2 missing values: fill"),
        ({"hospital": [1.0, float("nan")] * 4}, "column hospital to be complete, got 4 missing values: fill"),
        ({"hospital": [0.5] * 8}, "expected column hospital to hold integers or texts, got float64: convert"),
    ],
)
@pytest.mark.parametrize("way", ["attribute", "table"])
def test_refuses_other_columns(way: str, columns: dict[str, Any], message: str) -> None:
    source = Storing(**columns) if way == "attribute" else Storing(table=pd.DataFrame(columns))
    refuses(message, source, partition=Natural("hospital"))


def test_a_partition_without_labels_reads_none() -> None:
    for data in (made(Items(lambda x, y: x), num_clients=2, partition=QuantitySkew(1.0)), made(REAL, num_clients=2)):
        assert int(data.sizes.sum()) == 8
        assert data.class_counts() is None


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(ROWS)


class Pair(Ordinary):
    def train_dataloader(self) -> Any:
        return [super().train_dataloader()] * 2


TEXTS = Items(lambda x, y: x)
KEYS = Items(lambda x, y: {"x": x, "label": y})
BY_CLASS = {"num_clients": 2, "partition": ClassesPerClient(1)}
TWO = {"num_clients": 2}


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (Stream(), TWO, "expected the train data to be a dataset with __len__ and __getitem__.*got Stream"),
        (DataLoader(Stream()), TWO, r"expected the dataset of Loaders.train_dataloader\(\) to be .* got Stream"),
        (DataLoader(ROWS, batch_size=None), TWO, "to have a batch_size, got batch_size=None"),
        (DataLoader(ROWS, batch_sampler=[[0], [1, 2]]), TWO, "to have a batch_size, got list"),
        (DataLoader(ROWS, sampler=WeightedRandomSampler([1.0] * 8, 8)), TWO, "once, got WeightedRandomSampler: .* Sub"),
        (Pair(), TWO, r"expected Pair.train_dataloader\(\) to return one DataLoader, got list: return a single Data"),
        (ROWS, {}, "expected num_clients, a stated partition, or Natural or DomainDirichlet with a column, got none"),
        (ROWS, {"partition": [[0], [1]], "num_clients": 3}, "expected num_clients=2, as the partition states, got 3"),
        (ROWS, {"partition": [[0], [8]]}, "expected partition to state indices from 0 to 7, got 0 to 8"),
        (ROWS, {"partition": ["a", "b"]}, "expected partition to state the clients of 8 examples, got 2: give one for"),
        (ROWS, {"partition": [0.5, 1.5]}, r"expected partition to be a Partition, .* got \[0.5, 1.5\]: convert it"),
        (ROWS, {"partition": [[0.5], [1.5]]}, "expected partition to be a Partition"),
        (ROWS, {"partition": []}, "expected partition to be a Partition"),
        (ROWS, TWO | {"partition": Natural()}, "Natural keeps groups together: name a column, or give labels="),
        (ROWS, TWO | {"labels": [0.5] * 8}, r"expected labels to be integers or strings \(8,\).*float64 \(8,\)"),
        (ROWS, TWO | {"labels": [1, 2]}, r"expected labels to be integers or strings \(8,\).*int64 \(2,\)"),
        (REAL, BY_CLASS, r"the labels, by which ClassesPerClient goes, to be .* float32"),
        (TEXTS, BY_CLASS, r"expected examples \(input, label\) .* got Tensor: give labels="),
        (ROWS, {"partition": Natural("hospital")}, "a column hospital in the training set, got none: name another"),
        (KEYS, {"partition": Natural("hospital")}, "a column hospital in the training set, got label, x: name another"),
        (VISITS["a list"], {"partition": Natural("hospital"), "num_clients": 4}, "got 3 groups for num_clients=4: low"),
    ],
)
def test_refuses_other_sources_and_partitions(source: Any, settings: dict[str, Any], message: str) -> None:
    refuses(message, source, **settings)


def test_a_loader_that_draws_from_a_subset() -> None:
    """A common way to split training and validation: the clients get the training part alone."""
    data = made(DataLoader(ROWS, sampler=SubsetRandomSampler([5, 3])), num_clients=1)
    assert sorted(values(data)[0]) == [3, 5]


OWN = """
from lightning.pytorch import LightningDataModule
import pandas as pd
import torch
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.datamodules import PartitionedData


class Stays(LightningDataModule):
    def __init__(self, file: str, batch_size: int = 4):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        self.frame = pd.read_csv(self.hparams.file)
        rows = torch.tensor(self.frame[[f"x{k}" for k in range(64)]].to_numpy(), dtype=torch.float32)
        self.train = TensorDataset(rows, torch.tensor(self.frame["label"]))

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.hparams.batch_size, shuffle=True)


class Hospitals(PartitionedData):
    def __init__(self, file: str, **federation):
        super().__init__(Stays(file), **federation)
        self.save_hyperparameters()
"""
YAML = """
trainer: {max_epochs: 2, accelerator: cpu}
model:
  client:
    class_path: ImageClassifier
    init_args:
      network: {class_path: TwoNN, init_args: {in_features: 64}}
      optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
data:
  class_path: own.Hospitals
  init_args: {file: stays.csv, partition: {class_path: Natural, init_args: {column: hospital}}}
"""

ORDINARY_YAML = """
data:
  class_path: PartitionedData
  init_args:
    datamodule: {class_path: own.Stays, init_args: {file: stays.csv}}
    num_clients: 3
    partition: {class_path: fl_lightning.datamodules.Dirichlet, init_args: {alpha: .inf}}
"""


@pytest.fixture
def stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 stays in three hospitals, and a config, in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    rows = pd.DataFrame(np.zeros((24, 64)), columns=[f"x{k}" for k in range(64)])
    rows.assign(label=0, hospital=["rome", "oslo", "bern"] * 8).to_csv("stays.csv", index=False)
    Path("tiny.yaml").write_text(YAML)


@pytest.mark.usefixtures("stays")
def test_a_users_data_module_from_yaml() -> None:
    """Its arguments reach it; the partition and the batches are the options'."""
    Path("tiny.yaml").write_text(YAML.partition("data:")[0] + ORDINARY_YAML)
    shown = run("data", "--config", "tiny.yaml", "--data.datamodule.batch_size", 5)
    assert "24 training examples; 3 of 3 clients" in shown.out, shown.err
    assert "local steps per epoch: 2 to 2" in shown.out


@pytest.mark.usefixtures("stays")
def test_a_users_subclass_makes_its_data_module_and_a_run_goes_on() -> None:
    fit()
    fit("--ckpt_path", "last", "--trainer.max_epochs", 3)
    names = np.load("runs/tiny/version_0/arrays/partition.npz")["names"]
    assert names.tolist() == ["bern", "oslo", "rome"]
    settings = torch.load("runs/tiny/version_0/checkpoints/last.ckpt").get("datamodule_hyper_parameters", {})
    assert settings["file"] == "stays.csv"
    assert "partition" not in settings, "no object, which weights_only could not load"


@pytest.mark.parametrize(
    "collate", [None, lambda examples: [torch.stack(column) for column in zip(*examples, strict=True)]]
)
def test_what_clients_hold_out(collate: Any) -> None:
    """The same rows from tensors and from a data set that is read example by example, disjoint from training."""
    examples = TensorDataset(torch.arange(40.0).view(-1, 1), torch.arange(40) % 2)
    given = [examples, [examples[row] for row in range(40)]]
    kept = []
    for train in given:
        data = FederatedDataModule.from_loaders(train, num_clients=4, held_out=0.3, batch_size=2, collate_fn=collate)
        data.setup("fit")
        assert data.sizes.tolist() == [7] * 4
        batches = [list(data.held_out_batches(client)) for client in range(4)]
        assert [[len(batch[0]) for batch in own] for own in batches] == [[2, 1]] * 4
        kept.append([batch[0].flatten().tolist() for own in batches for batch in own])
        trained = {int(data.client_dataset(client)[row][0]) for client in range(4) for row in range(7)}
        assert trained | {int(value) for batch in kept[-1] for value in batch} == set(range(40))
    assert kept[0] == kept[1]


def test_a_share_that_cannot_be_held_out() -> None:
    with pytest.raises(ConfigurationError, match=r"held_out must be in \[0, 1\)"):
        FederatedDataModule.from_loaders(TensorDataset(torch.ones(4, 1), torch.ones(4)), num_clients=2, held_out=1.0)
