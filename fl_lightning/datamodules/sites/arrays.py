"""What the arrays of clients mean: images, tokens or numbers. It is known or named, never guessed."""

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_lightning.errors import ConfigurationError

Meaning = Literal["images", "channels_last", "tokens", "numbers"]
MEANINGS = get_args(Meaning)

CHANNELS = (1, 3)  # of images that a network takes as grey or colour
EXACT = 1e-3  # how far from a whole number a grey level may be: floats are rounded
PIXELS = 784  # of a flat image of 28x28


@dataclass(frozen=True)
class Tokens:
    """Whole numbers (n, ...) of which the reader of the files knows that they stand for characters or words."""

    numbers: NDArray[np.int64]


def array_of(values: Any, client: str) -> NDArray[Any]:
    """Return a client's inputs or targets as an array."""
    try:
        return np.asarray(values)
    except ValueError:
        raise ConfigurationError(
            f"expected x and y of client {client!r} to be arrays, got lists of different lengths: make them equal"
        ) from None


def flat_images(array: NDArray[Any]) -> NDArray[Any]:
    """Return flat images (n, 784) as images (n, 1, 28, 28); other arrays as they are."""
    return array.reshape(-1, 1, 28, 28) if array.shape[1:] == (PIXELS,) else array


def channels_first(array: NDArray[Any]) -> NDArray[Any]:
    """Return arrays (n, ..., C) as (n, C, ...)."""
    return np.moveaxis(array, -1, 1) if array.ndim > 2 else array


def may_be_channels_last(array: NDArray[Any]) -> bool:
    """Tell whether the last axis of (n, a, b, c) may be that of the channels, and the second one not."""
    return array.ndim == 4 and array.shape[3] in CHANNELS and array.shape[1] not in CHANNELS


def as_tensors(train: NDArray[Any], test: NDArray[Any], meaning: Meaning | None) -> tuple[Tensor, Tensor]:
    """Turn the inputs of both sets into tensors of one kind: uint8 images (n, C, H, W), floats or int64 tokens.

    Args:
        train: inputs of the training set.
        test: inputs of the test set, of the same type and shape.
        meaning: the meaning of the arrays; None where they can have one alone: images (n, C, H, W), or floats.

    Raises:
        ConfigurationError: without a ``meaning``, the arrays can mean several things; they cannot have the meaning; a
            float is not finite.
    """
    if meaning is None:
        _refuse_two_meanings(train)
    arrays = [train, test]
    if meaning == "tokens":
        tensors = [_tokens(array) for array in arrays]
        return tensors[0], tensors[1]
    if meaning == "channels_last":
        arrays = [channels_first(array) for array in arrays]
    elif meaning == "images":
        arrays = [flat_images(array) for array in arrays]
    if meaning in ("images", "channels_last"):
        _refuse_no_images(arrays)
    may_be_images = arrays[0].ndim == 4 and meaning != "numbers"
    grey = grey_levels(arrays[0], arrays[1]) if may_be_images else None
    if grey and meaning is None and train.dtype.kind == "f" and train.shape[1] not in CHANNELS:
        raise _two_meanings(train, "images, whose grey levels become bytes, or numbers")
    if grey:
        return torch.from_numpy(grey[0]), torch.from_numpy(grey[1])
    return _floats(arrays[0]), _floats(arrays[1])


def grey_levels(train: NDArray[Any], test: NDArray[Any]) -> list[NDArray[np.uint8]] | None:
    """Return images (n, C, H, W) as bytes: whole numbers, or floats of 256 levels in [0, 1] or [-1, 1]; else None."""
    arrays = [train, test]
    if train.dtype.kind in "iu":
        return [np.ascontiguousarray(array, dtype=np.uint8) for array in arrays]
    for low in (0, -1):  # what black is
        found = [_levels(array, low) for array in arrays]
        if all(levels is not None for levels in found):
            return cast(list[NDArray[np.uint8]], found)
    return None


def _levels(images: NDArray[Any], low: int) -> NDArray[np.uint8] | None:
    """Return images of floats in [low, 1] as bytes; None if they are none of 256 levels of the range."""
    if not (images.min() >= low and images.max() <= 1):  # also refuses nan
        return None
    levels = (images - low) * (255 / (1 - low))
    grey = np.rint(levels)
    return grey.astype(np.uint8) if np.abs(levels - grey).max() < EXACT else None


def _tokens(array: NDArray[Any]) -> Tensor:
    if array.dtype.kind not in "iu" or array.min() < 0:
        raise ConfigurationError(
            f"expected whole numbers from 0 as tokens, got {array.dtype} from {array.min():g}: set inputs to what the "
            f"arrays are, {', '.join(MEANINGS)}"
        )
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))


def _floats(array: NDArray[Any]) -> Tensor:
    """Return numbers as floats of the default type, all of them finite."""
    if array.dtype.kind != "f" or array.itemsize > 8:  # such as long doubles, which torch does not know
        array = array.astype(np.float64)
    floats = torch.from_numpy(np.ascontiguousarray(array)).to(torch.get_default_dtype())
    if not floats.isfinite().all():
        raise ConfigurationError("expected inputs to be finite, got nan or inf: leave these examples out")
    return floats


def _refuse_two_meanings(array: NDArray[Any]) -> None:
    """Refuse arrays that can mean several things; ``inputs`` names one."""
    named = None
    if may_be_channels_last(array):
        named = "images (n, C, H, W), channels_last for (n, H, W, C), or numbers"
    elif array.dtype.kind in "iu" and not (array.dtype == np.uint8 and array.ndim == 4):
        named = "images, channels_last, tokens or numbers"
    elif array.shape[1:] == (PIXELS,):
        named = "images, if they are flat ones of 28x28, or numbers"
    if named is not None:
        raise _two_meanings(array, named)


def _two_meanings(array: NDArray[Any], named: str) -> ConfigurationError:
    return ConfigurationError(
        f"expected arrays that can mean one thing, got {array.dtype} {array.shape}: set inputs to {named}"
    )


def _refuse_no_images(arrays: list[NDArray[Any]]) -> None:
    """Refuse arrays that are no images (n, C, H, W) of floats, or of whole numbers from 0 to 255."""
    for array in arrays:
        is_whole = array.dtype.kind in "iu"
        if array.ndim != 4 or (is_whole and (array.min() < 0 or array.max() > 255)):
            range_ = f" from {array.min()} to {array.max()}" if is_whole else ""
            raise ConfigurationError(
                "expected images of four axes, of floats or of whole numbers from 0 to 255, got "
                f"{array.dtype} {array.shape}{range_}: convert them, or set inputs to another of {', '.join(MEANINGS)}"
            )
