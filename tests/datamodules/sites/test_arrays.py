"""What arrays mean: known, named or refused. The right values are the arrays themselves, moved by hand."""

from typing import Any

import numpy as np
import pytest
import torch

from fl_lightning.datamodules.sites.arrays import as_tensors
from fl_lightning.errors import ConfigurationError

SENSORS = np.arange(2 * 9 * 4 * 3).reshape(2, 9, 4, 3) / 7  # two examples of nine channels, or of three


def inputs(array: Any, meaning: Any = None) -> torch.Tensor:
    """The tensor that an array becomes in both sets."""
    train, test = as_tensors(array, array, meaning)
    assert torch.equal(train, test)
    return train


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8])
def test_channels_that_may_be_first_or_last_are_named(kind: type) -> None:
    array = SENSORS.astype(kind)
    with pytest.raises(ConfigurationError, match=rf"got {np.dtype(kind)} \(2, 9, 4, 3\): set inputs to images"):
        inputs(array)
    assert np.array_equal(inputs(array, "numbers").numpy(), array.astype(np.float32))
    assert np.array_equal(inputs(array, "images").numpy(), array.astype(inputs(array, "images").numpy().dtype))
    last = inputs(array, "channels_last").numpy()
    for channel in range(3):
        assert np.array_equal(last[:, channel], array[..., channel].astype(last.dtype))


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 4, 1), (3, 4, 3), (9, 1, 128), (9, 3, 256), (4, 3), (5,)])
def test_floats_that_can_mean_one_thing_stay_as_they_are(shape: tuple[int, ...]) -> None:
    """Images whose channels come first, and PFLlib's signals of HAR (9, 1, 128) and PAMAP2 (9, 3, 256)."""
    array = np.random.default_rng(0).normal(size=(2, *shape))
    assert np.array_equal(inputs(array).numpy(), array.astype(np.float32))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 1, 4, 4), dtype=np.int64),
        np.zeros((2, 28, 28), dtype=np.uint8),
        np.zeros((2, 784), dtype=np.uint8),
        np.zeros((2, 5), dtype=np.int32),
    ],
)
def test_whole_numbers_are_pixels_or_tokens_or_numbers(array: Any) -> None:
    with pytest.raises(ConfigurationError, match="set inputs to images, channels_last, tokens or numbers"):
        inputs(array)
    assert inputs(array, "tokens").dtype == torch.int64
    assert inputs(array, "numbers").dtype == torch.float32


def test_pixels_become_bytes() -> None:
    pixels = np.array([0, 7, 200, 255]).reshape(1, 1, 2, 2)
    images = inputs(pixels, "images")
    assert (images.dtype, images.flatten().tolist()) == (torch.uint8, [0, 7, 200, 255])
    flat = np.arange(784)[None] % 256
    assert inputs(flat, "images").shape == (1, 1, 28, 28)
    assert inputs(flat, "images").flatten().tolist() == flat[0].tolist()
    assert inputs(pixels.astype(np.uint8)).flatten().tolist() == [0, 7, 200, 255]


def test_truth_values_of_sensors_are_no_grey_levels() -> None:
    """Zeros and ones of nine channels would be normalised as images."""
    array = np.arange(72).reshape(2, 9, 1, 4) % 2.0
    with pytest.raises(ConfigurationError, match="set inputs to images, whose grey levels become bytes, or numbers"):
        inputs(array)
    assert inputs(array, "numbers").tolist() == array.tolist()
    assert inputs(array, "images").dtype == torch.uint8
    assert inputs(array[:, :3]).dtype == torch.uint8


@pytest.mark.parametrize(
    ("array", "meaning", "message"),
    [
        (
            np.zeros((2, 784)),
            None,
            r"got float64 \(2, 784\): set inputs to images, if they are flat ones of 28x28,",
        ),
        (np.zeros((2, 5)), "tokens", "expected whole numbers from 0 as tokens, got float64 from 0: set inputs to what"),
        (np.full((2, 5), -1), "tokens", "expected whole numbers from 0 as tokens, got int64 from -1"),
        (np.zeros((2, 5)), "images", r"expected images of four axes, .* got float64 \(2, 5\): convert them, or"),
        (
            np.full((2, 1, 4, 4), 256),
            "images",
            r"whole numbers from 0 to 255, got int64 \(2, 1, 4, 4\) from 256 to",
        ),
        (
            np.full((2, 4, 4, 1), -1),
            "channels_last",
            r"numbers from 0 to 255, got int64 \(2, 1, 4, 4\) from -1 to",
        ),
        (np.full((2, 5), 1e39), "numbers", "expected inputs to be finite, got nan or inf"),
        (np.full((2, 5), np.nan), None, "expected inputs to be finite, got nan or inf"),
    ],
)
def test_refusals(array: Any, meaning: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        inputs(array, meaning)
    assert "\n" not in str(caught.value)


def test_other_floats_are_converted() -> None:
    array = np.array([[0.5, -2.0]])
    for kind in (np.float16, np.longdouble, ">f4", ">f8"):
        assert inputs(np.concatenate([array.astype(kind)])).tolist() == array.tolist()
