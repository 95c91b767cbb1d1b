"""Leaf: images, characters, tweets and vectors from LEAF's json, and what is refused. All files are written here."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fl_lightning.datamodules import IID, Leaf
from fl_lightning.errors import ConfigurationError

DARK, LIGHT = [0 / 255] * 783 + [51 / 255], [1.0] * 784
IMAGES: dict[str, Any] = {"f_b": ([DARK, LIGHT], [0, 61]), "f_a": ([LIGHT], [3])}
LINE = "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suf"  # 81 characters
PLAY: dict[str, Any] = {"HAMLET": ([LINE[:80]], [LINE[80]])}
TWEETS = {
    "ann": (
        [["1", "d", "q", "ann", "good good day", "training"], ["2", "d", "q", "ann", "bad day", "training"]],
        [4, 0],
    ),
    "bob": ([["3", "d", "q", "bob", "Good, new day!", "training"]], [4]),
}


def write(root: Path, split: str, users: dict[str, Any], name: str = "all_data_0") -> Path:
    """Write one file as LEAF's preprocessing does."""
    content = {
        "users": list(users),
        "num_samples": [len(targets) for _, targets in users.values()],
        "user_data": {user: {"x": inputs, "y": targets} for user, (inputs, targets) in users.items()},
    }
    path = root / split / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def both(root: Path, users: dict[str, Any]) -> Path:
    write(root, "train", users)
    write(root, "test", users)
    return root


def test_images_by_user(tmp_path: Path) -> None:
    """51 / 255 = 0.2 is grey level 51. Users are sorted, and each has its own test images, from two files."""
    write(tmp_path, "train", {"f_b": IMAGES["f_b"]}, "0")
    write(tmp_path, "train", {"f_a": IMAGES["f_a"]}, "1")
    write(tmp_path, "test", {"f_a": ([DARK], [9]), "f_b": ([], [])})
    data = Leaf(str(tmp_path))
    assert data.missing() is None
    assert data.client_names == ["f_a", "f_b"]
    assert data.clients(True) == ["f_a", "f_b", "f_b"]
    images, labels = data.load(True)
    assert (images.shape, images.dtype) == ((3, 1, 28, 28), torch.uint8)
    assert images[1].flatten().tolist() == [0] * 783 + [51]
    assert labels.tolist() == [3, 0, 61]
    assert data.num_classes == 62
    ((own, target),) = data.held_out_batches(0)
    assert (int(own[0, 0, 27, 27]), target.tolist()) == (51, [9])
    assert list(data.held_out_batches(1)) == []
    assert data.mean[0] == pytest.approx((2 * 784 + 0.2) / (3 * 784))
    assert [*data.measured] == ["mean and std"]
    assert not Leaf(str(tmp_path), normalize=(0.5, 0.5)).measured
    mixed = Leaf(str(tmp_path), partition=IID(), num_clients=3)
    assert (mixed.client_names, mixed.sizes.tolist()) == (None, [1, 1, 1])


def test_characters_and_the_next_one(tmp_path: Path) -> None:
    """In LEAF's alphabet, a line break is 0, A is 25, so T is 44; a is 53, so o is 67 and f 58."""
    data = Leaf(str(both(tmp_path, PLAY)))
    inputs, labels = data.load(True)
    assert (inputs.shape, inputs.dtype, data.num_classes) == ((1, 80), torch.int64, 80)
    assert inputs[0, :3].tolist() == [44, 67, 1]
    assert labels.tolist() == [58]
    with pytest.raises(ConfigurationError, match="expected LEAF's 80 characters of Shakespeare, got 'é'"):
        Leaf(str(both(tmp_path, {"LAERTES": (["é" * 80], ["a"])}))).setup("fit")


def test_tweets_become_words(tmp_path: Path) -> None:
    """The training tweets have 'day' and 'good' three times: 2 and 3; with four numbers, all others are 1."""
    data = Leaf(str(both(tmp_path, TWEETS)), vocabulary=4, max_words=4)
    inputs, labels = data.load(True)
    assert inputs.tolist() == [[3, 3, 2, 0], [1, 2, 0, 0], [3, 1, 1, 2]]
    assert [*data.measured] == ["a vocabulary"]
    assert labels.tolist() == [1, 0, 1]
    assert data.num_classes == 2


