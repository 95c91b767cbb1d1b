"""PFLlib: images, other arrays and texts from generated npz files, and what is refused."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fl_lightning.datamodules import PFLlib, RandomFlip
from fl_lightning.errors import ConfigurationError

GREY = np.array([[0, 51], [102, 255]], dtype=np.float32).reshape(1, 1, 2, 2) / 255


def write(root: Path, clients: dict[int, Any], splits: tuple[str, ...] = ("train", "test")) -> PFLlib:
    """Write the files as PFLlib does: of each client, a dict in an array without axes."""
    for split in splits:
        (root / split).mkdir(exist_ok=True)
        for number, (inputs, targets) in clients.items():
            entry: Any = {"x": inputs, "y": np.asarray(targets)}
            np.savez_compressed(root / split / f"{number}.npz", data=entry)
    return PFLlib(str(root))


@pytest.mark.parametrize("images", [GREY, (GREY - np.float32(0.5)) / np.float32(0.5), GREY * 255])
def test_grey_levels_are_bytes_again(images: Any, tmp_path: Path) -> None:
    """In [0, 1], and in [-1, 1] as PFLlib normalises them; floats beyond stay as they are."""
    data = write(tmp_path, {0: (images, [1])})
    inputs, labels = data.load(True)
    assert inputs.flatten().tolist() == [0, 51, 102, 255]
    assert inputs.dtype == (torch.float32 if images.max() > 1 else torch.uint8)
    assert (labels.tolist(), data.num_classes) == ([1], 2)


def test_constants_are_measured_on_what_trains(tmp_path: Path) -> None:
    """Not on what clients hold out; NumPy's mean and standard deviation of what they train on."""
    levels = np.random.default_rng(0).integers(0, 256, (2, 10, 1, 2, 2))
    write(tmp_path, {client: (images.astype(np.float32) / 255, [0] * 10) for client, images in enumerate(levels)})
    data = PFLlib(str(tmp_path), held_out=0.5)
    data.setup("fit")
    trained = np.concatenate([data.client_dataset(client)[:][0].numpy() for client in range(2)]) / 255
    assert len(trained) == 10
    assert data.mean == pytest.approx([trained.mean()])
    assert data.std == pytest.approx([trained.std()])


def test_levels_between_the_bytes_stay_floats(tmp_path: Path) -> None:
    data = write(tmp_path, {0: (GREY + np.float32(0.001), [1])})
    data.setup("fit")
    batch = data.on_after_batch_transfer([*data._dealt.evaluation.tensors], 0)
    assert torch.equal(batch[0], torch.from_numpy(GREY + np.float32(0.001)))
    augmented = PFLlib(str(tmp_path), augment=RandomFlip())
    with pytest.raises(ConfigurationError, match=r"expected images for augment, got torch.float32 \(1, 1, 2, 2\)"):
        augmented.setup("fit")


def test_clients_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Twelve clients, of which number k holds k + 1 images."""
    data = write(tmp_path, {k: (np.repeat(GREY, k + 1, 0), [k % 3] * (k + 1)) for k in range(12)})
    assert data.client_names == [f"{k:02d}" for k in range(12)]
    assert data.sizes.tolist() == list(range(1, 13))
    assert len(next(data.held_out_batches(10))[0]) == 11


def test_texts_without_their_lengths(tmp_path: Path) -> None:
    """As PFLlib stores AG News: an array of objects, of lists and numbers."""
    texts = np.array([([5, 2, 0], 2), ([7, 7, 7], 3)], dtype=object)
    inputs, labels = write(tmp_path, {0: (texts, [3, 0])}).load(True)
    assert (inputs.tolist(), inputs.dtype, labels.tolist()) == ([[5, 2, 0], [7, 7, 7]], torch.int64, [3, 0])


def test_shakespeare_s_characters_are_told(tmp_path: Path) -> None:
    """PFLlib stores the places of 80 characters in an alphabet of 80; other whole numbers may be anything."""
    lines = np.arange(160).reshape(2, 80) % 80
    data = write(tmp_path, {0: (lines, [3, 0]), 1: (lines[:0], [])})
    with pytest.warns(UserWarning, match=r"^whole numbers \(n, 80\) from 0 to 79 in .* are taken as the characters"):
        inputs, _ = data.load(True)
    assert (inputs.tolist(), inputs.dtype) == (lines.tolist(), torch.int64)
    write(tmp_path, {1: (lines + 1, [3, 0])})
    with pytest.raises(ConfigurationError, match=r"can mean one thing, got int64 \(4, 80\): set inputs to images"):
        PFLlib(str(tmp_path)).setup("fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inputs, _ = PFLlib(str(tmp_path), inputs="tokens").load(True)
    assert inputs.tolist() == [*lines.tolist(), *(lines + 1).tolist()]


def test_a_client_without_training_examples_may_have_no_tests(tmp_path: Path) -> None:
    """Client 1 has no examples at all and is counted; with test examples alone it would count for nobody."""
    data = write(tmp_path, {0: (GREY, [1]), 1: (GREY[:0], []), 2: (GREY, [0])})
    with pytest.warns(UserWarning, match="^1 of 3 clients of .* have neither training nor test examples, such as 1: "):
        assert data.client_names == ["0", "2"]
    write(tmp_path, {1: (GREY, [1])}, ("test",))
    with pytest.raises(ConfigurationError, match="test examples alone for '1'"):
        PFLlib(str(tmp_path)).setup("fit")


class Hostile:
    """Writes a file when its pickle is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {0: (GREY, [1])})
    np.savez(tmp_path / "train" / "1.npz", data=np.array({"x": Hostile(tmp_path / "marker"), "y": [0]}))
    with pytest.raises(ConfigurationError, match=r"1.npz, got a pickle that asks for '(posix|nt).system'") as caught:
        PFLlib(str(tmp_path)).setup("fit")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "marker").exists()


