"""A column of domains, in Hugging Face data sets and in tables: clients, evaluation by domain, domains left out."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lib.command import fit, rows
from PIL import Image

from fl_lightning import FederatedDataModule
from fl_lightning.datamodules import DomainDirichlet, HuggingFace, Table
from fl_lightning.errors import ConfigurationError

datasets: Any = pytest.importorskip("datasets")
DOMAINS = ["art", "photo", "sketch"]


def pictures(count: int = 120, **columns: Any) -> Any:
    """Images of one grey level, the row's number; image i is of domain i mod 3 and of class (i div 3) mod 4."""
    own = {
        "image": [Image.fromarray(np.full((4, 4), row, np.uint8)) for row in range(count)],
        "style": [DOMAINS[row % 3] for row in range(count)],
        "label": [row // 3 % 4 for row in range(count)],
    }
    kinds = {"image": datasets.Image(), "style": datasets.Value("string"), "label": datasets.ClassLabel(num_classes=4)}
    features = datasets.Features(kinds | {name: datasets.Value("string") for name in columns})
    return datasets.Dataset.from_dict(own | columns, features=features)


def numbers(count: int = 120) -> Any:
    return datasets.Dataset.from_dict(
        {
            "x": [float(row) for row in range(count)],
            "style": [DOMAINS[row % 3] for row in range(count)],
            "label": [row // 3 % 4 for row in range(count)],
        }
    )


def of_training(data: FederatedDataModule) -> list[list[int]]:
    """The original rows of each client's training examples."""
    found = []
    for client in range(data.num_clients):
        examples: Any = data.client_dataset(client)
        found.append([row_of(examples[index]) for index in range(len(examples))])
    return found


def row_of(example: Any) -> int:
    value = example["x"] if isinstance(example, dict) else example[0].flatten()[0]
    return int(value)


def by_domain(data: Any) -> dict[str, list[int]]:
    """The original rows of the test examples of each domain."""
    found = {}
    for name, batches in data.domain_batches().items():
        inputs = [batch["x"] if isinstance(batch, dict) else batch[0].flatten(1)[:, 0] for batch in batches]
        found[name] = torch.cat(inputs).int().tolist()
    return found


@pytest.mark.parametrize("memory_gib", [4.0, 1e-9])
@pytest.mark.parametrize("made", [pictures, numbers])
def test_each_domain_is_a_client_and_is_evaluated(made: Any, memory_gib: float) -> None:
    """Row i is of domain i mod 3. Without a test set a quarter of each domain's rows are test rows."""
    data = HuggingFace(made(), domain="style", test_share=0.25, memory_gib=memory_gib)
    data.setup("fit")
    assert data.client_names == DOMAINS
    training, tests = of_training(data), by_domain(data)
    assert [{row % 3 for row in own} for own in training] == [{0}, {1}, {2}]
    assert {name: {row % 3 for row in own} for name, own in tests.items()} == {"art": {0}, "photo": {1}, "sketch": {2}}
    assert [len(own) for own in training] == [30, 30, 30]
    assert sorted(row for own in [*training, *tests.values()] for row in own) == list(range(120))
    own = list(data.held_out_batches(1))
    assert sum(len(batch["label"] if isinstance(batch, dict) else batch[1]) for batch in own) == 10


@pytest.mark.parametrize("made", [pictures, numbers])
def test_a_domain_left_out_is_tested_alone(made: Any) -> None:
    data = HuggingFace(made(), test=made(6), domain="style", leave_out=["sketch"])
    data.setup("fit")
    assert data.client_names == ["art", "photo"]
    assert all(row % 3 != 2 for own in of_training(data) for row in own)
    tests = by_domain(data)
    assert tests["sketch"] == [2, 5, *range(2, 120, 3)]
    assert (tests["art"], tests["photo"]) == ([0, 3], [1, 4])


def test_a_share_beside_a_test_set_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        HuggingFace(numbers(), test=numbers(6), domain="style", test_share=0.25).setup("fit")
    assert "the test set: 6 examples of its own, and 30 moved by test_share" in caplog.text


def test_domains_are_divided_among_clients() -> None:
    data = HuggingFace(pictures(), domain="style", test_share=0.25, partition=DomainDirichlet(1.0, 2))
    data.setup("fit")
    assert data.client_names == ["art 1", "art 2", "photo 1", "photo 2", "sketch 1", "sketch 2"]
    for client, own in enumerate(of_training(data)):
        assert {row % 3 for row in own} <= {client // 2}
    assert set(by_domain(data)) == set(DOMAINS)


def test_clients_and_domains_are_two_columns() -> None:
    """Each of six writers has examples of all domains; test examples are drawn for each writer and domain."""
    writers = [f"w{row // 3 % 6}" for row in range(108)]
    data = HuggingFace(pictures(108, writer=writers), client="writer", domain="style", test_share=0.5)
    data.setup("fit")
    assert data.client_names == [f"w{number}" for number in range(6)]
    for own in of_training(data):
        assert [sum(row % 3 == domain for row in own) for domain in range(3)] == [3, 3, 3]
    assert {name: len(own) for name, own in by_domain(data).items()} == {"art": 18, "photo": 18, "sketch": 18}


def test_a_run_logs_the_accuracy_of_each_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    pictures().to_parquet("my.parquet")
    options = ("--data=HuggingFace", "--data.train=my.parquet", "--data.domain=style", "--data.test_share=0.25")
    left_out = ("--data.leave_out=[sketch]", "--trainer.callbacks+=PersonalEvaluation")
    fit("--trainer.max_epochs=1", *options, *left_out, config="mnist_gh.yaml")
    last = rows("runs/mnist_gh/version_0/metrics.csv")[-1]
    named = {name for name in last if name.startswith("domain/top1")}
    expected = {f"domain/top1/{name}" for name in DOMAINS} | {
        f"domain/top1_{of}" for of in ("mean", "worst", "left_out")
    }
    assert named == expected
    assert last["domain/top1_left_out"] == last["domain/top1/sketch"]


FRAME = pd.DataFrame(
    {
        "hospital": ["rome", "milan", "oslo", "bergen"] * 6,
        "country": ["it", "it", "no", "no"] * 6,
        "age": [float(row) for row in range(24)],
        "ill": [row % 3 == 0 for row in range(24)],
    }
)


def table(train: Any = FRAME, **settings: Any) -> Table:
    return Table(train, target="ill", client="hospital", domain="country", **settings)


def test_a_domain_of_a_table() -> None:
    """The column is no feature; the test rows of each country are those of its hospitals."""
    data = table(test_share=0.34)
    assert data.client_names == ["bergen", "milan", "oslo", "rome"]
    examples: Any = data.client_dataset(0)
    assert examples[0][0].shape == (1,)
    ages = {name: torch.cat([batch[0] for batch in batches]) for name, batches in data.domain_batches().items()}
    assert {name: len(own) for name, own in ages.items()} == {"it": 4, "no": 4}
    assert (ages["it"].int() % 4 < 2).all()
    assert (ages["no"].int() % 4 >= 2).all()


@pytest.mark.parametrize("settings", [{}, {"test": FRAME.iloc[:8]}, {"test_share": 0.34}])
def test_a_country_of_a_table_left_out(settings: dict[str, Any]) -> None:
    data = table(leave_out=["no"], **settings)
    assert data.client_names == ["milan", "rome"]
    count = {name: sum(len(batch[0]) for batch in batches) for name, batches in data.domain_batches().items()}
    added = {"test": 4, "test_share": 4}
    italian = sum(added[name] for name in settings)
    assert count == {"no": 12 + (4 if "test" in settings else 0)} | ({"it": italian} if italian else {})
    assert sum(len(batch[0]) for batch in data.val_dataloader()) == sum(count.values())


def test_a_table_holds_out() -> None:
    """Each client keeps back two of its six rows, in place of its rows of the test set."""
    data = table(test=FRAME.iloc[:8], held_out=0.34)
    assert data.sizes.tolist() == [4, 4, 4, 4]
    for client in range(4):
        (batch,) = data.held_out_batches(client)
        examples: Any = data.client_dataset(client)
        trained = {float(examples[index][0]) for index in range(4)}
        assert len(batch[0]) == 2
        assert not trained & set(batch[0].flatten().tolist())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"leave_out": ["sketch"]}, "leave_out names domains: set domain"),
        (
            {"domain": "style", "leave_out": ["oil"]},
            "leave_out must name some of art, photo, sketch, .* got oil",
        ),
        ({"domain": "style", "leave_out": DOMAINS}, "leave_out must name some of"),
        ({"domain": "kind"}, "expected columns kind, got x, style, label"),
        ({"domain": "style", "test_share": 1.0}, r"test_share must be in \[0, 1\)"),
        ({"domain": "style", "test_share": 0.5, "test": numbers().remove_columns(["style"])}, "got none of style"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        HuggingFace(numbers(), **{"num_clients": 2} | change)


def test_refusals_of_a_table() -> None:
    with pytest.raises(ConfigurationError, match="leave_out names domains: set domain"):
        Table(FRAME, target="ill", client="hospital", leave_out=["no"])
    with pytest.raises(ConfigurationError, match="leave_out must name some of it, no, and not all, got se"):
        table(leave_out=["se"]).client_dataset(0)
    with pytest.raises(ConfigurationError, match=r"held_out must be in \[0, 1\)"):
        table(held_out=1.0)