def test_other_vectors_are_floats(tmp_path: Path) -> None:
    """Classes that are written as 3.0 are whole; zeros and ones of other shapes are no images."""
    data = Leaf(str(both(tmp_path, {"a": ([[0.5, -1.0, 2.0]], [3.0]), "b": ([[0.0, 1.0, 0.0]], [0.0])})), num_classes=5)
    inputs, labels = data.load(True)
    assert inputs.tolist() == [[0.5, -1.0, 2.0], [0.0, 1.0, 0.0]]
    assert (labels.tolist(), data.num_classes) == ([3, 0], 5)
    assert not data.measured


def test_numbers_of_json_are_floats_if_some_are(tmp_path: Path) -> None:
    """Other writers than Python write 1 for 1.0: a white image among others is one of floats, 255 everywhere."""
    write(tmp_path, "train", {"a": ([DARK], [0]), "b": ([[1] * 784], [1])})
    write(tmp_path, "test", {"a": ([[0] * 784], [0])})
    data = Leaf(str(tmp_path))
    assert data.load(True)[0].flatten(1)[:, -1].tolist() == [51, 255]
    assert data.load(False)[0].unique().tolist() == [0]


def test_whole_numbers_need_a_meaning(tmp_path: Path) -> None:
    pixels = [[0] * 783 + [200], [7] * 784]
    root = str(both(tmp_path, {"a": (pixels, [0, 1])}))
    with pytest.raises(ConfigurationError, match=r"got int64 \(2, 784\): set inputs to images, channels_last, tok"):
        Leaf(root).setup("fit")
    images, _ = Leaf(root, inputs="images").load(True)
    assert (images.dtype, images.flatten(1).tolist()) == (torch.uint8, pixels)
    words, _ = Leaf(root, inputs="tokens").load(True)
    assert (words.dtype, words.tolist()) == (torch.int64, pixels)
    numbers, _ = Leaf(root, inputs="numbers").load(True)
    assert (numbers.dtype, numbers.tolist()) == (torch.float32, pixels)


def test_vectors_of_784_may_be_numbers(tmp_path: Path) -> None:
    root = str(both(tmp_path, IMAGES))
    vectors, _ = Leaf(root, inputs="numbers").load(True)
    assert (vectors.dtype, vectors.shape) == (torch.float32, (3, 784))
    assert vectors[1].tolist() == pytest.approx(DARK)


def test_texts_are_tokens_whatever_is_named(tmp_path: Path) -> None:
    root = str(both(tmp_path, PLAY))
    assert torch.equal(Leaf(root, inputs="tokens").load(True)[0], Leaf(root).load(True)[0])
    with pytest.raises(ConfigurationError, match=r"expected inputs: tokens for the texts in .*, got images"):
        Leaf(root, inputs="images").setup("fit")


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([["0", "4", "2"], ["2", "0"]], [0, 1, 0, 0, 0]),
        ([[0, 4, 2], [2, 0]], [0, 1, 0, 0, 0]),
        ([[0, 1, 0], [1, 0]], [0, 1, 0, 1, 0]),
        ([[0.0, 0.0, 0.0], [0.0, 1.0]], [0, 0, 0, 0, 1]),
    ],
)
def test_classes_of_tweets(classes: list[Any], expected: list[int], tmp_path: Path) -> None:
    """LEAF's second release makes 1 of 4, and 0 of 0 and 2, for all users alike."""
    tweet = TWEETS["bob"][0][0]
    root = both(tmp_path, {name: ([tweet] * len(own), own) for name, own in zip("ab", classes, strict=True)})
    assert Leaf(str(root)).load(True)[1].tolist() == expected


