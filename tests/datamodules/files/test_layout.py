"""Folders of images: which names are splits, which links are followed, which names are one."""

import unicodedata
from pathlib import Path

import pytest

from fl_lightning.datamodules.files.folder import find_images
from fl_lightning.datamodules.files.layout import check_apart, choose_test, folder_names, look, split_names
from fl_lightning.errors import ConfigurationError

COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


def files(root: Path, *paths: str) -> Path:
    """Empty files, in folders that are made."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")
    return root


@pytest.mark.parametrize(
    ("name", "is_split"),
    [
        *((name, True) for name in ("train", "Train", "TRAINING", "test", "testing", "Test_Set", "val", "valid")),
        *((name, True) for name in ("validation", "dev", "eval", "evaluation", "train-data", "val split", " test ")),
        *((name, False) for name in ("trainers", "oslo", "tester", "device", "cat", "attest", "valley", "")),
    ],
)
def test_names_of_splits(name: str, is_split: bool) -> None:
    assert split_names(["cat", name]) == [name] * is_split


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["train", "test"], "test"),
        (["train", "val"], "val"),
        (["train", "test", "val"], "test"),
        (["train", "test", "valid", "runs"], "test"),
        (["train", "val", "dev"], "val"),
        (["cat", "dog"], None),
        ([], None),
    ],
)
def test_the_test_set(tmp_path: Path, names: list[str], chosen: str | None) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert choose_test(tmp_path, folder_names(tmp_path)) == chosen


@pytest.mark.parametrize(
    ("names", "got"),
    [
        (["Test", "Train"], "Test, Train: rename them"),
        (["train"], "train: rename them"),
        (["test", "val"], "test, val: rename"),
        (["train", "valid"], "train, valid: "),
        (["Test", "train", "val"], "Test, train, val: "),  # Test may be the one that is meant
        (["cat", "dog", "test"], "test beside cat, dog: rename"),
    ],
)
def test_other_names_of_splits_are_refused(tmp_path: Path, names: list[str], got: str) -> None:
    with pytest.raises(ConfigurationError, match=f"expected folders named train and test, .* in {tmp_path}, got {got}"):
        choose_test(tmp_path, names)


def test_hidden_folders_files_and_links_that_lead_back_are_no_names(tmp_path: Path) -> None:
    files(tmp_path, "a/b/1.png", "a/.c/1.png", "a/2.png", "other/1.png")
    for name, target in (
        ("here", "."),
        ("up", ".."),
        ("itself", "itself"),
        ("nowhere", "gone"),
        ("beside", "../other"),
    ):
        (tmp_path / "a" / name).symlink_to(target)
    assert folder_names(tmp_path / "a") == ["b", "beside"]


def test_folders_that_are_one_are_refused(tmp_path: Path) -> None:
    files(tmp_path, "train/1.png", f"{COMPOSED}/1.png", f"{DECOMPOSED}/1.png")
    (tmp_path / "test").symlink_to("train")
    check_apart([tmp_path / "train", tmp_path / COMPOSED])
    with pytest.raises(ConfigurationError, match=r"expected different folders, got .*/train and .*/test, which a link"):
        check_apart([tmp_path / "train", tmp_path / "test"])
    with pytest.raises(ConfigurationError, match=r"got 'caf\\xe9' and 'cafe\\u0301', which both look like café"):
        check_apart([tmp_path / COMPOSED, tmp_path / DECOMPOSED])
    above = tmp_path / "above"
    above.symlink_to(".")
    with pytest.raises(ConfigurationError, match="expected different folders"):
        check_apart([tmp_path / "train", above / "train"])


def test_what_a_name_looks_like() -> None:
    assert look(DECOMPOSED) == look(f"{COMPOSED} ") == "café"
    assert look("Cat") != look("cat")  # letters of EMNIST are classes of their own


@pytest.mark.parametrize(
    ("link", "target"), [("latest", "."), ("up", ".."), ("top", "../.."), ("deep/back", ".."), ("again", "deep")]
)
def test_links_do_not_multiply_images(tmp_path: Path, link: str, target: str) -> None:
    """A loop was followed until the system refused, 41 times."""
    files(tmp_path, "train/cat/1.png", "train/cat/deep/2.png", "train/dog/3.png")
    (tmp_path / "train" / "cat" / link).symlink_to(target)
    found = find_images([tmp_path / "train" / name for name in ("cat", "dog")])
    assert [[Path(path).name for path in images] for images in found] == [["1.png", "2.png"], ["3.png"]]


def test_a_folder_of_two_classes_is_refused(tmp_path: Path) -> None:
    files(tmp_path, "cat/1.png", "dog/2.png")
    (tmp_path / "cat" / "more").symlink_to("../dog")
    with pytest.raises(ConfigurationError, match=f"images of {tmp_path}/cat and of {tmp_path}/dog to be different"):
        find_images([tmp_path / "cat", tmp_path / "dog"])


def test_images_elsewhere_are_read_by_links(tmp_path: Path) -> None:
    files(tmp_path, "store/cats/1.png", "store/more/deep/2.png")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "cat").symlink_to("../store/cats")
    (tmp_path / "store" / "cats" / "more").symlink_to("../more")
    expected = [f"{tmp_path}/set/cat/1.png", f"{tmp_path}/set/cat/more/deep/2.png"]
    assert find_images([tmp_path / "set" / "cat"]) == [expected]


def test_splits_below_a_class_are_refused(tmp_path: Path) -> None:
    """Of both, the images would train; one folder may be a class's own (trains among vehicles)."""
    files(tmp_path, "cat/train/1.png", "vehicle/bus/2.png", "vehicle/train/3.png")
    assert len(find_images([tmp_path / "cat", tmp_path / "vehicle"])) == 2
    files(tmp_path, "cat/test/4.png")
    with pytest.raises(
        ConfigurationError, match=f"images of one split in {tmp_path}/cat, got folders test, train: put"
    ):
        find_images([tmp_path / "cat"])
