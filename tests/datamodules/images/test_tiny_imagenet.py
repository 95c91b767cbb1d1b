"""TinyImageNet, read from small files in the published layout made here."""

import shutil
from pathlib import Path

import pytest
import torch
from lib.image_files import BOX, WNIDS, write_image, write_tiny

from fl_lightning.datamodules import TinyImageNet
from fl_lightning.errors import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore:.*may be half unpacked")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "tiny-imagenet-200")
    return tmp_path


@pytest.mark.parametrize("place", [".", "tiny-imagenet-200"])
def test_reads_the_published_layout(root: Path, place: str) -> None:
    """JPEG keeps a one-colour image to a level or three; a grey one exactly, in all three channels."""
    data = TinyImageNet(root=str(root / place), num_clients=4, cache=str(root / "cache"))
    data.prepare_data()
    assert len(list((root / "cache").iterdir())) == 2
    images, labels = data.load(train=True)
    assert images.dtype == torch.uint8
    assert images.shape == (200, 3, 64, 64)
    assert labels.tolist() == list(range(200))
    assert (images[:, 0, 30, 40].int() - labels).abs().max() <= 3
    assert set(images[5].flatten().tolist()) == {5}
    images, labels = data.load(train=False)
    assert labels.tolist() == [7, 199, 30]
    assert set(images[1].flatten().tolist()) == {199}
    assert abs(int(images[0, 0, 3, 3]) - 7) <= 3
    assert abs(int(images[2, 0, 3, 3]) - 30) <= 3
    assert data.sizes.tolist() == [50] * 4


def test_new_annotations_are_not_taken_from_the_cache(root: Path) -> None:
    data = TinyImageNet(root=str(root), cache=str(root / "cache"))
    assert data.load(train=False)[1].tolist() == [7, 199, 30]
    annotations = root / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text().replace(sorted(WNIDS)[7], sorted(WNIDS)[8]))
    assert data.load(train=False)[1].tolist() == [8, 199, 30]


@pytest.mark.parametrize(("place", "test"), [("TinyImageNet", "test"), ("tiny-imagenet-200", "val")])
def test_reads_a_rearranged_folder(root: Path, place: str, test: str) -> None:
    """Training images where they were, test images in folders by class; wnids.txt may still be there."""
    old, folder = root / "tiny-imagenet-200", root / place
    for split in ("val", "test"):
        shutil.rmtree(old / split)
    for label, wnid in enumerate(sorted(WNIDS)):
        (old / test / wnid).mkdir(parents=True)
        write_image(old / test / wnid / "a.JPEG", label, (64, 64), "L")
    old.rename(folder)
    data = TinyImageNet(root=str(root))
    assert data.load(train=True)[0].shape == (200, 3, 64, 64)
    images, labels = data.load(train=False)
    assert images[:, 1, 2, 3].tolist() == labels.tolist() == list(range(200))


def test_refuses_a_missing_class(root: Path) -> None:
    folder = root / "tiny-imagenet-200"
    shutil.rmtree(folder / "train" / WNIDS[3])
    with pytest.raises(
        ConfigurationError, match=f"expected the classes of .*wnids.txt in .*train, got '{WNIDS[3]}' in"
    ):
        TinyImageNet(root=str(root)).load(train=True)
    (folder / "wnids.txt").write_text("\n".join(WNIDS[:3]))
    with pytest.raises(ConfigurationError, match=r"expected 200 different classes in .*wnids.txt, got 3 in 3 lines"):
        TinyImageNet(root=str(root)).load(train=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_3.JPEG\tn99999999\t0\t0\t1\t1", r"in line 4 of .*val_annotations.txt, got 'val_3.JPEG.tn99999999"),
        ("val_3.JPEG n00000001", "in line 4 of .*, got 'val_3.JPEG n00000001'"),
        ("", "in line 4 of .*, got ''"),
        (f"val_3.JPEG\t{WNIDS[0]}{BOX}", "in both images and val_annotations.txt, got val_3.JPEG and 0 others"),
    ],
)
def test_refuses_malformed_annotations(root: Path, line: str, message: str) -> None:
    with (root / "tiny-imagenet-200" / "val" / "val_annotations.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigurationError, match=message) as caught:
        TinyImageNet(root=str(root)).load(train=False)
    assert "\n" not in str(caught.value)
