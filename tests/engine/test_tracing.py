"""Replayed: the same bits as the function, without its Python; and what is never replayed."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fl_lightning.engine.seeding import isolated, seed_globals
from fl_lightning.engine.tracing import OFTEN, Replayed

CPU = torch.device("cpu")


class Counted:
    """Counts how often Python runs a function of tensors."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        self.calls += 1
        return [*self.function(*inputs)]


def python_calls(function: Any, *inputs: Tensor) -> int:
    """How often Python runs a function in ten calls that come after many; each gives what the function gives."""
    counted = Counted(function)
    replayed = Replayed(counted, CPU)
    for _ in range(OFTEN):
        replayed(*inputs)
    before = counted.calls
    for seed in range(10):
        results = []
        for call in (replayed, function):
            copies = [each.clone() for each in inputs]
            with isolated(CPU):
                seed_globals(seed, CPU)
                results.append([*call(*copies), *copies])
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    return counted.calls - before


def gradients(weights: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.tanh(x @ w), 0.5, training=True)
        return nn.functional.cross_entropy(hidden, y)

    return list(vmap(grad_and_value(loss), randomness="different")(weights, x, y))


def test_gradients_of_several_clients_with_dropout_are_replayed() -> None:
    weights, x, y = torch.randn(3, 5, 4), torch.randn(3, 6, 5), torch.randint(4, (3, 6))
    assert python_calls(gradients, weights, x, y) == 0


def test_changes_in_place_are_replayed() -> None:
    def step(buffer: Tensor, x: Tensor) -> list[Tensor]:
        buffer.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return [buffer.sum(), x.view(x.shape).detach() * 2]

    assert python_calls(step, torch.randn(4), torch.randn(6, 4)) == 0


def test_each_form_of_the_inputs_is_traced_for_itself() -> None:
    counted = Counted(lambda x: [x * 2])
    replayed = Replayed(counted, CPU)
    for size in (2, 3):
        for _ in range(OFTEN + 5):
            assert torch.equal(replayed(torch.ones(size))[0], torch.full((size,), 2.0))
    assert replayed(torch.ones(2, dtype=torch.float64))[0].dtype == torch.float64
    known = counted.calls
    assert torch.equal(replayed(torch.ones(3))[0], torch.full((3,), 2.0))
    assert counted.calls == known
    replayed.forget()
    replayed(torch.ones(3))
    assert counted.calls == known + 1


OTHER = torch.ones(4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [x + OTHER],
        lambda x: [x if float(x.detach().sum()) > 0 else -x],
        lambda x: [x + len(SEEN) + (SEEN.append(0) or 0)],
    ],
    ids=["another tensor", "decides on data", "counts"],
)
def test_what_uses_more_than_its_inputs_is_never_replayed(function: Any) -> None:
    SEEN.clear()
    counted = Counted(function)
    replayed = Replayed(counted, CPU)
    for _ in range(OFTEN):
        replayed(torch.ones(4))
    before = counted.calls
    replayed(torch.ones(4))
    assert counted.calls == before + 1


SEEN: list[int] = []