def test_users_without_examples_are_counted(tmp_path: Path) -> None:
    root = both(tmp_path, {"a": ([[0.5]], [0]), "b": ([], []), "c": ([], [])})
    with pytest.warns(UserWarning, match="^2 of 3 clients of .* have neither training nor test examples, such as b: "):
        assert Leaf(str(root)).client_names == ["a"]
    tweets = both(tmp_path, {"ann": TWEETS["ann"], "cy": ([], [])})
    with pytest.warns(UserWarning, match="^1 of 2 clients of .* such as cy: they are left out"):
        assert Leaf(str(tweets)).client_names == ["ann"]


def refusal(root: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Leaf(str(root)).setup("fit")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    path = write(tmp_path, "train", IMAGES)
    assert f"expected LEAF's json files in {tmp_path / 'test'}, got none" in refusal(tmp_path)
    assert str(Leaf(str(tmp_path)).missing()) == refusal(tmp_path)
    write(tmp_path, "test", IMAGES)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert f"expected LEAF's users, num_samples and user_data in {path}, got " in refusal(tmp_path)
    path.write_text(whole.replace("num_samples", "sizes"))
    assert "got \"no 'num_samples'\": make the file again" in refusal(tmp_path)
    path.write_text(whole.replace('"num_samples": [2, 1]', '"num_samples": [2, 3]'))
    assert "got \"1 x and 1 y of user 'f_a', not 3\"" in refusal(tmp_path)
    path.write_text(whole.replace('["f_b", "f_a"], "num_samples": [2, 1]', '["f_a"], "num_samples": [1]'))
    assert "got \"user_data of 'f_b', who is not in users\"" in refusal(tmp_path)
    path.write_text(whole)
    write(tmp_path, "train", IMAGES, "again")
    assert "got 'f_b' again in all_data_0.json: delete one" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (IMAGES, {**IMAGES, "f_c": IMAGES["f_a"]}, "got test examples alone for 'f_c': split the examples of each"),
        ({"a": ([[0.5], [0.5, 1.0]], [0, 1])}, {}, "expected LEAF's users, num_samples and user_data"),
        (
            {"a": ([[0.5]], [0]), "b": ([[0.5, 1]], [0])},
            {},
            r"got floats \(1,\) for client 'a' and floats \(2,\) for client 'b'",
        ),
        (
            {"a": ([[0.5]], [0])},
            {"a": ([[0.5, 1.0]], [0])},
            r"got floats \(1,\) for client 'a' and floats \(2,\) for client 'a'",
        ),
        ({"a": ([[0.5]], [0.5])}, {}, "expected classes 0, 1, … as y of client 'a', got others"),
        ({"a": ([[0.5]], [-1])}, {}, "expected classes 0, 1, … as y of client 'a', got others"),
        ({"a": ([[float("nan")]], [1])}, {}, "expected inputs to be finite, got nan or inf"),
        ({"a": (["1.jpg"], [0])}, {}, "got other texts for user 'a': Leaf reads femnist, shakespeare, sent140"),
        ({"a": ([], [])}, {}, "expected examples in the training and the test set, got none in one"),
        (
            {"a": ([[0.5]], [0]), "b": ([], [])},
            {"a": ([[0.5]], [0]), "b": ([[0.5]], [0])},
            "got test examples alone for 'b'",
        ),
        ({"a": ([TWEETS["bob"][0][0]] * 3, [0, 4, 3])}, {}, "the classes 0 and 1, or 0, 2 and 4, in .*, got 3, too"),
        ({"a": ([TWEETS["bob"][0][0]] * 2, [0, 0.5])}, {}, "the classes 0 and 1, or 0, 2 and 4, in .*, got 0.5, too"),
        ({"a": ([TWEETS["bob"][0][0]], ["good"])}, {}, "expected numbers as classes of tweets, got 'good'"),
    ],
)
def test_other_contents_are_refused(train: Any, test: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path, "train", train)
    write(tmp_path, "test", test or train)
    with pytest.raises(ConfigurationError, match=message):
        Leaf(str(tmp_path)).setup("fit")
