"""The examples that move to the test set: which ones, how long the draw takes, and sets that cannot be joined."""

import time
from typing import Any

import numpy as np
import pytest

from fl_lightning.datamodules import HuggingFace
from fl_lightning.datamodules.tables.rows.splits import move_to_test
from fl_lightning.errors import ConfigurationError

datasets: Any = pytest.importorskip("datasets")


def test_each_group_gives_its_share() -> None:
    """Groups of 4, 6 and 10 examples give a half each; all of domain b go, and an example is in one set alone."""
    users = np.random.default_rng(0).permutation(["al"] * 4 + ["bo"] * 6 + ["cy"] * 10 + ["di"] * 3)
    domains = np.where(users == "di", "b", "a")
    table = datasets.Dataset.from_dict({"row": range(23), "user": users, "domain": domains})
    moved = move_to_test({"train": table}, ["user", "domain"], "domain", ["b"], 0.5, seed=0)
    assert sorted([*moved["train"]["row"], *moved["test"]["row"]]) == list(range(23))
    count = {user: list(moved["test"]["user"]).count(user) for user in ("al", "bo", "cy", "di")}
    assert count == {"al": 2, "bo": 3, "cy": 5, "di": 3}
    assert "di" not in moved["train"]["user"]


def test_the_draw_is_that_of_earlier_versions() -> None:
    """Two of the rows 0, 3, 6 and 9 of b, and of those of a and c: those that version 0.3.0 moved with this seed."""
    table = datasets.Dataset.from_dict({"row": range(12), "user": ["b", "a", "c"] * 4})
    moved = move_to_test({"train": table}, ["user"], None, [], 0.5, seed=7)
    assert list(moved["test"]["row"]) == [2, 4, 5, 6, 7, 9]


def test_a_hundred_thousand_clients() -> None:
    """Each has two examples, of which a tenth rounds to none. Looking through all examples for each takes a minute."""
    table = datasets.Dataset.from_dict({"user": np.arange(200_000) // 2})
    start = time.process_time()
    moved = move_to_test({"train": table}, ["user"], None, [], 0.1, seed=0)
    assert time.process_time() - start < 5
    assert len(moved["test"]) == 0


def test_a_test_set_of_another_type_is_not_joined() -> None:
    train = datasets.Dataset.from_dict({"x": [1.0, 2.0] * 3})
    test = train.cast_column("x", datasets.Value("float32"))
    with pytest.raises(ConfigurationError) as caught:
        HuggingFace(train, test, num_clients=2, test_share=0.5)
    assert str(caught.value) == (
        "expected the column x of the test set to be Value('float64'), as in the train set, got Value('float32'): "
        "convert the test set with cast_column, or leave leave_out and test_share out"
    )
