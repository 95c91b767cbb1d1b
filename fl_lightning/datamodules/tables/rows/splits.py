"""Splits of a Hugging Face data set: which examples train, which evaluate."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from numpy.typing import NDArray

from fl_lightning.datamodules.base.dealt import hold_out, mask_of
from fl_lightning.datamodules.base.domains import check_left_out
from fl_lightning.datamodules.partition.steps.parts import rows_of
from fl_lightning.datamodules.tables.values import groups_of, is_unlabelled
from fl_lightning.errors import ConfigurationError

Bools = NDArray[np.bool_]

VALIDATION = ("validation", "valid", "val", "dev")  # names of the split, the usual one first


def choose_splits(splits: Mapping[str, Any], test: Any) -> dict[str, Any]:
    """Choose the data sets to train, to test and to validate on (``train``, ``test``, ``val``) among named splits.

    Args:
        splits: data sets by the names of their splits, with one named ``train``.
        test: data set to validate and test on; None for the splits.

    Raises:
        ConfigurationError: there is no split ``train``, or there are ``test`` and a split for the same use.
    """
    if "train" not in splits:
        raise ConfigurationError(f"expected a split train, got {', '.join(map(str, splits)) or 'none'}: rename a split")
    if test is not None:
        if twice := [name for name in ("test", *VALIDATION) if name in splits]:
            raise ConfigurationError(
                f"expected test or a split to test on, got test and the split {', '.join(twice)}: leave one out"
            )
        return {"train": splits["train"], "test": test, "val": test}
    found = [splits[name] for name in VALIDATION if name in splits]
    val = found[0] if found else splits.get("test")
    chosen = {"train": splits["train"], "test": splits.get("test", val), "val": val}
    return {name: split for name, split in chosen.items() if split is not None}


def leave_unlabelled_out(chosen: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Test on the validation set where no class of the test set is known, as in GLUE, whose labels are all -1.

    Args:
        chosen: data sets named ``train`` and, where there are such, ``test`` and ``val``.
        label: name of the column of classes.
    """
    test, val = chosen.get("test"), chosen.get("val")
    if test is None or val is test or not is_unlabelled(test, label):
        return dict(chosen)
    rank_zero_warn(f"none of the {len(test)} test examples has a known class: the validation set serves to test, too")
    return {**chosen, "test": val}


def move_to_test(
    chosen: Mapping[str, Any],
    columns: Sequence[str],
    domain: str | None,
    left_out: Sequence[str],
    share: float,
    seed: int,
) -> dict[str, Any]:
    """Move training examples to the data sets to test and to validate on.

    Args:
        chosen: data sets named ``train`` and, where there are such, ``test`` and ``val``.
        columns: names of the columns of clients and of domains.
        domain: name of the column of domains; None without domains.
        left_out: domains of which all training examples are moved.
        share: share in [0, 1) of the other training examples that is moved, the same for each combination of values of
            ``columns``; drawn with ``seed`` and rounded to whole examples.
        seed: the run's seed.

    Raises:
        ConfigurationError: ``share`` is outside its range, there is no such domain, or a data set to test on lacks a
            column of the training set.
    """
    if not 0 <= share < 1:  # also refuses nan
        raise ConfigurationError(f"test_share must be in [0, 1), the share of each client's examples, got {share}")
    train = chosen["train"]
    is_moved = np.zeros(len(train), dtype=bool)
    if domain is not None:
        domains = groups_of(train, domain, "train").astype(str)
        check_left_out(left_out, np.unique(domains).tolist())
        is_moved = np.isin(domains, left_out)
    if share:
        is_moved |= _draw_share(train, columns, is_moved, share, seed)
    moved = train.select(np.flatnonzero(is_moved))
    if share and (given := chosen.get("test")) is not None:
        rank_zero_info(f"the test set: {len(given):,} examples of its own, and {len(moved):,} moved by test_share")
    result = {"train": train.select(np.flatnonzero(~is_moved))}
    result["test"] = _joined(chosen.get("test"), moved)
    is_same = chosen.get("val") is chosen.get("test")
    result["val"] = result["test"] if is_same else _joined(chosen.get("val"), moved)
    return result


def _draw_share(train: Any, columns: Sequence[str], is_moved: Bools, share: float, seed: int) -> Bools:
    """Draw a share of the examples that stay so far, for each combination of values of some columns."""
    groups = np.zeros(len(train), dtype=np.int64)
    for column in columns:
        numbers = np.unique(groups_of(train, column, "train"), return_inverse=True)[1]
        groups = groups * (numbers.max() + 1) + numbers
    staying = np.flatnonzero(~is_moved)
    parts = rows_of(groups[staying], int(groups.max(initial=-1)) + 1).among(torch.from_numpy(staying))
    _, drawn = hold_out(parts, share, seed, "test share")
    return mask_of(len(train), drawn.rows).numpy()


def _joined(split: Any, moved: Any) -> Any:
    """Return the examples of a data set to test on, if there is one, and then those that were moved there."""
    if split is None:
        return moved
    missing = [name for name in moved.column_names if name not in split.column_names]
    if missing:
        raise ConfigurationError(
            f"expected the test set to have the columns of the training set, got none of {', '.join(missing)}: leave "
            "leave_out and test_share out, or test"
        )
    for name in moved.column_names:
        if split.features[name] != moved.features[name]:
            raise ConfigurationError(
                f"expected the column {name} of the test set to be {moved.features[name]}, as in the train set, got "
                f"{split.features[name]}: convert the test set with cast_column, or leave leave_out and test_share out"
            )
    return import_module("datasets").concatenate_datasets([split.select_columns(moved.column_names), moved])
