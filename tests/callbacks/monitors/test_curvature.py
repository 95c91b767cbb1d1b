"""Eigenvalues, directions and surfaces on matrices and networks small enough to be solved whole."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

from fl_lightning.callbacks.monitors.curvature import (
    hessian_product,
    normalized_by_filter,
    random_directions,
    surface,
    top_eigenpairs,
)

DRAW = torch.Generator().manual_seed(0)
START = torch.randn(80, generator=DRAW, dtype=torch.float64)
ROTATION = torch.linalg.qr(torch.randn(80, 80, generator=DRAW, dtype=torch.float64)).Q


def top(matrix: Any, count: int = 5) -> list[float]:
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    return top_eigenpairs(lambda vector: matrix @ vector, START[: len(matrix)], count)[0].tolist()


def test_small_matrices() -> None:
    """[[2, 1], [1, 3]]: λ² - 5λ + 5 = 0, λ = (5 ± √5) / 2. Of diag(-5, 1), -5 has the largest magnitude."""
    assert top([[2, 1], [1, 3]]) == pytest.approx([(5 + 5**0.5) / 2, (5 - 5**0.5) / 2])
    assert top([[2, 1], [1, 3]], count=1) == pytest.approx([3.6180340])
    assert top(np.diag([1, -5])) == pytest.approx([-5, 1])


def test_a_matrix_known_by_its_products_alone() -> None:
    """-9, 8, -7.9, 7, 6 and 75 values in [-1, 1], turned by an orthogonal matrix."""
    spectrum = torch.from_numpy(np.r_[8, -9, 6, -7.9, 7, np.linspace(-1, 1, 75)])
    matrix = ROTATION * spectrum @ ROTATION.T
    assert top(matrix) == pytest.approx([-9, 8, -7.9, 7, 6], abs=1e-9)
    assert top(matrix, count=2) == pytest.approx([-9, 8], abs=1e-9)


@pytest.mark.parametrize("size", [3, 80])
def test_of_no_curvature(size: int) -> None:
    assert top(torch.zeros(size, size)) == [0.0] * min(size, 5)


def test_a_matrix_of_low_rank_gives_the_same_every_time() -> None:
    """The search runs out of directions, and goes on in one that it draws: what it finds there is zero, not 1e-60."""
    first = top(np.diag([3, 2, 1, *[0] * 77]))
    assert first == pytest.approx([3, 2, 1, 0, 0])
    assert first[3:] == [0, 0]
    assert all(top(np.diag([3, 2, 1, *[0] * 77])) == first for _ in range(5))


def test_what_is_not_finite_is_not_known() -> None:
    """At once, or later on; of a small matrix, or one that is known by its products alone."""
    for size, first in ((3, 0), (3, 2), (80, 0), (80, 5)):
        calls = iter(range(1000))
        with pytest.warns(UserWarning, match="computed and are nan: a product with the Hessian is not finite"):
            values, vectors = top_eigenpairs(lambda v: v if next(calls) < first else v / 0, START[:size])  # noqa: B023  # called here
        assert values.shape == (min(size, 5),)
        assert vectors.shape == (min(size, 5), size)
        assert values.isnan().all()
        assert vectors.isnan().all()


def test_what_does_not_converge_is_not_known() -> None:
    """The cosines of 20000 angles crowd at 1: a hundred restarts do not tell the first from the second."""
    spectrum = torch.cos(torch.linspace(0, torch.pi, 20000))
    with pytest.warns(UserWarning, match="could not be computed and are nan: ARPACK error -1: No convergence"):
        values, _ = top_eigenpairs(lambda vector: spectrum * vector, torch.ones(20000), count=1, tolerance=1e-7)
    assert values.isnan().all()


@pytest.mark.parametrize("hidden", [3, 12], ids=["whole", "by products"])
def test_the_hessian_of_a_network(hidden: int) -> None:
    """Against the full matrix, of 27 and of 99 parameters."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3)).double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    names, parameters = zip(*net.named_parameters(), strict=True)
    sizes = [p.numel() for p in parameters]
    assert sum(sizes) == hidden * 8 + 3

    def loss(flat: Tensor) -> Tensor:
        parts = zip(parameters, flat.split(sizes), strict=True)
        named = dict(zip(names, [part.view_as(p) for p, part in parts], strict=True))
        return nn.functional.cross_entropy(functional_call(net, named, x), y)

    whole = hessian(loss)(torch.cat([p.detach().flatten() for p in parameters]))
    vector = torch.randn(len(whole), dtype=torch.float64)

    def product(vector: Tensor) -> Tensor:
        return hessian_product(nn.functional.cross_entropy(net(x), y), parameters, vector)

    assert torch.allclose(product(vector), whole @ vector, atol=1e-12)
    expected = sorted(torch.linalg.eigvalsh(whole).tolist(), key=abs, reverse=True)[:15]
    assert min(expected) < 0 < max(expected), "signs are to be told apart"
    found, vectors = top_eigenpairs(product, torch.randn(len(whole), dtype=torch.float64), count=15)
    assert found.tolist() == pytest.approx(expected, abs=1e-9)
    values, columns = np.linalg.eigh(whole.numpy())
    for value, vector in zip(found[:5].tolist(), vectors[:5].numpy(), strict=True):
        by_numpy = columns[:, np.abs(values - value).argmin()]
        assert abs(vector @ by_numpy) == pytest.approx(1, abs=1e-6)
        assert np.linalg.norm(vector) == pytest.approx(1)


