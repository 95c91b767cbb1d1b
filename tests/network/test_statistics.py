"""What sites tell of their data, joined: what numpy and pandas compute on the joined data."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image

from fl_lightning import ConfigurationError, TrainingError
from fl_lightning.datamodules import ImageFolder, Table, Tensors
from fl_lightning.engine.federation.data import FederatedData
from fl_lightning.engine.sites.facts import Facts
from fl_lightning.engine.sites.messages import pack
from fl_lightning.network.statistics import (
    KIND,
    Statistics,
    combine,
    pack_statistics,
    settings_of,
    statistics_of,
    told_counts,
    unpack_statistics,
    write_statistics,
)

EXACT: dict[str, Any] = {"rel": 1e-12, "abs": 0}
SITES = {"anna": 300, "berlin": 7, "cork": 60}


def loaded(data: FederatedData) -> FederatedData:
    data.prepare_data()
    data.setup("fit")
    return data


def told_over_a_wire(data: FederatedData, smallest: int = 5) -> Statistics:
    return unpack_statistics(pack_statistics(statistics_of(data, [0], smallest)))


def write_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Tables with a column of years, whose deviation is a small part of its mean; cork has no class c."""
    draw = np.random.default_rng(0)
    tables = {}
    for number, (site, size) in enumerate(SITES.items()):
        year = 2000 + number + draw.normal(scale=0.3, size=size)
        classes = draw.choice(["a", "b"] if site == "cork" else ["a", "b", "c"], size=size)
        columns = {"client": site, "year": year, "dose": draw.lognormal(size=size) * 1e-6, "ill": classes}
        pd.DataFrame(columns).to_csv(folder / f"{site}.csv", index=False)
        tables[site] = pd.read_csv(folder / f"{site}.csv")
    return tables


def test_tables_are_those_of_pandas_on_the_joined_rows(tmp_path: Path) -> None:
    tables = write_tables(tmp_path)
    told = {site: told_over_a_wire(loaded(Table(f"{tmp_path}/{site}.csv", "ill"))) for site in SITES}
    together = combine(told)
    rows = pd.concat(tables.values())
    assert together.names == ["year", "dose"]
    assert together.mean == pytest.approx(rows[["year", "dose"]].mean().tolist(), **EXACT)
    assert together.std == pytest.approx(rows[["year", "dose"]].std(ddof=0).tolist(), **EXACT)
    assert together.classes == ["a", "b", "c"]


def test_a_config_of_the_statistics_makes_all_sites_alike(tmp_path: Path) -> None:
    """All number the classes and scale the features alike; joined, the features have the mean 0 and the deviation 1."""
    write_tables(tmp_path)
    data = {site: loaded(Table(f"{tmp_path}/{site}.csv", "ill")) for site in SITES}
    assert len({tuple(Facts.of(own, 0, 0).classes) for own in data.values()}) == 2  # type: ignore[arg-type]  # names
    told = {site: statistics_of(own, [0]) for site, own in data.items()}
    write_statistics(tmp_path / "statistics.yaml", data["anna"], told, combine(told))
    arguments = yaml.safe_load((tmp_path / "statistics.yaml").read_text())["data"]["init_args"]
    assert list(arguments) == ["mean", "std", "classes"]
    alike = [loaded(Table(f"{tmp_path}/{site}.csv", "ill", **arguments)) for site in SITES]
    facts = [Facts.of(own, 0, 0) for own in alike]
    assert len({str((fact.classes, fact.scaling)) for fact in facts}) == 1
    features = torch.cat([torch.stack([row[0] for row in own.client_dataset(0)]) for own in alike]).double()  # type: ignore[attr-defined]  # a Subset
    assert features.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert features.std(0, correction=0).tolist() == pytest.approx([1, 1], abs=1e-6)


def write_images(folder: Path, channels: int) -> dict[str, NDArray[np.uint8]]:
    draw = np.random.default_rng(1)
    pixels = {}
    for number, site in enumerate(SITES):
        images = draw.integers(0, 100 + 70 * number, (10 + number, 6, 6, channels), dtype=np.uint8)
        pixels[site] = images
        for split in ("train", "test"):
            for index, image in enumerate(images):
                place = folder / site / split / ("ill" if index % 3 else "well")
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image.squeeze()).save(place / f"{index}.png")
    return pixels


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_those_of_numpy_on_the_joined_images(channels: Any, tmp_path: Path) -> None:
    pixels = write_images(tmp_path, channels)
    told = {}
    for site in SITES:
        own = loaded(ImageFolder(f"{tmp_path}/{site}", channels=channels, cache=None, num_clients=1))
        told[site] = told_over_a_wire(own, smallest=3)
    together = combine(told)
    values = np.concatenate([*pixels.values()]).astype(np.float64) / 255
    assert together.mean == pytest.approx(values.mean((0, 1, 2)).tolist(), **EXACT)
    assert together.std == pytest.approx(values.std((0, 1, 2)).tolist(), **EXACT)
    assert together.classes == ["ill", "well"]
    assert together.counts == [6 + 7 + 8, 4 + 4 + 4]
    assert list(settings_of(own, together)) == ["mean", "std"]


def test_one_site_of_images_is_what_the_data_module_measures(tmp_path: Path) -> None:
    write_images(tmp_path, 3)
    own: Any = loaded(ImageFolder(f"{tmp_path}/anna", cache=None, num_clients=2, held_out=0.2))
    together = combine({"anna": statistics_of(own, [0, 1])})
    assert together.mean == pytest.approx(own.mean, **EXACT)
    assert together.std == pytest.approx(own.std, **EXACT)


