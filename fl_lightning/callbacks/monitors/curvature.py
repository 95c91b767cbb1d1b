"""Curvature of the loss around a model: the Hessian's largest eigenvalues with eigenvectors, and loss surfaces."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh  # type: ignore[import-untyped]  # SciPy ships no types
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import ConcatDataset, default_collate

from fl_lightning import ConfigurationError, Server
from fl_lightning.engine.module.params import join, memory_order
from fl_lightning.seeding import derive, generator, seed_globals

SMALL_MODEL = 50  # up to this many parameters, building the whole matrix takes no more products than Lanczos' method
VALIDATED = 1000  # examples in a batch of validation examples, of which no gradient is kept
RESTARTS = 100  # largest number of restarts of Lanczos' method; each takes about 15 products


def top_eigenpairs(
    product: Callable[[Tensor], Tensor], start: Tensor, count: int = 5, tolerance: float = 1e-4
) -> tuple[Tensor, Tensor]:
    """Compute the eigenvalues of largest magnitude of a symmetric matrix, and their eigenvectors, from products alone.

    Uses Lanczos' method with implicit restarts (ARPACK, Lehoucq et al., 1998). Like power iteration, the method needs
    products alone and returns eigenvalues with their signs; unlike power iteration, it also converges where eigenvalues
    lie close, as a Hessian's do. The method may miss copies of an eigenvalue that occurs several times. A matrix of up
    to 50 rows, or up to twice ``count``, is built whole and solved directly.

    Args:
        product: function from a vector (P,) to the matrix (P, P) times this vector.
        start: (P,) random vector where the search begins; products have its dtype and device.
        count: number of eigenvalues, at least 1; all P if the matrix has fewer rows.
        tolerance: largest residual ‖A x - λ x‖, relative to |λ|. The error of an isolated eigenvalue is much smaller.

    Returns:
        (count,) float64 eigenvalues on the CPU, the largest magnitude first, and (count, P) eigenvectors of length 1
        with the dtype and device of ``start``; the sign of an eigenvector means nothing. Values no larger than rounding
        errors are set to zero. All are nan, with a warning, if a product is not finite or 100 restarts do not suffice.
    """
    count = min(count, len(start))

    def finite_product(vector: Tensor) -> Tensor:
        image = product(vector)
        if not image.isfinite().all():
            raise FloatingPointError("a product with the Hessian is not finite")
        return image

    try:
        values, vectors = _spectrum(finite_product, start, count, tolerance)
    except (FloatingPointError, ArpackError) as error:
        warnings.warn(f"the Hessian's eigenvalues could not be computed and are nan: {error}", stacklevel=2)
        return torch.full((count,), torch.nan, dtype=torch.float64), torch.full_like(start.expand(count, -1), torch.nan)
    first = np.argsort(-np.abs(values), kind="stable")[:count]
    values = values[first]
    rounding = torch.finfo(start.dtype).eps * abs(values[0])
    kept = torch.from_numpy(np.where(np.abs(values) <= rounding, 0, values)).double()
    return kept, torch.from_numpy(vectors[:, first].T.copy()).to(start)


def _spectrum(
    product: Callable[[Tensor], Tensor], start: Tensor, count: int, tolerance: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return all eigenvalues of a small matrix, or the ``count`` largest of a large one, in any order.

    The columns of the second array, (P, eigenvalues), are their eigenvectors.
    """
    size = len(start)
    if size <= max(SMALL_MODEL, 2 * count):
        rows = torch.stack([product(row) for row in torch.eye(size, dtype=start.dtype, device=start.device)])
        values, vectors = np.linalg.eigh(rows.double().cpu().numpy())
        return values, vectors
    if not product(start).any():  # ARPACK fails on a zero product
        return np.zeros(count), np.eye(size, count)

    def multiply(vector: NDArray[Any]) -> NDArray[Any]:
        return product(torch.from_numpy(vector.ravel()).to(start)).cpu().numpy()

    first = start.cpu().numpy()
    matrix = LinearOperator((size, size), matvec=multiply, dtype=first.dtype)
    values, vectors = eigsh(matrix, count, which="LM", v0=first, tol=tolerance, maxiter=RESTARTS)
    return values, vectors


