"""Which checkpoints fit a model, and what is said of the others."""

from typing import Any

import pytest
import torch

from fl_lightning.engine.hosting.saving import check_orders, check_state, shape
from fl_lightning.errors import ConfigurationError

OWN = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({**OWN, "weight": torch.zeros(3, 2)}, r"weight has \(3, 2\) there and \(2, 3\) here"),
    ({"weight": OWN["weight"]}, r"bias has no such tensor there and \(2,\) here"),
    ({**OWN, "scale": torch.zeros(())}, r"scale has \(\) there and no such tensor here"),
]


@pytest.mark.parametrize(("saved", "difference"), OTHERS)
def test_tensors_of_another_model_are_named(saved: dict[str, Any], difference: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the checkpoint is of another model: {difference}; start with"):
        check_state(OWN, saved)


def test_only_shapes_count_where_names_may_differ() -> None:
    """Values and dtypes may differ, too; the first tensor of another shape is refused."""
    check_state(OWN, {name: value.double() + 1 for name, value in OWN.items()})
    check_state(OWN, {"weight": torch.ones(2, 3), "scale": torch.zeros(())}, strict=False)
    with pytest.raises(ConfigurationError, match=OTHERS[0][1]):
        check_state(OWN, OTHERS[0][0], strict=False)


def test_entries_that_are_no_tensors_have_an_empty_shape() -> None:
    assert shape(OWN["weight"]) == (2, 3)
    assert shape({"extra": 1}) == ()


def test_parameters_in_another_order_are_refused() -> None:
    """A matrix stored by columns and one by rows; a checkpoint without orders is accepted."""
    check_orders([None, [1, 0]], [None, [1, 0]])
    check_orders([None, [1, 0]], None)
    for saved in ([None, None], [None], [[1, 0], None]):
        with pytest.raises(ConfigurationError, match="in memory in another order than in the checkpoint"):
            check_orders([None, [1, 0]], saved)
