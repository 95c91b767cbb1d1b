"""A reader of the JSON files of LEAF."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.datamodules.files.npz_clients import Clients
from fl_lightning.errors import ConfigurationError


def leaf_files(root: Path, train: bool) -> list[Path]:
    """List the files of LEAF's training or test set, ``train/*.json``; refuse a folder without any."""
    folder = root / ("train" if train else "test")
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ConfigurationError(
            f"expected LEAF's json files in {folder}, got none: point root to the folder that holds LEAF's train and "
            "test (femnist/data after preprocess.sh -t sample)"
        )
    return paths


def read_leaf(root: Path, train: bool) -> Clients:
    """Read the training or the test examples of LEAF's users (Caldas et al., 2018).

    Args:
        root: folder that holds ``train`` and ``test``, such as ``femnist/data``.
        train: whether to read ``train``.

    Returns:
        The inputs (n, ...) and the targets (n,) of each user, of whom some may have none: numbers or texts.

    Raises:
        ConfigurationError: files are missing, damaged, or no files of LEAF, or a user is in two files.
    """
    clients: Clients = {}
    for path in leaf_files(root, train):
        for user, examples in _users(path).items():
            if user in clients:
                raise ConfigurationError(
                    f"expected each user in one file of {path.parent}, got {user!r} again in {path.name}: delete one "
                    "of the files"
                )
            clients[user] = examples
    return clients


def _users(path: Path) -> Clients:
    """Read the users of one file."""
    clients: Clients = {}
    try:
        content = json.loads(path.read_bytes())
        for user, size in zip(content["users"], content["num_samples"], strict=True):
            examples = content["user_data"].pop(user)  # lists of numbers take ten times the memory of arrays
            inputs, targets = _array(examples["x"]), _array(examples["y"])
            if not len(inputs) == len(targets) == size:
                raise ValueError(f"{len(inputs)} x and {len(targets)} y of user {user!r}, not {size}")
            clients[str(user)] = (inputs, targets)
        if content["user_data"]:
            raise ValueError(f"user_data of {next(iter(content['user_data']))!r}, who is not in users")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        said = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ConfigurationError(
            f"expected LEAF's users, num_samples and user_data in {path}, got {said[:100]!r}: make the file again"
        ) from None
    return clients


def _array(values: list[Any]) -> Any:
    """Return a list of numbers, texts or lists of these as an array."""
    if not isinstance(values, list):
        raise TypeError(f"a {type(values).__name__} in the place of a list")
    array = np.asarray(values)  # raises a ValueError for lists of different lengths
    return array.astype(np.float32) if array.dtype == np.float64 else array
