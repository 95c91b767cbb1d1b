"""drop_last and collate_fn of the shipped data modules, from YAML; num_clients of all, from Python."""

import inspect
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser
from lib.command import TINY, fit, refused
from torch.utils.data import TensorDataset

from fl_lightning import FederatedDataModule, datamodules
from fl_lightning.datamodules import RandomFlip, Tensors
from fl_lightning.datamodules.base.settings import Federation, Images, Labelled, Published
from fl_lightning.errors import ConfigurationError

SHIPPED = [cls for cls in vars(datamodules).values() if inspect.isclass(cls) and issubclass(cls, FederatedDataModule)]
MINE = """
from pathlib import Path

from torch.utils.data import default_collate


def noted(examples):
    Path("called").touch()
    return default_collate(examples)
"""


@pytest.mark.parametrize("cls", SHIPPED, ids=lambda cls: cls.__name__)
def test_every_data_module_takes_both(cls: type) -> None:
    parser = ArgumentParser()
    parser.add_class_arguments(cls, "data")
    assert {"collate_fn", "drop_last"} <= vars(parser.get_defaults().data).keys()


def test_an_unknown_argument_is_refused_in_one_line() -> None:
    """As the command line refuses it; Python's own error is a TypeError of a base class."""
    pair = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    for make, message in (
        (
            lambda: FederatedDataModule.from_loaders(TensorDataset(*pair), num_clients=2, test_share=0.2),
            "PartitionedData .* test_share",
        ),
        (lambda: datamodules.Table("my.csv", "y", resize=2), "Table has no argument resize: leave it out$"),
        (
            lambda: Tensors(train=pair, test=pair, test_share=0.2, clients=3),
            "Tensors has no argument test_share, clients",
        ),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make()


def test_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    Path("tiny.yaml").write_text(TINY + "    collate_fn: mine.noted\n    drop_last: true\n")
    fit()
    assert Path("called").exists()
    assert "collate_fn: mine.noted" in Path("runs/tiny/version_0/config.yaml").read_text()


def test_a_function_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    said = refused("fit", "--config", "tiny.yaml", "--data.collate_fn", "nowhere.pad")
    expected = "data.collate_fn: expected a function, as in my_module.my_function, got something else: "
    assert said == expected + "No module named 'nowhere'"


def test_augment_and_collate_fn_exclude_each_other() -> None:
    """Augmentation changes a batch only if it is stacked in memory: here it would do nothing, in silence."""
    pair = torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.tensor([0])
    with pytest.raises(ConfigurationError, match="expected augment or collate_fn, got both"):
        Tensors(train=pair, test=pair, augment=RandomFlip(), collate_fn=tuple)


@pytest.mark.parametrize(
    ("cls", "known"),
    [
        (FederatedDataModule, Federation),
        (datamodules.LabelledData, Labelled),
        (datamodules.ImageData, Images),
        (datamodules.PublishedImages, Published),
    ],
)
def test_editors_know_the_arguments_that_a_base_class_takes(cls: type, known: Any) -> None:
    own = [base.__init__ for base in cls.__mro__ if issubclass(base, FederatedDataModule)]
    taken = [inspect.signature(init).parameters.values() for init in own]
    named = {
        each.name: each.annotation for each in chain(*taken) if each.name != "self" and each.kind != each.VAR_KEYWORD
    }
    assert known.__annotations__ == named


class Own(FederatedDataModule):
    """A user's data module."""

    def __init__(self, num_clients: int) -> None:
        super().__init__()
        self.num_clients = num_clients
        self.cohort_size  # noqa: B018  # as when training begins


ONE = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
TAKING: dict[str, Callable[[Any], FederatedDataModule]] = {
    "Own": Own,
    "PartitionedData": lambda number: FederatedDataModule.from_loaders([0, 1], num_clients=number),
    "Tensors": lambda number: Tensors(train=ONE, test=ONE, num_clients=number),
}


@pytest.mark.parametrize("number", [0, -1, 2.5, "2"])
@pytest.mark.parametrize("name", TAKING)
def test_number_of_clients_from_python(name: str, number: Any) -> None:
    """The command line refuses other types itself."""
    expected = "a whole number" if not isinstance(number, int) else "at least 1"
    with pytest.raises(ConfigurationError, match=f"^num_clients must be {expected}, got {number!r}$"):
        TAKING[name](number)