def test_arrays_of_floats_have_classes_alone() -> None:
    arrays = (torch.rand(40, 3), torch.arange(40) % 4)
    own = loaded(Tensors(train=arrays, test=arrays, num_clients=1))
    together = combine({"anna": statistics_of(own, [0])})
    assert settings_of(own, together) == {"num_classes": 4}
    assert together.counts == [10, 10, 10, 10]


def test_a_constant_column_has_the_deviation_1(tmp_path: Path) -> None:
    told = {}
    for site, size in (("a", 7), ("b", 11), ("c", 300)):
        pd.DataFrame({"client": site, "x": 0.1, "ill": [0, 1, *[1] * (size - 2)]}).to_csv(
            tmp_path / "a.csv", index=False
        )
        told[site] = statistics_of(loaded(Table(f"{tmp_path}/a.csv", "ill")), [0])
    assert combine(told).std == [1.0]


def test_a_count_that_would_follow_is_not_told() -> None:
    """Of 40 + 9 + 3 examples, 3 would be the rest: 9 is not told either. 0 is no more told than 3."""
    assert told_counts([40, 9, 3], 5) == [40, None, None]
    assert told_counts([40, 0, 3], 5) == [40, None, None]
    assert told_counts([40, 0], 5) == [None, None]
    assert told_counts([4], 5) == [None]
    assert told_counts([40, 0, 3], 0) == [40, 0, 3]


def test_too_few_examples_tell_nothing(tmp_path: Path) -> None:
    write_tables(tmp_path)
    own = loaded(Table(f"{tmp_path}/berlin.csv", "ill"))
    with pytest.raises(ConfigurationError, match=r"expected 8 training examples at least .*, got 7"):
        statistics_of(own, [0], smallest=8)


GOOD = Statistics(20, ["a", "b"], [12, 8], ["x"], [20], [3.0], [4.0])
IMAGES = Statistics(20, None, [], [], [400], [200.0], [90.0])


@pytest.mark.parametrize("told", [GOOD, IMAGES, replace(GOOD, counts=[None, None]), replace(GOOD, classes=[1, 2])])
def test_what_is_told_arrives(told: Statistics) -> None:
    assert unpack_statistics(pack_statistics(told)) == told


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": -1},
        {"size": 0, "classes": None, "counts": [], "values": [0]},
        {"size": 2**60},
        {"size": True},
        {"counts": [12, 9]},
        {"counts": [12]},
        {"counts": [-1, 21]},
        {"counts": "ab"},
        {"classes": ["a", "a"]},
        {"classes": ["a", 1]},
        {"classes": ["a", "b\n- evil: 1"]},
        {"classes": ["a", "\x1b[2J"]},
        {"classes": ["a", "b" * 1000]},
        {"classes": ["a", ""]},
        {"names": ["x\ny"]},
        {"names": [["x"]]},
        {"names": ["x", "y"]},
        {"names": ["x"] * 20_000},
        {"sums": [float("nan")]},
        {"squares": [float("inf")]},
        {"squares": [-1.0]},
        {"sums": [1, 2]},
        {"sums": ["1"]},
        {"values": [19]},
        {"values": [0]},
        {"more": 1},
        {"kind": "welcome"},
        {"names": [], "sums": [30.0]},  # the mean of channels is above 1
        {"names": [], "sums": [3.0], "squares": [4.0]},  # values in [0, 1] with this mean vary less
    ],
)
def test_what_no_examples_have_is_refused(wrong: dict[str, Any]) -> None:
    plain = {"kind": KIND, **asdict(GOOD), **wrong}
    with pytest.raises(TrainingError, match="expected the statistics of a site, got"):
        unpack_statistics(pack(plain))


def test_a_message_that_lacks_something_is_refused() -> None:
    plain = {"kind": KIND, **asdict(GOOD)}
    del plain["sums"]
    with pytest.raises(TrainingError, match="expected the statistics of a site, got others"):
        unpack_statistics(pack(plain))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"names": ["y"]}, r"the same columns, got \['x'\] at anna and \['y'\] at berlin"),
        ({"names": [], "values": [], "sums": [], "squares": []}, "the same columns"),
        ({"classes": [1, 2]}, r"the same type of classes, got \['str'\] at anna and \['int'\] at berlin"),
    ],
)
def test_sites_that_do_not_go_together_are_named(other: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        combine({"anna": GOOD, "berlin": replace(GOOD, **other)})


def test_the_file_says_what_was_told(tmp_path: Path) -> None:
    path = tmp_path / "statistics.yaml"
    data = Table("none.csv", "ill")
    told = {"anna": GOOD, "berlin": replace(GOOD, classes=["b", "c"], counts=[None, None])}
    write_statistics(path, data, told, combine(told))
    text = path.read_text()
    assert "# anna: 20 training examples\n" in text
    assert "# class a: 12; unknown at berlin\n# class b: not told by all sites\n" in text
    assert "# class c: not told by all sites; unknown at anna\n" in text
    assert yaml.safe_load(text)["data"]["init_args"]["classes"] == ["a", "b", "c"]


def test_classes_given_to_a_table_are_checked(tmp_path: Path) -> None:
    write_tables(tmp_path)
    with pytest.raises(ConfigurationError, match=r"expected ill to be one of the classes a, b, got 'c': add it"):
        loaded(Table(f"{tmp_path}/anna.csv", "ill", classes=["a", "b"]))
    with pytest.raises(ConfigurationError, match=r"expected mean and std > 0 of each of 2 features \(year, dose\)"):
        loaded(Table(f"{tmp_path}/anna.csv", "ill", mean=[0.0], std=[1.0]))