def test_refusals(tmp_path: Path) -> None:
    write(tmp_path, {0: (GREY, [1])}, ("train",))
    message = f"expected PFLlib's files 0.npz, 1.npz, … in {tmp_path / 'test'}, got none"
    assert message in str(PFLlib(str(tmp_path)).missing())
    with pytest.raises(ConfigurationError, match=message):
        PFLlib(str(tmp_path)).setup("fit")
    assert write(tmp_path, {0: (GREY, [1])}).missing() is None
    write(tmp_path, {1: (GREY, [1])}, ("test",))
    with pytest.raises(ConfigurationError, match="test examples alone for '1'"):
        PFLlib(str(tmp_path)).setup("fit")
    write(tmp_path, {1: (GREY.repeat(2, 3), [1])})
    with pytest.raises(ConfigurationError, match=r"floats \(1, 2, 2\) for .* and floats \(1, 2, 4\) for client '1'"):
        PFLlib(str(tmp_path)).setup("fit")
    write(tmp_path, {1: (GREY, [1, 2])})
    with pytest.raises(ConfigurationError, match=r"client '1', got float32 \(1, 1, 2, 2\) and int64 \(2,\): convert"):
        PFLlib(str(tmp_path)).setup("fit")
    write(tmp_path, {1: ((GREY * 255).astype(np.uint8), [1])})
    with pytest.raises(ConfigurationError, match=r"floats \(1, 2, 2\) .* and whole numbers \(1, 2, 2\) for client"):
        PFLlib(str(tmp_path)).setup("fit")
    write(tmp_path, {1: (GREY, 1)})
    with pytest.raises(
        ConfigurationError, match=r"client '1', got float32 \(1, 1, 2, 2\) and int64 \(\): convert them"
    ):
        PFLlib(str(tmp_path)).setup("fit")
    write(tmp_path, {1: ([np.zeros(2), np.zeros(3)], [1, 2])})
    with pytest.raises(ConfigurationError, match="expected x and y of client '1' to be arrays, got lists of different"):
        PFLlib(str(tmp_path)).setup("fit")
    write(tmp_path, {1: (np.array([([0.5, 2.0], 2)], dtype=object), [1])})
    with pytest.raises(ConfigurationError, match=r"expected texts as whole numbers for client '1' of .*, got float64"):
        PFLlib(str(tmp_path)).setup("fit")
    write(tmp_path, {1: (GREY, [1])})
    twin = tmp_path / "train" / "01.npz"
    twin.write_bytes((tmp_path / "train" / "1.npz").read_bytes())
    with pytest.raises(ConfigurationError, match=r"one file of client 1 in .*train, got .* beside another: delete"):
        PFLlib(str(tmp_path)).setup("fit")
    twin.unlink()
    path = tmp_path / "test" / "1.npz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ConfigurationError, match=f"expected a readable file of arrays in {path}, got "):
        PFLlib(str(tmp_path)).setup("fit")
    np.savez(path, data=np.arange(3))
    with pytest.raises(ConfigurationError, match=f"expected a dict with x and y in {path}, got ndarray"):
        PFLlib(str(tmp_path)).setup("fit")
