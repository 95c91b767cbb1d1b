"""Images by site: each folder of a site is a client."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lib.command import refused, run
from lib.toy import trainer
from PIL import Image
from torch import nn

from fl_lightning import FederatedOrchestrator
from fl_lightning.callbacks import PersonalEvaluation
from fl_lightning.datamodules import Dirichlet, DomainDirichlet, ImageFolder
from fl_lightning.errors import ConfigurationError
from fl_lightning.models import ImageClassifier

E, E_APART = "\u00e9", "e\u0301"  # é as one letter, and as a letter and an accent


def write(folder: Path, count: int, level: int, size: tuple[int, int] = (6, 4)) -> None:
    """Grey images of one level, as many as asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.full((*size, 3), level + number, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def levels(batches: Any) -> list[int]:
    return [int(image.flatten()[0]) for images, _ in batches for image in images]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three sites with cats and dogs; west has no dogs, and south a test set of its own."""
    write(tmp_path / "north" / "cat", 10, 10)
    write(tmp_path / "north" / "dog", 5, 100)
    write(tmp_path / "west" / "cat", 5, 40)
    (tmp_path / "west" / "dog").mkdir()
    write(tmp_path / "south" / "train" / "cat", 2, 60)
    write(tmp_path / "south" / "train" / "dog", 2, 160)
    write(tmp_path / "south" / "test" / "cat", 1, 200)
    (tmp_path / "south" / "test" / "dog").mkdir()
    return tmp_path


def test_each_site_is_a_client(root: Path) -> None:
    """With its name, and its own test images, a fifth of those of a site that has no test set."""
    data = ImageFolder(str(root), client="folder", cache=None)
    data.setup("fit")
    assert data.client_names == ["north", "south", "west"]
    assert data.class_names == ["cat", "dog"]
    assert data.shape == (3, 6, 4)
    assert data.sizes.tolist() == [12, 4, 4]
    counts = data.class_counts()
    assert counts is not None
    assert counts.sum(1).tolist() == [12, 4, 4]
    assert counts[2].tolist() == [4, 0]
    held_out = [levels(data.held_out_batches(client)) for client in range(3)]
    assert list(map(len, held_out)) == [3, 1, 1]
    assert held_out[1] == [200]
    assert sorted(levels(data.val_dataloader())) == sorted(chain.from_iterable(held_out))
    north = {int(image.flatten()[0]) for image, _ in data.client_dataset(0)}  # type: ignore[attr-defined]
    assert sorted([*north, *held_out[0]]) == [*range(10, 20), *range(100, 105)]


def test_the_test_images_of_a_site_depend_on_the_seed_and_the_site_alone(root: Path) -> None:
    def tested(seed: int) -> list[int]:
        return levels(ImageFolder(str(root), client="folder", cache=None, seed=seed).held_out_batches(0))

    first = tested(1)
    assert first != tested(2)
    write(root / "east" / "cat", 2, 80)
    (root / "east" / "dog").mkdir()
    assert levels(ImageFolder(str(root), client="folder", cache=None, seed=1).held_out_batches(1)) == first


def test_a_partition_pools_the_sites(root: Path) -> None:
    data = ImageFolder(str(root), domain="folder", cache=None, num_clients=2, partition=Dirichlet(0.5))
    data.setup("fit")
    assert int(data.sizes.sum()) == 20
    assert data.client_names is None


def test_what_is_not_used_is_not_decoded(root: Path) -> None:
    """A damaged image that no client gets does not matter, and the others are as if all were decoded."""

    def four(**settings: Any) -> ImageFolder:
        data = ImageFolder(str(root), (6, 4), client="folder", cache=None, **settings)
        data.setup("fit")
        return data

    part = four(train_examples=4)
    trained = levels(part.client_dataset(client)[:] for client in range(3))
    assert len(trained) == 4
    assert sorted(set(trained)) == sorted(trained)
    unused = next(level for level in range(10, 20) if level not in [*trained, *levels(part.val_dataloader())])
    (root / "north" / "cat" / f"{unused - 10}.png").write_bytes(b"damaged")
    again = four(train_examples=4)
    for client in range(3):
        assert torch.equal(again.client_dataset(client)[:][0], part.client_dataset(client)[:][0])
    with pytest.raises(ConfigurationError, match="unreadable"):
        four()


def other(root: Path, name: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    return folder


def write_one_image(root: Path) -> None:
    write(root / "east" / "cat", 1, 0)
    other(root, "east/dog")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: other(root, "east"), "expected .*east to hold a folder for each class"),
        (
            lambda root: write(root / "east" / "dgo", 3, 0),
            "expected the same class folders in every site of .*'cat' in .* and not in east",
        ),
        (
            lambda root: [write(root / "east" / "cat", 1, 0), other(root, "east/dog")],
            "expected at least 2 images in .*east",
        ),
        (lambda root: (root / "north" / "cat" / "0.png").write_bytes(b"\x89PNG"), "unreadable .*0.png"),
        (
            lambda root: write(root / "test" / "cat", 2, 0),
            r"expected a folder for each site in .*, got test, which name splits: leave client and domain out for",
        ),
        (
            lambda root: write(root / "west" / "Test" / "cat", 2, 0),
            "expected folders named train and test, .* in .*west, got Test beside cat, dog: rename them",
        ),
        (
            lambda root: write(root / "south" / "bird", 2, 0),
            "expected splits alone or classes alone in .*south, got train, test and bird: move the images",
        ),
        (
            lambda root: write(root / "south" / "test" / "Dog", 2, 0),
            "expected the classes of .*south/test in .*south/train, too, got no 'Dog': correct its name",
        ),
        (
            lambda root: [write(root / "north" / "cat" / name, 1, 0) for name in ("train", "val")],
            "expected the images of one split in .*north/cat, got folders train, val: put splits above the classes",
        ),
        (
            lambda root: (root / "latest").symlink_to("west"),
            "expected different folders, got .*latest and .*west, which a link makes the same",
        ),
        (
            lambda root: [write(root / name / "cat", 2, 0) for name in (f"caf{E}", f"caf{E_APART}")],
            r"names look different in .*, got 'cafe\\u0301' and 'caf\\xe9'",
        ),
    ],
    ids=[
        "no class",
        "another class",
        "one image",
        "damaged",
        "a split beside sites",
        "a split beside classes",
        "a class beside splits",
        "an unknown class to test",
        "splits below a class",
        "a site twice",
        "two sites that look the same",
    ],
)
def test_sites_that_cannot_be_used(root: Path, spoil: Any, message: str) -> None:
    spoil(root)
    with pytest.raises(ConfigurationError, match=message):
        ImageFolder(str(root), client="folder", cache=None).setup("fit")


def test_no_sites(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected a folder for each site in .*, got none"):
        ImageFolder(str(tmp_path), client="folder", cache=None).setup("fit")


def test_images_of_other_sizes_are_scaled_and_counted(root: Path) -> None:
    write(root / "west" / "cat", 3, 7, size=(9, 9))
    with pytest.warns(UserWarning, match=r"image_size is 6x4, the commonest size; [23] of 20 images"):
        ImageFolder(str(root), client="folder", cache=None).setup("fit")


CONFIG = ("fit", "--config=mnist_gh.yaml", "--data=ImageFolder", "--data.cache=null")


@pytest.mark.parametrize("monitor", ["ConflictMonitor", "PersonalEvaluation"])
def test_a_shipped_config_on_sites(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, monitor: str
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))
    result = run(
        *CONFIG,
        "--data.client=folder",
        f"--data.root={root}",
        "--trainer.max_epochs=2",
        f"--trainer.callbacks={monitor}",
    )
    assert result.status == 0, result.err
    assert "val/top1" in result.out
    assert "or say --data.client folder" in refused(*CONFIG, f"--data.root={root}")


def test_a_domain_that_does_not_train(root: Path) -> None:
    """All its images are test images, also those of its training set; each domain has its test images."""
    data = ImageFolder(str(root), domain="folder", leave_out=["south"], cache=None)
    data.setup("fit")
    assert data.client_names == ["north", "west"]
    by_domain = {name: levels(batches) for name, batches in data.domain_batches().items()}
    assert sorted(by_domain["south"]) == [60, 61, 160, 161, 200]
    assert by_domain["north"] == levels(data.held_out_batches(0))
    assert sum(map(len, by_domain.values())) == len(levels(data.val_dataloader())) == 9
    assert not ImageFolder(str(root), client="folder", cache=None).domain_batches()


@pytest.mark.parametrize("names", [["east"], ["north", "south", "west"]])
def test_domains_that_cannot_be_left_out(root: Path, names: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="leave_out must name some of north, south, west, and not all"):
        ImageFolder(str(root), domain="folder", leave_out=names, cache=None).setup("fit")


def test_accuracy_by_domain(root: Path) -> None:
    """Beside a plain evaluation of each domain's images."""
    data = ImageFolder(str(root), domain="folder", leave_out=["south"], cache=None)
    model = ImageClassifier(nn.Sequential(nn.Flatten(), nn.Linear(72, 2)), num_classes=2)
    fit = trainer(PersonalEvaluation())
    fit.fit(FederatedOrchestrator(model), datamodule=data)
    logged = {name: float(value) for name, value in fit.callback_metrics.items() if name.startswith("domain/top1")}
    own = {}
    for name, batches in data.domain_batches().items():
        correct: list[bool] = []
        for batch in batches:
            images, labels = data.on_after_batch_transfer(batch, 0)
            correct += (model(images).argmax(1) == labels).tolist()
        own[name] = sum(correct) / len(correct)
    left_out = own.pop("south")
    over = {"mean": sum(own.values()) / 2, "worst": min(own.values()), "left_out": left_out}
    assert logged == pytest.approx({f"domain/top1_{measure}": value for measure, value in over.items()})


def test_domains_are_evaluated_where_no_client_holds_out(root: Path) -> None:
    """Each domain is divided among two clients, which keep nothing back."""
    data = ImageFolder(str(root), domain="folder", cache=None, partition=DomainDirichlet(1.0, 2))
    model = ImageClassifier(nn.Sequential(nn.Flatten(), nn.Linear(72, 2)), num_classes=2)
    fit = trainer(PersonalEvaluation())
    fit.fit(FederatedOrchestrator(model), datamodule=data)
    assert data.client_names == [f"{site} {number}" for site in sorted(data.domain_batches()) for number in (1, 2)]
    named = {name.partition("/")[0] for name in fit.callback_metrics if "top1" in name}
    assert "domain" in named
    assert not named & {"held_out", "personal"}


def test_a_site_left_out_is_evaluated(root: Path) -> None:
    data = ImageFolder(str(root), client="folder", leave_out=["south"], cache=None)
    assert "south" in data.domain_batches()
    assert "south" not in (data.client_names or ())


def test_clients_and_a_partition_are_refused_together(root: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected client or partition, got both: leave one"):
        ImageFolder(str(root), client="folder", partition=DomainDirichlet(1.0))


def test_the_constants_are_those_of_the_images_that_train(root: Path) -> None:
    """Also where proxy images are read after them."""
    settings: dict[str, Any] = {"train_examples": 8, "proxy_per_class": 1, "proxy_source": "train"}
    data = ImageFolder(str(root), (6, 4), client="folder", cache=None, **settings)
    data.setup("fit")
    trained = levels(data.client_dataset(client)[:] for client in range(3))
    assert len(trained) == 8
    assert data.mean == pytest.approx([np.mean(trained) / 255] * 3)


@pytest.mark.parametrize(
    "names", [("train", "test"), ("Train", "Test"), ("train", "valid"), ("training", "testing"), ("train", "dev")]
)
def test_splits_are_neither_sites_nor_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    """Without sites, as sites and within sites; no refusal advises what the next one refuses."""
    for name in names:
        write(tmp_path / "splits" / name / "cat", 2, 0)
        write(tmp_path / "sites" / "oslo" / name / "cat", 2, 0)
    for settings in ({"client": "folder"}, {"domain": "folder"}):
        with pytest.raises(ConfigurationError, match=f"got {', '.join(sorted(names))}, which name splits: leave"):
            ImageFolder(str(tmp_path / "splits"), cache=None, **settings).setup("fit")  # type: ignore[arg-type]
    if names == ("train", "test"):
        return
    found = f"expected folders named train and test, .* got {', '.join(sorted(names))}: rename them"
    with pytest.raises(ConfigurationError, match=found) as caught:
        ImageFolder(str(tmp_path / "splits"), cache=None).setup("fit")
    assert "--data.client" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=found.replace(" .* ", " .*oslo, ")):
        ImageFolder(str(tmp_path / "sites"), client="folder", cache=None).setup("fit")


def test_sites_are_advised_where_there_are_sites(root: Path, tmp_path: Path) -> None:
    assert "or say --data.client folder if these are" in (ImageFolder(str(root)).missing() or "")
    told = ImageFolder(str(root / "north")).missing() or ""
    assert "got cat, dog: point root to such a folder" in told
    assert "--data.client" not in told


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("latest", "."),
        ("north/latest", "."),
        ("north/cat/latest", "."),
        ("north/cat/up", ".."),
        ("north/dog/top", "../.."),
    ],
)
def test_a_link_that_leads_back_adds_nothing(root: Path, link: str, target: str) -> None:
    """12, 4 and 4 images train, 3, 1 and 1 test, as without the link."""
    (root / link).symlink_to(target)
    data = ImageFolder(str(root), client="folder", cache=None)
    data.setup("fit")
    assert data.client_names == ["north", "south", "west"]
    assert data.class_names == ["cat", "dog"]
    assert data.sizes.tolist() == [12, 4, 4]
    assert len(levels(data.val_dataloader())) == 5


