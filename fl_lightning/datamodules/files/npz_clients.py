"""Functions that read the clients' files of PFLlib and of FL-bench."""

from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from fl_lightning.datamodules.files.pickles import read_object, read_pickle, refuse
from fl_lightning.errors import ConfigurationError

Clients = dict[str, tuple[Any, Any]]  # of each client by name, its inputs (n, ...) and targets (n,)


def pfllib_files(root: Path, train: bool) -> list[Path]:
    """List the files of PFLlib's clients, ``train/0.npz``, …, by number; refuse a folder without any."""
    folder = root / ("train" if train else "test")
    paths = [path for path in folder.glob("*.npz") if path.stem.isdecimal()]
    if not paths:
        raise ConfigurationError(
            f"expected PFLlib's files 0.npz, 1.npz, … in {folder}, got none: point root to the folder of a data set "
            "that PFLlib has generated, with train and test in it"
        )
    return sorted(paths, key=lambda path: int(path.stem))


def read_pfllib(root: Path, train: bool) -> Clients:
    """Read the training or the test examples of PFLlib's clients.

    Args:
        root: folder that holds ``train`` and ``test``.
        train: whether to read ``train``.

    Returns:
        The inputs and targets of each client; its name is its number, with zeros in front.

    Raises:
        ConfigurationError: files are missing, damaged, or no files of PFLlib.
    """
    digits = max(len(path.stem) for path in [*pfllib_files(root, True), *pfllib_files(root, False)])
    clients: Clients = {}
    for path in pfllib_files(root, train):
        found = read_object(path, "data")
        if not isinstance(found, dict) or not {"x", "y"} <= found.keys():
            kind = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
            raise ConfigurationError(f"expected a dict with x and y in {path}, got {kind}: generate the data again")
        name = path.stem.zfill(digits)
        if name in clients:
            raise ConfigurationError(
                f"expected one file of client {int(name)} in {path.parent}, got {path.name} beside another: delete one"
            )
        clients[name] = (found["x"], found["y"])
    return clients


def fl_bench_files(root: Path) -> list[Path]:
    """List the three files of FL-bench; refuse a folder that lacks one."""
    paths = [root / name for name in ("data.npy", "targets.npy", "partition.pkl")]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ConfigurationError(
            f"expected data.npy, targets.npy and partition.pkl in {root}, got no {' and no '.join(missing)}: point "
            "root to a data set that FL-bench keeps so (femnist, celeba, synthetic) or downloads by torchvision "
            "(mnist, fmnist, cifar10, cifar100), or save the arrays of another one under these names"
        )
    return paths


def read_fl_bench(root: Path, train: bool) -> Clients:
    """Read the training or the test examples of FL-bench's clients from its two arrays, by ``partition.pkl``.

    Args:
        root: folder that holds ``data.npy``, ``targets.npy`` and ``partition.pkl``.
        train: whether to return the training examples.

    Returns:
        The inputs and targets of each client; its name is its number, with zeros in front.

    Raises:
        ConfigurationError: files are missing, damaged, or no files of FL-bench.
    """
    *arrays, path = fl_bench_files(root)
    data, targets = (_array(array) for array in arrays)
    return deal_fl_bench(path, data, targets, train)


def deal_fl_bench(path: Path, data: NDArray[Any], targets: NDArray[Any], train: bool) -> Clients:
    """Deal examples to FL-bench's clients.

    The validation examples of the partition are left out, as a warning says; by default, FL-bench makes none.

    Args:
        path: ``partition.pkl``.
        data: inputs (n, ...), in the order that the partition's indices count.
        targets: targets (n,).
        train: whether to return the training examples.

    Returns:
        The inputs and targets of each client; its name is its number, with zeros in front.

    Raises:
        ConfigurationError: the partition is damaged, or belongs to other data.
    """
    if data.shape[:1] != targets.shape[:1]:
        raise ConfigurationError(
            f"expected a target for each example in {path.parent}, got {len(data)} examples and {len(targets)} "
            "targets: generate the data again"
        )
    partition = read_pickle(path)
    parts = partition.get("data_indices") if isinstance(partition, dict) else None
    if not isinstance(parts, list) or not all(
        isinstance(part, dict) and {"train", "test"} <= {*part} for part in parts
    ):
        raise ConfigurationError(
            f"expected data_indices with the train and test of each client in {path}, got something else: partition "
            "the data again, by FL-bench's generate_data.py"
        )
    digits = len(str(len(parts) - 1))
    clients: Clients = {}
    for number, part in enumerate(parts):
        rows = np.asarray(part["train" if train else "test"])
        if rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(data)):
            raise ConfigurationError(
                f"expected indices from 0 to {len(data) - 1} in {path}, got {rows.min()} to {rows.max()} for client "
                f"{number}: partition the data again"
            )
        rows = rows.astype(np.int64)
        clients[f"{number:0{digits}d}"] = (data[rows], targets[rows])
    validation = sum(np.size(part.get("val", ())) for part in parts)
    if train and validation:
        rank_zero_warn(f"{validation} validation examples of {path} are left out: fl-lightning trains and tests alone")
    return clients


def _array(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        refuse(path, error)
    return array
