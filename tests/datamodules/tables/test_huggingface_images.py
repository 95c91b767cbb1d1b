"""HuggingFace: images of real data sets on disk, decoded as those in folders are."""

import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.command import fit, refused, rows, run
from lib.image_files import write_16_bits
from lib.toy import Linear, trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from PIL import Image
from torch import Tensor

from fl_lightning import FederatedOrchestrator
from fl_lightning.datamodules import HuggingFace, RandomFlip, Tensors
from fl_lightning.engine.sites.facts import Facts
from fl_lightning.errors import ConfigurationError
from fl_lightning.network.statistics import combine, settings_of, statistics_of

datasets: Any = pytest.importorskip("datasets")
IMAGES = {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10), "writer": datasets.Value("string")}
SMALL = ("--config=mnist_gh.yaml", "--trainer.max_epochs=2", "--data=HuggingFace")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, and a cache of ``datasets`` of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def pixels(count: int, shape: tuple[int, ...] = (28, 28), seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def images(arrays: Any, **columns: Any) -> Any:
    """A data set of png images; image i is of class i mod 10 and of writer i mod 3."""
    count = len(arrays)
    own = {"label": [i % 10 for i in range(count)], "writer": [f"w{i % 3}" for i in range(count)]} | columns
    features = datasets.Features({name: kind for name, kind in IMAGES.items() if name in ("image", *own)})
    return datasets.Dataset.from_dict({"image": list(map(Image.fromarray, arrays)), **own}, features=features)


def both(train: int = 60, test: int = 20) -> Any:
    return datasets.DatasetDict(train=images(pixels(train)), test=images(pixels(test, seed=1)))


def decoded(data: HuggingFace) -> Tensor:
    """The images of all training examples, as bytes."""
    examples: Any = data.client_dataset(0)
    return torch.stack([examples[i][0] for i in range(len(examples))])


@pytest.mark.parametrize("kind", ["saved", "parquet", "folders"])
def test_a_shipped_config_trains_on_a_folder(kind: str) -> None:
    if kind == "saved":
        both().save_to_disk("hfd")
    for name, split in both().items() if kind != "saved" else ():
        file = Path("hfd", f"{name}-00000-of-00001.parquet" if kind == "parquet" else f"{name}/0.parquet")
        file.parent.mkdir(parents=True, exist_ok=True)
        split.to_parquet(file)
    result = run("fit", *SMALL, "--data.train=hfd", "--data.client=writer")
    assert result.status == 0, result.err
    table = rows("runs/mnist_gh/version_0/metrics.csv")
    assert [row["val/top1"] for row in table if "val/top1" in row][1:] != []


def test_sites_compare_the_scaling_and_join_the_statistics_of_images() -> None:
    """Two sites that measured their own means were taken for alike, since the data set kept them to itself."""
    arrays = [pixels(20), pixels(30, seed=1) // 2]
    told = {}
    for number, site in enumerate(("anna", "berlin")):
        data = HuggingFace(images(arrays[number]), num_clients=1)
        expected = arrays[number].astype(float) / 255
        scaling: Any = Facts.of(data, 0, 0).scaling
        assert scaling[0] == pytest.approx([expected.mean()], rel=1e-12)
        assert scaling[1] == pytest.approx([expected.std()], rel=1e-12)
        told[site] = statistics_of(data, [0], smallest=2)
    together = combine(told)
    values = np.concatenate(arrays).astype(float) / 255
    assert together.mean == pytest.approx([values.mean()], rel=1e-12)
    assert together.std == pytest.approx([values.std()], rel=1e-12)
    assert list(settings_of(data, together)) == ["mean", "std"]


def test_one_parquet_file_is_a_training_set() -> None:
    images(pixels(6)).to_parquet("my.parquet")
    data = HuggingFace("my.parquet", client="writer")
    assert data.client_names == ["w0", "w1", "w2"]
    assert not is_overridden("val_dataloader", data)


def test_the_same_images_end_in_the_same_weights() -> None:
    """As bytes in Tensors and as png files in a data set, with constants that are given and that are measured."""
    arrays = pixels(90)
    labels = np.arange(90) % 10
    np.savez("my.npz", train_x=arrays[:60, None], train_y=labels[:60], test_x=arrays[60:, None], test_y=labels[60:])
    splits = {"train": images(arrays[:60]), "test": images(arrays[60:])}
    datasets.DatasetDict(splits).save_to_disk("hfd")
    data = HuggingFace("hfd", num_clients=1)
    data.setup("fit")
    source: Any = data
    partition = "--data.partition={class_path: Dirichlet, init_args: {alpha: 0.5}}"
    common = (SMALL[0], SMALL[1], "--data.num_clients=4", partition)
    fit(*common[1:], "--data=HuggingFace", "--data.train=hfd", *common[2:], config=common[0].partition("=")[2])
    constants = (f"--data.mean=[{source.mean[0]!r}]", f"--data.std=[{source.std[0]!r}]")
    fit(*common[1:], "--data=Tensors", "--data.path=my.npz", *common[2:], *constants, config="mnist_gh.yaml")
    states = []
    for version in (0, 1):
        file = next(Path(f"runs/mnist_gh/version_{version}").rglob("last.ckpt"))
        states.append(torch.load(file, weights_only=False)["state_dict"])
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    first, second = (rows(f"runs/mnist_gh/version_{version}/metrics.csv") for version in (0, 1))
    assert [row.get("val/top1") for row in first] == [row.get("val/top1") for row in second]


def test_bytes_become_inputs_as_of_image_data() -> None:
    arrays = pixels(12, (4, 6, 3))
    whole = datasets.DatasetDict(train=images(arrays), test=images(pixels(4, (4, 6, 3), seed=1)))
    data = HuggingFace(whole, num_clients=1)
    assert decoded(data).tolist() == arrays.transpose(0, 3, 1, 2).tolist()
    assert data.num_classes == 10
    source: Any = data
    scaled = torch.from_numpy(arrays).double() / 255
    assert source.mean == pytest.approx(scaled.mean((0, 1, 2)).tolist())
    assert source.std == pytest.approx(scaled.flatten(0, 2).std(0, correction=0).tolist())
    (test,) = data.val_dataloader()
    inputs, labels = data.on_after_batch_transfer(test, 0)
    assert labels.tolist() == [0, 1, 2, 3]
    assert inputs.dtype == torch.float32
    expected = (torch.from_numpy(pixels(4, (4, 6, 3), seed=1)).permute(0, 3, 1, 2) / 255).sub(
        torch.tensor(source.mean).view(3, 1, 1)
    ) / torch.tensor(source.std).view(3, 1, 1)
    assert torch.allclose(inputs, expected, atol=1e-6)
    assert [*data.measured] == ["mean and std"]
    assert not HuggingFace(whole, num_clients=1, mean=(0.5,) * 3, std=(0.5,) * 3).measured
    plain = HuggingFace(whole, num_clients=1, normalize=False)
    assert not plain.measured
    plain_inputs = plain.on_after_batch_transfer(test, 0)[0]
    assert (plain_inputs.min().item(), plain_inputs.max().item()) == pytest.approx(
        (test[0].min().item() / 255, test[0].max().item() / 255)
    )


@pytest.mark.parametrize("memory_gib", [4.0, 1e-9])
def test_constants_are_measured_on_what_trains(memory_gib: float) -> None:
    """Not on what clients hold out, also where nothing is fitted; decoded once, and example by example."""
    for settings in ({}, {"partition": [[0, 3, 4], [2, 7]], "client": None}):
        given: dict[str, Any] = {"client": "writer", "held_out": 0.4, "memory_gib": memory_gib, **settings}
        data = HuggingFace(images(pixels(30, (4, 6, 3))), **given)
        source: Any = data
        mean, std = source.mean, source.std
        data.setup("fit")
        trained = [image.numpy() for k in range(len(data.sizes)) for image, _ in data.client_dataset(k)]  # type: ignore[attr-defined]
        scaled = np.stack(trained) / 255
        assert mean == pytest.approx(scaled.mean((0, 2, 3)).tolist())
        assert std == pytest.approx(scaled.std((0, 2, 3)).tolist())


@pytest.mark.parametrize("memory_gib", [4.0, 1e-9])
def test_training_batches_alone_are_augmented(memory_gib: float) -> None:
    """Images whose left half is black: a flip makes the left half bright. Decoded once, and example by example."""
    arrays = np.zeros((40, 4, 4), np.uint8)
    arrays[:, :, 2:] = 255
    whole = datasets.DatasetDict(train=images(arrays), test=images(arrays))
    data = HuggingFace(
        whole, client="writer", augment=RandomFlip(), normalize=False, batch_size=40, memory_gib=memory_gib
    )
    batches = {
        "train": next(iter(data.client_batches(0, torch.Generator()))),
        "test": next(iter(data.val_dataloader())),
        "own": next(iter(data.held_out_batches(0))),
    }
    turned = {name: data.on_after_batch_transfer(batch, 0)[0][:, 0, 0, 0].sum() for name, batch in batches.items()}
    assert len(batches["own"][1]) == 14
    assert 0 < turned["train"] < 14
    assert turned["test"] == turned["own"] == 0


def test_what_does_not_fit_is_decoded_example_by_example() -> None:
    """The limit is half of the 60 images; values and constants are the same."""
    size = 60 * 28 * 28
    in_memory = HuggingFace(images(pixels(60)), num_clients=1)
    lazy = HuggingFace(images(pixels(60)), num_clients=1, memory_gib=size / 2 / 2**30)
    with pytest.warns(UserWarning, match=r"would take .* more than memory_gib=.*: they are decoded whenever"):
        lazy.setup("fit")
    assert torch.equal(decoded(lazy), decoded(in_memory))
    first: Any = lazy
    second: Any = in_memory
    assert (first.mean, first.std) == (second.mean, second.std)


def test_the_commonest_size_and_one_warning() -> None:
    arrays = [*pixels(5, (8, 6)), *pixels(2, (12, 12)), *pixels(1, (4, 6))]
    whole = datasets.DatasetDict(train=images(arrays), test=images(pixels(2, (9, 9), seed=1)))
    data = HuggingFace(whole, num_clients=1)
    with pytest.warns(UserWarning, match="sizes") as caught:
        data.setup("fit")
    assert decoded(data).shape == (8, 1, 8, 6)
    assert [str(each.message) for each in caught] == [
        "expected images of 6x8 pixels, got 5 of other sizes, such as 12x12: they are scaled until they cover 6x8, and "
        "their middle is cut out; set image_size for another size"
    ]
    assert decoded(data)[:5, 0].tolist() == np.asarray(arrays[:5]).tolist()
    other = HuggingFace(whole, num_clients=1, image_size=(5, 7), channels=3)
    assert decoded(other).shape == (8, 3, 5, 7)


def test_photographs_are_turned_upright() -> None:
    """Orientation 6 of a 6 x 4 image: its commonest size is the turned one, 4 x 6."""
    exif = Image.Exif()
    exif[0x0112] = 6
    array = pixels(1, (4, 6))[0]
    Image.fromarray(array).save("turned.png", exif=exif)
    features = datasets.Features(image=IMAGES["image"], label=IMAGES["label"])
    table = datasets.Dataset.from_dict({"image": ["turned.png"], "label": [0]}, features=features)
    assert decoded(HuggingFace(table, num_clients=1))[0, 0].tolist() == np.rot90(array, -1).tolist()


def test_each_client_evaluates_on_its_own_test_rows() -> None:
    """Test row i is of writer i mod 3; writer w3 does not train. A held out share comes from the training set."""
    test = images(pixels(7, seed=1), writer=["w0", "w1", "w2", "w0", "w3", "w2", "w0"])
    whole = datasets.DatasetDict(train=images(pixels(30)), test=test)
    data = HuggingFace(whole, client="writer", batch_size=2)
    own = [[int(label) for _, labels in data.held_out_batches(client) for label in labels] for client in range(3)]
    assert own == [[0, 3, 6], [1], [2, 5]]
    held = HuggingFace(whole, client="writer", held_out=0.2)
    assert [sum(len(labels) for _, labels in held.held_out_batches(client)) for client in range(3)] == [2, 2, 2]
    assert held.sizes.tolist() == [8, 8, 8]
    table = datasets.Dataset.from_dict({"x": [[0.0], [1.0], [2.0]], "user": ["b", "a", "b"]})
    plain = HuggingFace(table, test=table, client="user")
    assert [[batch["x"].flatten().tolist() for batch in plain.held_out_batches(k)] for k in (0, 1)] == [
        [[1]],
        [[0, 2]],
    ]


def test_the_column_of_classes() -> None:
    """The column label, else the only one of type ClassLabel, else one that is named, of numbers or truth values."""
    renamed = images(pixels(6)).rename_column("label", "character")
    assert HuggingFace(renamed, client="writer").num_classes == 10
    smiles = images(pixels(6)).remove_columns("label").add_column("smiles", [True, False] * 3)
    data = HuggingFace(smiles, client="writer", label="smiles")
    assert data.num_classes == 2
    with pytest.raises(ConfigurationError, match=r"expected a column of classes beside image, got image, .*by label"):
        HuggingFace(smiles, client="writer")
    with pytest.raises(
        ConfigurationError, match=r"classes from 0 in the column writer of the train set, got <U2 from w0"
    ):
        HuggingFace(smiles, client="writer", label="writer")
    unknown = images(pixels(3)).cast_column("label", datasets.Value("int64"))
    unlabelled = unknown.remove_columns("label").add_column("label", [0, -1, 2])
    with pytest.raises(
        ConfigurationError, match="classes from 0 in the column label of the test set, got int64 from -1"
    ):
        HuggingFace(unknown, test=unlabelled, client="writer")


def test_other_columns_stay_as_they_are() -> None:
    raw = HuggingFace(images(pixels(6)), client="writer", columns=["label", "image"])
    (batch,) = raw.client_batches(0, torch.Generator())
    assert [part.dtype for part in batch] == [torch.int64, torch.uint8]
    own = HuggingFace(images(pixels(6)).with_format("numpy"), client="writer")
    assert set(own.client_dataset(0)[0]) == {"image", "label"}
    text = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    with pytest.raises(ConfigurationError, match=r"expected one column of images, .* for channels, augment, got other"):
        HuggingFace(text, num_clients=1, channels=3, augment=RandomFlip())


@pytest.mark.parametrize(("name", "words"), [("16", "8 bits per channel, got more"), ("cut", "unreadable")])
def test_an_image_that_cannot_be_decoded_is_named(name: str, words: str) -> None:
    write_16_bits(Path("16.png"), 4095, 1)
    Image.fromarray(pixels(1)[0]).save("good.png")
    Path("cut.png").write_bytes(Path("good.png").read_bytes()[:200])
    files = [{"bytes": Path(f"{file}.png").read_bytes(), "path": None} for file in ("good", name)]
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(num_classes=2))
    table = datasets.Dataset.from_dict({"image": files, "label": [0, 1]}, features=features)
    table.save_to_disk("hfd")
    line = refused("fit", *SMALL, "--data.train=hfd", "--data.num_clients=1", "--data.partition=IID")
    assert words in line
    assert "row 1 of the train set" in line


def test_the_network_gets_the_sizes_of_the_images() -> None:
    """81 pixels and 12 classes in place of a config's 784 and 10."""
    kinds = datasets.Features(IMAGES | {"label": datasets.ClassLabel(num_classes=12)})
    split = images(pixels(6, (9, 9))).cast(kinds)
    datasets.DatasetDict(train=split, test=split).save_to_disk("hfd")
    result = run("fit", *SMALL, "--data.train=hfd", "--data.client=writer")
    assert result.status == 0, result.err
    assert "val/top1" in rows("runs/mnist_gh/version_0/metrics.csv")[-1]


def test_a_truncated_parquet_file() -> None:
    Path("hfd").mkdir()
    images(pixels(6)).to_parquet("hfd/train.parquet")
    content = Path("hfd/train.parquet").read_bytes()
    Path("hfd/train.parquet").write_bytes(content[: len(content) // 2])
    line = refused("fit", *SMALL, "--data.train=hfd", "--data.client=writer")
    kinds = "(parquet, jsonl, json, csv or txt)"
    assert line.startswith(f"expected a folder that save_to_disk wrote, or files {kinds}, in {Path('hfd').absolute()}")
    assert "arquet" in line.partition(", got ")[2]


def test_a_name_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name can be looked up; the library alone would try again for half a minute."""

    def unknown(*address: Any, **options: Any) -> Any:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    start = time.monotonic()
    line = refused("fit", *SMALL, "--data.train=somebody/faces", "--data.client=writer")
    assert line == (
        "expected to read somebody/faces, which is no file or folder here, from the hub, got 'no answer from the hub': "
        "correct the name, or save the data set where there is a network, with save_to_disk, and point train to that "
        "folder"
    )
    assert time.monotonic() - start < 20


def test_decoding_takes_little_more_than_the_images() -> None:
    count = 2000
    images(pixels(count, (64, 64, 3))).save_to_disk("hfd")
    data = HuggingFace("hfd", num_clients=10)
    tracemalloc.start()
    try:
        data.setup("fit")
        source: Any = data
        assert source.mean
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * count * 3 * 64 * 64


def test_tensors_and_images_have_the_same_batches() -> None:
    arrays = pixels(30)
    labels = np.arange(30) % 10
    tensors = Tensors(train=(arrays[:, None], labels), test=(arrays[:, None], labels), num_clients=3)
    data = HuggingFace(images(arrays), num_clients=3)
    for client in range(3):
        batches = [d.client_batches(client, torch.Generator().manual_seed(1)) for d in (tensors, data)]
        for (x, y), (u, v) in zip(*batches, strict=True):
            assert torch.equal(x, u)
            assert torch.equal(y, v)


def test_a_run_in_memory_and_one_that_decodes_as_it_goes_see_the_same() -> None:
    seen: dict[float, list[float]] = {4.0: [], 1e-9: []}
    for memory, values in seen.items():

        class Reads(Linear):
            def training_step(self, batch: Any, batch_idx: int, into: list[float] = values) -> Tensor:
                into.append(float(batch[0].double().sum()))
                return self.w.sum()

        data = HuggingFace(images(pixels(12)), client="writer", memory_gib=memory)
        trainer().fit(FederatedOrchestrator(Reads(1), on_bad_update="raise"), datamodule=data)
    assert seen[4.0] == pytest.approx(seen[1e-9], rel=1e-6)
    assert len(seen[4.0]) >= 3


def test_one_data_set_to_train_and_to_test_on() -> None:
    """It is decoded once, under its first name."""
    whole = images(pixels(6))
    data = HuggingFace(whole, whole, num_clients=2)
    data.setup("fit")
    assert sum(len(batch[1]) for batch in data.test_dataloader()) == int(data.sizes.sum()) == 6