def test_sites_may_share_a_test_set_by_links(tmp_path: Path) -> None:
    write(tmp_path / "test" / "cat", 2, 50)
    for site in ("oslo", "rome"):
        write(tmp_path / "sites" / site / "train" / "cat", 3, 0)
        (tmp_path / "sites" / site / "test").symlink_to("../../test")
    data = ImageFolder(str(tmp_path / "sites"), client="folder", cache=None)
    assert [levels(data.held_out_batches(client)) for client in range(2)] == [[50, 51], [50, 51]]


@pytest.mark.parametrize("places", [("oslo", "rome"), ("oslo/train", "oslo/test"), ("train", "test")])
def test_classes_that_look_the_same_elsewhere(tmp_path: Path, places: tuple[str, str]) -> None:
    """In two sites, in two splits of one, and in two splits."""
    for place, accent in zip(places, (E, E_APART), strict=True):
        write(tmp_path / place / f"caf{accent}", 2, 0)
    client: Any = None if "train" in places else "folder"
    with pytest.raises(ConfigurationError, match=r"'cafe\\u0301' .which looks the same as 'caf\\xe9'.") as caught:
        ImageFolder(str(tmp_path), client=client, cache=None).setup("fit")
    assert "\n" not in str(caught.value)


def test_a_name_is_left_out_however_it_is_written(tmp_path: Path) -> None:
    """The folder's accent is apart from its letter, as another system writes it."""
    for site in (f"caf{E_APART}", "oslo"):
        write(tmp_path / site / "cat", 3, 0)
    data = ImageFolder(str(tmp_path), domain="folder", leave_out=[f"caf{E}"], cache=None)
    data.setup("fit")
    assert data.client_names == ["oslo"]


def test_one_line_says_what_was_found(
    root: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    write(root / "south" / "val" / "cat", 1, 0)
    splits = tmp_path_factory.mktemp("splits")
    for name in ("train/cat", "train/dog", "val/cat", "val/dog", "oslo/cat"):
        write(splits / name, 2, 0)
    for data in (
        ImageFolder(str(root), client="folder", cache=None),
        ImageFolder(str(splits), cache=None, num_clients=2),
    ):
        with caplog.at_level("INFO"):
            data.setup("fit")
            data.setup("test")
    assert caplog.messages == [
        f"{root}: sites north, south, west (3); test_share 0.2 in north, west; splits train and test in south; classes "
        "cat, dog (2); not read: south/val",
        f"{splits}: splits train and val; classes cat, dog (2); not read: oslo",
    ]


def test_images_beside_folders_of_classes_are_counted(root: Path) -> None:
    write(root / "north", 2, 0)
    write(root / "south" / "train", 1, 0)
    with pytest.warns(UserWarning, match=r"images in folders of classes, got 3 beside .*, such as .*north/0.png: they"):
        ImageFolder(str(root), client="folder", cache=None).setup("fit")