def test_hessian_product_by_hand() -> None:
    """Of u² v + 2 s at u = 3, v = 5: [[2v, 2u], [2u, 0]] (1, 2) = (22, 6). In s it is linear, t is not in it."""
    u, v, s, t = (torch.tensor([value], requires_grad=True) for value in (3.0, 5.0, 1.0, 1.0))
    loss = (u**2 * v + 2 * s).sum()
    assert hessian_product(loss, [u, v, s, t], torch.tensor([1.0, 2.0, 7.0, 7.0])).tolist() == [22, 6, 0, 0]
    assert hessian_product((2 * s).sum(), [s, t], torch.ones(2)).tolist() == [0, 0]
    assert u.grad is None


def test_normalized_by_filter() -> None:
    """Rows (3, 4) and (0, 2) have the lengths 5 and 2. A filter of four entries 3 has 6: (0, 0, 0, 2) becomes 6."""
    filters = torch.stack([torch.full((1, 2, 2), 3.0), torch.zeros(1, 2, 2)])
    weights = [torch.tensor([[3.0, 4.0], [0.0, 2.0]]), filters, torch.ones(3), torch.tensor(1.0)]
    directions = [torch.eye(2), torch.zeros(2, 1, 2, 2), torch.ones(3), torch.tensor(1.0)]
    directions[1][:, 0, 1, 1] = 2
    matrix, conv, bias, scalar = normalized_by_filter(directions, weights)
    assert matrix.tolist() == [[5, 0], [0, 2]]
    assert conv.flatten(1).tolist() == [[0, 0, 0, 6], [0, 0, 0, 0]]
    assert (bias.tolist(), scalar.tolist()) == ([0, 0, 0], 0)
    longer = normalized_by_filter([direction * 7 for direction in directions], weights)
    assert all(torch.equal(one, other) for one, other in zip([matrix, conv, bias, scalar], longer, strict=True))
    assert normalized_by_filter([torch.zeros(1, 2)], [torch.ones(1, 2)])[0].tolist() == [[0, 0]]


def test_models_of_one_network_share_the_directions() -> None:
    """Three times as long filters, three times as long directions; two of a draw, and another draw, differ."""
    weights = [torch.randn(4, 5, generator=DRAW), torch.randn(3, generator=DRAW)]
    one, two = random_directions(weights, seed=1)
    assert one.shape == two.shape == (23,)
    assert [part.norm().item() for part in one[:20].view(4, 5)] == pytest.approx(weights[0].norm(dim=1).tolist())
    for direction, longer in zip(
        (one, two), random_directions([3 * weight for weight in weights], seed=1), strict=True
    ):
        assert torch.allclose(longer, 3 * direction)
    others = [one, two, *random_directions(weights, seed=2)]
    assert len({tuple(direction.tolist()) for direction in others}) == 4


def test_surface_of_a_quadratic() -> None:
    """(1 + 2i)² + 10 (1 + 3j) at i, j in (-1, 0, 1): 1, 1, 9 down, and -20, 10, 40 across."""
    directions = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 3.0])
    loss = surface(lambda w: float(w[0] ** 2 + 10 * w[1]), torch.ones(2), directions, [-1, 0, 1])
    assert loss.tolist() == [[-19, 11, 41], [-19, 11, 41], [-11, 19, 49]]
