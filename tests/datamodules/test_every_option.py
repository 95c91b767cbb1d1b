"""Every option of dealing on every source of data: it does what it says, or is refused for a reason told here."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule
from fl_lightning.datamodules import (
    Dirichlet,
    FlowerDatasets,
    HuggingFace,
    ImageFolder,
    LabelSwap,
    PFLlib,
    Rotation,
    Table,
    Tensors,
)
from fl_lightning.datamodules.base.labelled import LabelledData

TRAIN, TEST = range(60), range(100, 130)  # each example is one number, whose remainder is its class
CLIENTS = 5
ROOMS = {number: f"room {number // 3 % CLIENTS}" for number in (*TRAIN, *TEST)}


def floats(numbers: Iterable[int]) -> Tensor:
    return torch.tensor([[float(number)] for number in numbers])


def classes(numbers: Iterable[int]) -> Tensor:
    return torch.tensor([number % 3 for number in numbers])


class Own(LabelledData):
    num_classes = 3

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        numbers = TRAIN if train else TEST
        return floats(numbers), classes(numbers)

    def clients(self, train: bool) -> list[str]:
        return [ROOMS[number] for number in (TRAIN if train else TEST)]


class Pairs(Dataset[Any]):
    """Examples that are read one by one."""

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        number = self.numbers[index]
        return torch.tensor([float(number)]), number % 3


def frame(numbers: range) -> pd.DataFrame:
    rooms = [ROOMS[number] for number in numbers]
    return pd.DataFrame({"x": [*map(float, numbers)], "y": classes(numbers).tolist(), "client": rooms})


def rows(numbers: Iterable[int]) -> Any:
    datasets = pytest.importorskip("datasets")
    kinds = {
        "x": datasets.Value("float32"),
        "label": datasets.ClassLabel(num_classes=3),
        "room": datasets.Value("string"),
    }
    columns = {"x": [*map(float, numbers)], "label": classes(numbers).tolist(), "room": [ROOMS[n] for n in numbers]}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


class Rooms:
    """A partitioner by rooms, as those of ``flwr_datasets``."""

    num_partitions = CLIENTS

    def load_partition(self, client: int) -> Any:
        return rows([number for number in TRAIN if ROOMS[number] == f"room {client}"])


def image_folder(folder: Path) -> str:
    """Grey images, whose level is their number; of ten pixels, that turning shows."""
    for split, numbers in (("train", TRAIN), ("test", TEST)):
        for number in numbers:
            place = folder / split / f"class{number % 3}"
            place.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), number).save(place / f"{number:03}.png")
    return str(folder)


def npz_folder(folder: Path) -> str:
    for split, numbers in (("train", TRAIN), ("test", TEST)):
        (folder / split).mkdir(parents=True)
        for client in range(CLIENTS):
            own = [number for number in numbers if ROOMS[number] == f"room {client}"]
            entry: Any = {"x": floats(own).numpy(), "y": classes(own).numpy()}
            np.savez_compressed(folder / split / f"{client}.npz", data=entry)
    return str(folder)


def tensors(folder: Path, **settings: Any) -> Any:
    sets = {name: (floats(numbers), classes(numbers)) for name, numbers in (("train", TRAIN), ("test", TEST))}
    return Tensors(**sets, **{"num_clients": CLIENTS} | settings)  # type: ignore[arg-type]


def loaders(folder: Path, **settings: Any) -> Any:
    sets = [TensorDataset(floats(numbers), classes(numbers)) for numbers in (TRAIN, TEST)]
    return FederatedDataModule.from_loaders(sets[0], val=sets[1], test=sets[1], **{"num_clients": CLIENTS} | settings)


def datasets(folder: Path, **settings: Any) -> Any:
    return FederatedDataModule.from_loaders(
        Pairs(TRAIN), val=Pairs(TEST), test=Pairs(TEST), **{"num_clients": CLIENTS} | settings
    )


def folder_of_images(folder: Path, **settings: Any) -> Any:
    root = image_folder(folder / "images")
    return ImageFolder(root, channels=1, cache=None, normalize=False, **{"num_clients": CLIENTS} | settings)


def table(folder: Path, **settings: Any) -> Any:
    client = {} if "partition" in settings else {"client": "client"}
    return Table(frame(TRAIN), "y", test=frame(TEST), features=["x"], **client | settings)  # type: ignore[arg-type]


def hugging(folder: Path, **settings: Any) -> Any:
    client = {} if "partition" in settings else {"client": "room"}
    return HuggingFace(rows(TRAIN), rows(TEST), columns=["x", "label"], **client | settings)


SOURCES: Mapping[str, Callable[..., Any]] = {
    "own class": lambda folder, **settings: Own(**settings),
    "tensors": tensors,
    "image folder": folder_of_images,
    "PFLlib": lambda folder, **settings: PFLlib(npz_folder(folder / "npz"), inputs="numbers", **settings),
    "table": table,
    "Hugging Face": hugging,
    "Flower Datasets": lambda folder, **settings: FlowerDatasets(Rooms(), test=rows(TEST), **settings),
    "loaders": loaders,
    "datasets": datasets,
}


class Seen:
    """What a run sees of a data module: the number and the class of each example."""

    def __init__(self, data: FederatedDataModule) -> None:
        data.prepare_data()
        data.setup("fit")
        self.data: Any = data
        clients = range(data.num_clients + data.num_new)
        self.clients = [pairs(data.client_batches(client, torch.Generator())) for client in clients]
        self.held = [pairs(data.held_out_batches(client)) for client in clients]
        self.train = [pair for own in self.clients for pair in own]
        self.val, self.test = (pairs(loader) for loader in (data.val_dataloader(), data.test_dataloader()))
        self.proxy = pairs(data.proxy_dataloader() or ())


def pairs(batches: Any) -> list[tuple[int, int]]:
    """The number and the class of each example; a number is the largest entry of an input."""
    found: list[tuple[int, int]] = []
    for batch in batches:
        inputs, labels = (batch["x"], batch["label"]) if isinstance(batch, Mapping) else batch
        numbers = inputs.reshape(len(inputs), -1).amax(1)
        found += zip(map(int, numbers.tolist()), map(int, labels.tolist()), strict=True)
    return found


def true(pairs: Iterable[tuple[int, int]]) -> bool:
    return all(number % 3 == label for number, label in pairs)


def nothing(seen: Seen) -> None:
    assert sorted(seen.train) == [(number, number % 3) for number in TRAIN]
    assert seen.test == seen.val
    assert sorted(seen.test) == [(number, number % 3) for number in TEST]
    assert seen.proxy == []


def partition(seen: Seen) -> None:
    assert (len(seen.clients), len(seen.train)) == (4, 60)
    assert true(seen.train)


def new_clients(seen: Seen) -> None:
    assert (seen.data.num_clients, seen.data.num_new) == (3, 2)
    assert len(seen.train) == 60


def proxy_of_test(seen: Seen) -> None:
    assert Counter(label for _, label in seen.proxy) == {0: 2, 1: 2, 2: 2}
    assert sorted([*seen.proxy, *seen.test]) == [(number, number % 3) for number in TEST]


def proxy_of_training(seen: Seen) -> None:
    assert Counter(label for _, label in seen.proxy) == {0: 2, 1: 2, 2: 2}
    assert sorted([*seen.proxy, *seen.train]) == [(number, number % 3) for number in TRAIN]


def validation(seen: Seen) -> None:
    assert len(seen.val) == 9
    assert sorted([*seen.val, *seen.train]) == [(number, number % 3) for number in TRAIN]
    assert len(seen.test) == 30


def fewer_to_train_on(seen: Seen) -> None:
    assert len({*seen.train}) == 40
    assert true(seen.train)


def fewer_to_test_on(seen: Seen) -> None:
    assert len({*seen.test}) == 12
    assert true(seen.test)


def tail(seen: Seen) -> None:
    assert Counter(label for _, label in seen.train) == {0: 20, 1: 10, 2: 5}
    assert true(seen.train)


def swapped(seen: Seen) -> None:
    assert sorted(seen.train) == [(number, [1, 0, 2][number % 3]) for number in TRAIN]
    assert true(seen.test)


def held_out(seen: Seen) -> None:
    assert [len(own) for own in seen.held] == [len(own) // 3 for own in seen.clients]
    both = [*seen.train, *[pair for own in seen.held for pair in own]]
    assert sorted(both) == [(number, number % 3) for number in TRAIN]


def turned(seen: Seen) -> None:
    assert sorted(seen.train) == [(number, number % 3) for number in TRAIN], "grey stays grey, however it is turned"


OPTIONS: Mapping[str, tuple[dict[str, Any], Callable[[Seen], None]]] = {
    "none": ({}, nothing),
    "partition": ({"partition": Dirichlet(1.0), "num_clients": 4}, partition),
    "new_clients": ({"new_clients": 0.4}, new_clients),
    "proxy of the test set": ({"proxy_per_class": 2, "proxy_source": "test"}, proxy_of_test),
    "proxy of the training set": ({"proxy_per_class": 2, "proxy_source": "train"}, proxy_of_training),
    "validation_examples": ({"validation_examples": 9}, validation),
    "train_examples": ({"train_examples": 40}, fewer_to_train_on),
    "test_examples": ({"test_examples": 12}, fewer_to_test_on),
    "long_tail": ({"long_tail": 4.0}, tail),
    "corruption": ({"corruption": LabelSwap(1.0, pair=(0, 1))}, swapped),
    "held_out": ({"held_out": 0.25}, held_out),
    "domain_shift": ({"domain_shift": Rotation([0, 90])}, turned),
}
NO_IMAGES = "domain_shift"  # changes images that are kept as bytes; other sources take it for no argument of theirs
OWN_TESTS = "needs a test set, but PartitionedData has none: set proxy_source to train"  # it uses the loader unchanged
HOLES: Mapping[tuple[str, str], str] = {
    ("Flower Datasets", "partition"): "no argument num_clients, partition",  # its partitioner deals
    ("loaders", "proxy of the test set"): OWN_TESTS,
    ("datasets", "proxy of the test set"): OWN_TESTS,
    ("loaders", "test_examples"): "expected test_examples of at most 0",
    ("datasets", "test_examples"): "expected test_examples of at most 0",
    **{(source, NO_IMAGES): "no argument domain_shift" for source in SOURCES if source != "image folder"},
    ("tensors", NO_IMAGES): "expected uint8 images",
    ("PFLlib", NO_IMAGES): "expected uint8 images",
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_option_on_every_source(source: str, option: str, tmp_path: Path) -> None:
    settings, check = OPTIONS[option]
    if (source, option) in HOLES:
        with pytest.raises(ConfigurationError, match=HOLES[source, option]):
            Seen(SOURCES[source](tmp_path, **settings))
    else:
        check(Seen(SOURCES[source](tmp_path, **settings)))
