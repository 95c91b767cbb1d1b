"""FlowerDatasets: partitioners of flwr_datasets, and a FederatedDataset of files, as clients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.command import fit, rows
from lib.toy import Linear, trainer
from PIL import Image
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.datamodules import FlowerDatasets, HuggingFace
from fl_lightning.errors import ConfigurationError

datasets: Any = pytest.importorskip("datasets")
flower: Any = pytest.importorskip("flwr_datasets")
partitioners: Any = pytest.importorskip("flwr_datasets.partitioner")
ROWS = {"x": [float(i) for i in range(12)], "label": [0, 1, 2] * 4, "user": ["b", "a", "c", "c"] * 3}


def partitioner(made: Any) -> Any:
    made.dataset = datasets.Dataset.from_dict(ROWS)
    return made


def values(data: FlowerDatasets) -> list[list[float]]:
    return [[float(row["x"]) for row in data.client_dataset(client)] for client in range(data.num_clients)]


def test_a_partitioner() -> None:
    data = FlowerDatasets(partitioner(partitioners.IidPartitioner(num_partitions=3)), columns=["x", "label"])
    assert data.sizes.tolist() == [4, 4, 4]
    counts = data.class_counts()
    assert counts is not None
    assert counts.sum(0).tolist() == [4, 4, 4]
    (batch,) = data.client_batches(0, torch.Generator())
    assert [part.shape for part in batch] == [(4,), (4,)]


def test_every_example_is_at_the_partitioners_client() -> None:
    made = partitioner(
        partitioners.DirichletPartitioner(3, partition_by="label", alpha=0.5, min_partition_size=1, seed=1)
    )
    parts = values(FlowerDatasets(made))
    assert parts == [list(made.load_partition(k)["x"]) for k in range(3)]
    assert sorted(x for part in parts for x in part) == list(range(12))


def test_clients_hold_out() -> None:
    """Each keeps back two of its four examples; columns and images alike."""
    for settings in ({}, {"columns": ["x", "label"]}):
        data = FlowerDatasets(partitioner(partitioners.IidPartitioner(num_partitions=3)), held_out=0.5, **settings)
        assert data.sizes.tolist() == [2, 2, 2]
        seen = values(FlowerDatasets(data.source)) if not settings else []
        for client, whole in enumerate(seen):
            (batch,) = data.held_out_batches(client)
            assert sorted([*batch["x"].tolist(), *values(data)[client]]) == sorted(whole)
    made = partitioners.NaturalIdPartitioner(partition_by="user")
    made.dataset = images(30)
    data = FlowerDatasets(made, held_out=0.2)
    assert data.sizes.tolist() == [8, 8, 8]
    for client in range(3):
        (batch,) = data.held_out_batches(client)
        assert [tuple(part.shape) for part in batch] == [(2, 1, 28, 28), (2,)]
    with pytest.raises(ConfigurationError, match=r"held_out must be in \[0, 1\)"):
        FlowerDatasets(made, held_out=1.0)


def test_natural_ids_name_the_clients() -> None:
    """Rows 0, 4 and 8 are b's. Other partitioners know no ids, and an option comes before the ids."""
    made = partitioners.NaturalIdPartitioner(partition_by="user")
    data = FlowerDatasets(partitioner(made))
    assert data.client_names is not None
    assert sorted(data.client_names) == ["a", "b", "c"]
    assert values(data)[data.client_names.index("b")] == [0, 4, 8]
    assert FlowerDatasets(partitioner(partitioners.IidPartitioner(num_partitions=3))).client_names is None
    assert FlowerDatasets(made, client_names=["x", "y", "z"]).client_names == ["x", "y", "z"]


def test_a_federated_dataset_of_files(tmp_path: Path) -> None:
    """It reads its files in prepare_data; the split test serves to evaluate. A client may train twice, for a check."""
    for name in ("train", "test"):
        datasets.Dataset.from_dict(ROWS).to_csv(tmp_path / f"{name}.csv")
    files = {name: str(tmp_path / f"{name}.csv") for name in ("train", "test")}
    source = flower.FederatedDataset(
        dataset="csv", partitioners={"train": 4}, data_files=files, cache_dir=str(tmp_path / "cache")
    )
    seen: list[int] = []

    class Reads(Linear):
        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            seen.append(len(batch["label"]))
            return self.w.sum()

        def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
            seen.append(-len(batch["label"]))

    data = FlowerDatasets(source, test="test", batch_size=8)
    trainer().fit(FederatedOrchestrator(Reads(1), on_bad_update="raise"), datamodule=data)
    assert seen[:4] == [3, 3, 3, 3]
    assert seen[-2:] == [-8, -4]
    with pytest.raises(ConfigurationError, match=r"expected split to have a partitioner, got valid: .* train"):
        FlowerDatasets(source, split="valid").prepare_data()


def test_a_partitioner_has_no_splits() -> None:
    made = partitioner(partitioners.IidPartitioner(num_partitions=3))
    for source in (made, "mnist"):
        with pytest.raises(ConfigurationError, match="expected a FederatedDataset, or a Partitioner and a test set"):
            FlowerDatasets(source, test="test")
    assert len(next(iter(FlowerDatasets(made, test=made.dataset).val_dataloader()))["x"]) == 12