def hessian_product(loss: Tensor, parameters: Sequence[Tensor], vector: Tensor) -> Tensor:
    """Compute the Hessian of a loss times a vector, by differentiating twice (Pearlmutter, 1994).

    The loss x₀² + 3 x₀ x₁ has the Hessian ((2, 3), (3, 0)), whose first column is:

    >>> import torch
    >>> from fl_lightning.callbacks.monitors.curvature import hessian_product
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> hessian_product(x[0] ** 2 + 3 * x[0] * x[1], [x], torch.tensor([1.0, 0.0]))
    tensor([2., 3.])

    Args:
        loss: a scalar with its graph.
        parameters: tensors with P entries in total. Where the loss does not depend on a tensor, derivatives are zero.
        vector: (P,) the vector to multiply.

    Returns:
        (P,) product.
    """
    orders = [memory_order(parameter) for parameter in parameters]
    gradient = join(torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True), orders)
    if not gradient.requires_grad:  # the loss is linear
        return torch.zeros_like(vector)
    return join(torch.autograd.grad(gradient @ vector, parameters, materialize_grads=True), orders)


def normalized_by_filter(direction: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """Scale every filter of a direction to the norm of the model's filter (Li et al., 2018, Section 4).

    Networks that compute the same function with differently scaled filters then show the same surface.

    The two rows of a Linear's weight have the norms 5 and 2:

    >>> import torch
    >>> from fl_lightning.callbacks.monitors.curvature import normalized_by_filter
    >>> weight = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    >>> direction = torch.tensor([[1.0, 0.0], [0.0, -4.0]])
    >>> normalized_by_filter([direction], [weight])[0].tolist()
    [[5.0, 0.0], [0.0, -2.0]]

    Args:
        direction: tensors of the weights' shapes.
        weights: the model's tensors. A filter is an entry along the first dimension, such as a row of a Linear.

    Returns:
        The scaled tensors; zero for a weight of one dimension (biases, normalisation), and where a filter is zero.
    """
    normalized = []
    for part, weight in zip(direction, weights, strict=True):
        if weight.ndim < 2:
            normalized.append(torch.zeros_like(weight))
            continue
        rows, lengths = part.flatten(1), weight.flatten(1).norm(dim=1, keepdim=True)
        unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        normalized.append((unit * lengths).view_as(weight))
    return normalized


def random_directions(weights: Sequence[Tensor], seed: int) -> tuple[Tensor, Tensor]:
    """Draw two directions (P,), normalised by filter; the draw depends on the seed alone, so that models share it."""
    draw = generator(seed, "surface")

    def one() -> Tensor:
        normal = [torch.randn(weight.shape, generator=draw, dtype=weight.dtype).to(weight) for weight in weights]
        return join(normalized_by_filter(normal, weights), [memory_order(weight) for weight in weights])

    return one(), one()


def surface(
    loss: Callable[[Tensor], float], params: Tensor, directions: tuple[Tensor, Tensor], steps: Sequence[float]
) -> NDArray[np.float64]:
    """Evaluate the loss on a grid around a model.

    The loss x² + y² around zero, one step to either side:

    >>> import torch
    >>> from fl_lightning.callbacks.monitors.curvature import surface
    >>> directions = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> surface(lambda point: float(point @ point), torch.zeros(2), directions, steps=[-1, 0, 1]).tolist()
    [[2.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 2.0]]

    Args:
        loss: function from parameters (P,) to the loss.
        params: (P,) parameters of the model.
        directions: two directions (P,).
        steps: n step sizes, used along both directions.

    Returns:
        (n, n): [i, j] is the loss at params + steps[i] · directions[0] + steps[j] · directions[1].
    """
    one, two = directions
    return np.array([[loss(params + i * one + j * two) for j in steps] for i in steps], dtype=np.float64)


class TrainingLoss:
    """The client module's training loss over some examples: see :func:`training_loss`.

    Args:
        orchestrator: the orchestrator, while a fit lasts.
        batches: pairs of a batch on the device and its number of examples.
    """

    def __init__(self, orchestrator: Server, batches: Sequence[tuple[Any, int]]) -> None:
        self._orchestrator, self._batches = orchestrator, batches
        self._examples = sum(size for _, size in batches)

    def at(self, params: Tensor) -> float:
        """Return the mean loss over the examples at the parameters given (P,)."""
        with self._orchestrator.at(params), torch.no_grad():
            return float(sum(share * loss.double() for share, loss in self._losses()))

    def hessian_product(self, vector: Tensor) -> Tensor:
        """Compute the Hessian of the loss at the present parameters times a vector (P,)."""
        parameters = [p for p in self._orchestrator.client.parameters() if p.requires_grad]
        total = torch.zeros_like(vector)
        with torch.enable_grad():
            for share, loss in self._losses():
                total += share * hessian_product(loss, parameters, vector)
        return total

    def _losses(self) -> Iterator[tuple[float, Tensor]]:
        """Yield each batch's share of the examples, and its loss in full precision."""
        orchestrator = self._orchestrator
        for batch, size in self._batches:
            # The Trainer's context makes new tensors float64 under 64-true; autocast is switched off again.
            full = torch.autocast(orchestrator.device.type, enabled=False)
            with orchestrator.trainer.precision_plugin.train_step_context(), full:
                loss = orchestrator.training_loss(batch)
            yield size / self._examples, loss


@contextmanager
def training_loss(orchestrator: Server, examples: int, validation: bool = False) -> Iterator[TrainingLoss]:
    """Provide the global model's training loss for a monitor, and leave no trace in the run.

    The module is in evaluation mode: dropout is off, and BatchNorm uses its running statistics, as when the global
    model predicts. The examples are drawn with the run's seed from all clients' examples, each with the same chance,
    and are the same in every round. The data module's transfer hooks do not augment the examples, and terms that rules
    add to the loss do not count. The model computes in its own precision, without autocast (on a GPU, in TF32 if
    PyTorch allows TF32).

    Args:
        orchestrator: the orchestrator, as a server hook gets it.
        examples: number of examples; all if there are fewer.
        validation: whether the examples are those of the data module's ``val_dataloader`` in place of the clients'.
    """
    with (
        orchestrator.server_side("curvature"),
        orchestrator.validating(),
        sdpa_kernel(SDPBackend.MATH),  # the other attention kernels have no second derivative
    ):
        yield TrainingLoss(orchestrator, list(_sample(orchestrator, examples, validation)))


def _sample(orchestrator: Server, examples: int, validation: bool) -> Iterator[tuple[Any, int]]:
    data: Any = orchestrator.data
    seed_globals(derive(orchestrator.seed, "curvature"), orchestrator.device)  # for data sets that transform at random
    batch_size = data.batch_size
    if validation:
        every = data.val_dataloader().dataset
        batch_size = VALIDATED
    else:
        every = ConcatDataset([data.client_dataset(k) for k in data.sizes.nonzero().flatten().tolist()])
    drawn = torch.randperm(len(every), generator=orchestrator.generator("curvature"))[:examples].tolist()
    collate = data.collate_fn or default_collate
    for begin in range(0, len(drawn), batch_size):
        rows = drawn[begin : begin + batch_size]
        # Transfer hooks do not augment a plain list. Each batch moves to the device once, so that all evaluations share
        # the batch.
        yield orchestrator.prepare_batch(collate([every[row] for row in rows])), len(rows)


def check_module(name: str, orchestrator: Any) -> None:
    """Refuse a module whose loss a monitor cannot measure.

    Raises:
        ConfigurationError: the module optimizes manually.
    """
    module = orchestrator.client
    if not module.automatic_optimization:
        raise ConfigurationError(
            f"{name} needs a training_step that only returns the loss, but {type(module).__name__} optimizes by hand "
            f"(automatic_optimization = False): remove {name}"
        )