def images(count: int) -> Any:
    """Png images of random bytes; image i is of class i mod 10 and of user i mod 3."""
    pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(num_classes=10), user=datasets.Value("string")
    )
    columns = {"label": [i % 10 for i in range(count)], "user": [str(i % 3) for i in range(count)]}
    return datasets.Dataset.from_dict({"image": list(map(Image.fromarray, pixels)), **columns}, features=features)


@pytest.mark.parametrize("memory_gib", [4.0, 1e-9])
def test_images_are_those_of_hugging_face(memory_gib: float) -> None:
    """The same clients by a natural id and by a column; in memory, and decoded example by example."""
    made = partitioners.NaturalIdPartitioner(partition_by="user")
    made.dataset = images(30)
    data = FlowerDatasets(made, test=images(6), batch_size=8, memory_gib=memory_gib)
    other = HuggingFace(images(30), test=images(6), client="user", batch_size=8)
    assert data.num_classes == 10
    assert data.measured == other.measured == {"mean and std": "set mean and std"}
    counts, other_counts = data.class_counts(), other.class_counts()
    assert counts is not None
    assert other_counts is not None
    assert counts.tolist() == other_counts.tolist()
    for client in range(3):
        batches = [d.client_batches(client, torch.Generator().manual_seed(1)) for d in (data, other)]
        for batch, expected in zip(*batches, strict=True):
            for each, same in zip(
                data.on_after_batch_transfer(batch, 0), other.on_after_batch_transfer(expected, 0), strict=True
            ):
                assert torch.equal(each, same)
    (test,) = data.val_dataloader()
    assert torch.equal(data.on_after_batch_transfer(test, 0)[0], other.on_after_batch_transfer(test, 0)[0])


def test_constants_are_measured_on_what_trains() -> None:
    """Not on what clients hold out."""
    made = partitioners.NaturalIdPartitioner(partition_by="user")
    made.dataset = images(30)
    data = FlowerDatasets(made, test=images(6), held_out=0.5)
    data.setup("fit")
    trained = np.stack([image.numpy() for client in range(3) for image, _ in data.client_dataset(client)]) / 255  # type: ignore[attr-defined]
    (test,) = data.val_dataloader()
    inputs, _ = data.on_after_batch_transfer(test, 0)
    expected = (test[0].numpy() / 255 - trained.mean()) / trained.std()
    assert np.allclose(inputs.numpy(), expected, atol=1e-5)


def test_a_yaml_of_the_manual_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With parquet files on disk in place of the data set of the hub that the manual names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    manual = (Path(__file__).parents[3] / "docs" / "how-to" / "own-data.md").read_text()
    (block,) = [part for part in manual.split("```yaml\n") if "class_path: FlowerDatasets" in part[:60]]
    Path("hub").mkdir()
    for name, count in (("train", 60), ("test", 20)):
        images(count).to_parquet(f"hub/{name}.parquet")
    text = block.partition("```")[0]
    assert "dataset: ylecun/mnist, partitioners: {train: 100}" in text
    Path("flower.yaml").write_text(text.replace("ylecun/mnist", str(tmp_path / "hub")).replace("100", "4"))
    fit("--config=flower.yaml", "--trainer.max_epochs=2", config="mnist_gh.yaml")
    table = rows("runs/mnist_gh/version_0/metrics.csv")
    assert "val/top1" in table[-1]


@pytest.mark.parametrize(
    ("change", "test", "message"),
    [
        ({"x": [1.0, None] * 6}, {}, "expected column x of the train set to be complete, got 2 missing values"),
        ({}, {"x": [1.0, None] * 6}, "expected column x of the test set to be complete, got 6 missing values"),
        ({"label": [0, None, 1] * 4}, {}, "expected column label of the train set to be complete"),
        ({}, {"label": ["a", "b", "c"] * 4}, "expected the column label of the test set to be Value('int64'), as in"),
    ],
)
def test_what_the_library_lets_pass(change: dict[str, Any], test: dict[str, Any], message: str) -> None:
    made = partitioners.IidPartitioner(num_partitions=3)
    made.dataset = datasets.Dataset.from_dict(ROWS | change)
    with pytest.raises(ConfigurationError) as caught:
        FlowerDatasets(made, test=datasets.Dataset.from_dict(ROWS | test)).setup("fit")
    assert str(caught.value).startswith(message)


def test_other_names_of_the_classes_are_refused() -> None:
    def named(*names: str) -> Any:
        return datasets.Dataset.from_dict(ROWS).cast_column("label", datasets.ClassLabel(names=list(names)))

    made = partitioners.IidPartitioner(num_partitions=3)
    made.dataset = named("ant", "bee", "cat")
    with pytest.raises(ConfigurationError, match="expected class 0 of the column label in the test set to be ant, as"):
        FlowerDatasets(made, test=named("bee", "cat", "ant")).setup("fit")
    with pytest.raises(ConfigurationError, match=r"expected a datasets\.Dataset .*, got list"):
        FlowerDatasets(made, test=[1]).setup("fit")


@pytest.mark.parametrize("users", [["a", None, "c"] * 4, [1.0, float("nan")] * 6])
def test_clients_without_a_name(users: list[Any]) -> None:
    """The partitioner raises a TypeError or a KeyError."""
    made = partitioners.NaturalIdPartitioner(partition_by="user")
    made.dataset = datasets.Dataset.from_dict(ROWS | {"user": users})
    with pytest.raises(ConfigurationError) as caught:
        FlowerDatasets(made).setup("fit")
    assert str(caught.value).startswith("expected a data set that NaturalIdPartitioner can divide, got ")
    assert "\n" not in str(caught.value)
